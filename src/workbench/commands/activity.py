"""The progress of a command: a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Activity:
    """Reports progress on standard error, so that standard output carries results only."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)

    def report(self, text: str) -> None:
        """Print one line."""
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        """Show on a terminal that something is under way, and for how long, until the block ends."""
        if not self.console.is_terminal:
            self.report(text)
            yield
            return
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(*columns, console=self.console, transient=True) as progress:
            progress.add_task(escape(text), total=None)
            yield
