"""A notebook's run as its user sees it in the terminal."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from workbench.notebook_source import Cell

LABEL_CHARACTERS = 70


class Progress:
    """Prints each cell with its seconds, and what the notebook prints.

    Args:
        console: Where to; on a terminal the running cell has a spinner.
        cells: How many cells the notebook has.
    """

    def __init__(self, console: Console, cells: int) -> None:
        self._console = console
        self._cells = cells
        self._label = ""
        self._started = 0.0
        self._status: Status | None = None
        self._unfinished: dict[str, str] = {}

    def start(self, cell: Cell) -> None:
        """Show that a cell runs."""
        label = (
            cell.label if len(cell.label) <= LABEL_CHARACTERS else f"{cell.label[: LABEL_CHARACTERS - 1]}…"
        )
        width = len(str(self._cells))
        self._label = escape(f"[{cell.number:>{width}}/{self._cells}] {label}")
        self._started = time.monotonic()
        if self._console.is_terminal:
            self._status = self._console.status(self._label)
            self._status.start()
        else:
            self._print(f"  {self._label}")

    def stream(self, name: str, text: str) -> None:
        """Show what the notebook prints, line by line."""
        *lines, self._unfinished[name] = (self._unfinished.get(name, "") + text).split("\n")
        for line in lines:
            self._print_output(line)

    def end(self, *, success: bool) -> None:
        """Show that the running cell has ended, and its seconds."""
        if not self._label:
            return
        for rest in self._unfinished.values():
            if rest:
                self._print_output(rest)
        self._unfinished.clear()
        if self._status is not None:
            self._status.stop()
            self._status = None
        mark = "[green]✓[/green]" if success else "[red]✗[/red]"
        seconds = f"[dim]{time.monotonic() - self._started:.1f} s[/dim]"
        self._print(f"{mark} {self._label}  {seconds}")
        self._label = ""

    def _print(self, markup: str) -> None:
        self._console.print(markup, highlight=False, soft_wrap=True)

    def _print_output(self, line: str) -> None:
        # A progress bar writes its line again and again; the last writing counts.
        last = line.rstrip("\r").rpartition("\r")[2]
        self._console.print(f"      {last}", markup=False, highlight=False, soft_wrap=True)
