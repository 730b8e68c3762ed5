"""What a command tells while it works: a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.status import Status


class Activity:
    """Tells on standard error what is being done, so that standard output carries results only."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)

    def tell(self, text: str) -> None:
        """Print one line."""
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        """Show on a terminal that something is under way, and for how long, until the block ends."""
        if not self.console.is_terminal:
            self.tell(text)
            yield
            return
        with self.console.status(escape(text)) as status, _ticking(text, status):
            yield


@contextmanager
def _ticking(text: str, status: Status) -> Iterator[None]:
    done, begin = threading.Event(), time.monotonic()

    def tick() -> None:
        while not done.wait(1.0):
            status.update(f"{escape(text)} ({time.monotonic() - begin:.0f} s)")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
