"""Where a stream is shown: an output of a notebook, updated in place."""

from __future__ import annotations

import html
import uuid
from typing import Any

from topiclake.monitoring.charts import html_charts, text_charts
from workbench.display.stream import LOG_COMMAND, StreamState
from workbench.display.table import html_table, text_table

_COLOURS = {"running": "#10b981", "failed": "#ef4444"}


class NotebookOutput:
    """An output of a cell, updated by its display id.

    The calling thread sends it, and ipykernel names the running cell as the parent. JupyterLab finds the
    output by the display id alone. nbclient drops messages that name no running cell.
    """

    def __init__(self, publish: Any) -> None:  # noqa: ANN401 - IPython's display carries no types
        self._publish = publish
        self._id = uuid.uuid4().hex
        self._is_displayed = False

    def show(self, state: StreamState) -> None:
        """Replace the displayed state by this one."""
        data = {"text/html": _html(state), "text/plain": _text(state)}
        # The saved metadata hold the id, too: a page that is loaded again finds the output by it.
        metadata = {"display_id": self._id}
        self._publish(data, metadata=metadata, raw=True, display_id=self._id, update=self._is_displayed)
        self._is_displayed = True


def _heading(state: StreamState) -> str:
    parts = [state.status]
    if state.points:
        last = state.points[-1]
        parts += [f"batch {last.batch}", f"{last.rows:,} rows in it", f"{last.time:%H:%M:%S} UTC"]
    elif not state.has_ended:
        parts.append("waiting for the first micro-batch")
    return ", ".join(parts)


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
