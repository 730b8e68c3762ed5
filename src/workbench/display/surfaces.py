"""Where a stream is shown: an output of a notebook, updated in place, or a live table in a terminal."""

from __future__ import annotations

import html
import uuid
from types import TracebackType
from typing import Any, cast

import IPython
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from topiclake.monitoring.charts import html_charts, text_charts
from workbench.display.stream import LOG_COMMAND, StreamState
from workbench.display.table import (
    MAX_TEXT_ROWS,
    counted,
    html_table,
    is_number,
    printable,
    text_cell,
    text_table,
)

_COLOURS = {"running": "#10b981", "failed": "#ef4444"}
#: Lines of a terminal that the table's rows cannot have: heading, charts, the table's own.
_OTHER_LINES = 11


class NotebookOutput:
    """An output of a cell, updated by its display id.

    It is sent from whichever thread calls: ipykernel then names the running cell as the parent. JupyterLab
    goes by the display id alone, and nbclient drops what names no running cell.
    """

    def __init__(self, publish: Any) -> None:  # noqa: ANN401 - IPython's display carries no types
        self._publish = publish
        self._id = uuid.uuid4().hex
        self._begun = False

    def show(self, state: StreamState) -> None:
        """Show this instead of what was shown before."""
        data = {"text/html": _html(state), "text/plain": _text(state)}
        # In the metadata too, which is saved: a page that is loaded again finds the output by it.
        metadata = {"display_id": self._id}
        self._publish(data, metadata=metadata, raw=True, display_id=self._id, update=self._begun)
        self._begun = True


class TerminalTable:
    """A live table; where output is no terminal, the last state alone is printed."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> TerminalTable:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, state: StreamState) -> None:
        """Show this instead of what was shown before."""
        height = self._console.height - _OTHER_LINES if self._console.is_terminal else MAX_TEXT_ROWS
        self._live.update(_live_table(state, max(1, min(MAX_TEXT_ROWS, height))), refresh=True)


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this."""
    get_ipython = cast("Any", IPython).get_ipython
    return getattr(get_ipython(), "kernel", None) is not None


def _heading(state: StreamState) -> str:
    words = [state.status]
    if state.points:
        last = state.points[-1]
        words += [f"batch {last.batch}", f"{last.rows:,} rows in it", f"{last.time:%H:%M:%S} UTC"]
    elif not state.over:
        words.append("waiting for the first micro-batch")
    return ", ".join(words)


def _failure(state: StreamState) -> str:
    return f"query {state.name} failed: {state.cause}; try: {LOG_COMMAND}" if state.cause else ""


def _html(state: StreamState) -> str:
    colour = _COLOURS.get(state.status, "gray")
    failure = f'<p style="color:{colour}">{html.escape(_failure(state))}</p>' if state.cause else ""
    return (
        f'<div class="topiclake-stream"><p><span style="color:{colour}">●</span> '
        f"<b>{html.escape(state.name)}</b> {_heading(state)}</p>{failure}{html_charts(state.points)}"
        f"{html_table(state.columns, state.rows, state.more)}</div>"
    )


def _text(state: StreamState) -> str:
    lines = [f"stream {state.name}: {_heading(state)}", *filter(None, [_failure(state)])]
    return "\n".join([*lines, *text_charts(state.points), text_table(state.columns, state.rows, state.more)])


def _live_table(state: StreamState, height: int) -> Group:
    rows = state.rows[:height]
    table = Table()
    for name, kind in state.columns:
        head = Text(printable(name)).append(f"\n{printable(kind)}", style="dim")
        table.add_column(head, justify="right" if is_number(kind) else "left", overflow="ellipsis")
    for row in rows:
        table.add_row(
            *(Text(printable(text_cell(value)), style="dim" if value is None else "") for value in row)
        )
    heading = Text(f"{printable(state.name)}  {_heading(state)}", style="bold")
    failure = [Text(printable(_failure(state)), style="red")] if state.cause else []
    count = Text(counted(len(rows), state.more or len(rows) < len(state.rows)), style="dim")
    return Group(heading, *failure, *map(Text, text_charts(state.points)), table, count)
