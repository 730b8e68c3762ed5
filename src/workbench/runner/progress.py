"""A notebook's run as its user sees it in the terminal."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from workbench.display.table import cut, printable
from workbench.notebook.source import Cell

LABEL_CHARACTERS = 70
#: Lines of a terminal that streams cannot have: the running cell, and what was printed last.
OTHER_LINES = 4


class Progress:
    """Prints each cell with its seconds, and the output of the notebook.

    Args:
        console: The output. On a terminal the running cell has a spinner, and streams of `display` are drawn
            again and again below the other output.
        cells: How many cells the notebook has.
    """

    def __init__(self, console: Console, cells: int) -> None:
        self._console = console
        self._cells = cells
        self._label = ""
        self._started = 0.0
        self._live: Live | None = None
        self._streams: dict[str, str] = {}
        self._unfinished: dict[str, str] = {}

    def start(self, cell: Cell) -> None:
        """Show that a cell runs."""
        label, width = cut(cell.label, LABEL_CHARACTERS), len(str(self._cells))
        self._label = escape(f"[{cell.number:>{width}}/{self._cells}] {label}")
        self._started = time.monotonic()
        if self._console.is_terminal:
            self._draw()
        else:
            self._print(f"  {self._label}")

    def show_stream(self, display_id: str, text: str) -> None:
        """Show the state of a stream in the place of its last one, where a terminal can."""
        if self._console.is_terminal:
            self._streams[display_id] = text
            self._draw()

    def stream(self, name: str, text: str) -> None:
        """Show the output of the notebook, line by line."""
        *lines, self._unfinished[name] = (self._unfinished.get(name, "") + text).split("\n")
        for line in lines:
            self._print_output(line)

    def end(self, *, success: bool) -> None:
        """Show that the running cell has ended, and its seconds."""
        if not self._label:
            return
        for remaining in self._unfinished.values():
            if remaining:
                self._print_output(remaining)
        self._unfinished.clear()
        mark = "[green]✓[/green]" if success else "[red]✗[/red]"
        seconds = f"[dim]{time.monotonic() - self._started:.1f} s[/dim]"
        text, self._label = f"{mark} {self._label}  {seconds}", ""
        if self._streams:
            self._draw()
        else:
            self.close()
        self._print(text)

    def close(self) -> None:
        """Keep the last states of the streams on the screen, and stop drawing."""
        if self._live is not None:
            self._live.transient = not self._streams
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        lines = max(1, (self._console.height - OTHER_LINES) // max(1, len(self._streams)))
        shown = [_fitting(text, lines) for text in self._streams.values()]
        running = [Spinner("dots", text=self._label, style="status.spinner")] if self._label else []
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=12.5)
            self._live.start()
        self._live.update(Group(*shown, *running), refresh=True)

    def _print(self, markup: str) -> None:
        self._console.print(markup, highlight=False, soft_wrap=True)

    def _print_output(self, line: str) -> None:
        # A progress bar writes its line again and again; the last writing counts.
        last = line.rstrip("\r").rpartition("\r")[2]
        self._console.print(f"      {last}", markup=False, highlight=False, soft_wrap=True)


def _fitting(text: str, lines: int) -> Text:
    """Return the first lines of a text, each on one line, without a terminal's control characters."""
    first, *others = map(printable, text.split("\n")[:lines])
    shown = Text(first, style="bold", no_wrap=True, overflow="ellipsis")
    for line in others:
        shown.append(f"\n{line}", style="not bold")
    return shown
