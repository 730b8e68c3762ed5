"""All streams that a notebook shows, and when they have to stop."""

from __future__ import annotations

import threading
import time

from workbench.display.stream import StreamDisplay

#: The number of ended streams whose last state is kept for the end of the run.
MAX_ENDED = 50


class StreamDisplays:
    """The streams that a notebook shows."""

    def __init__(self) -> None:
        self._shown: list[tuple[str | None, StreamDisplay]] = []
        self._cell: str | None = None

    def add(self, display: StreamDisplay) -> None:
        """Remember a stream that the running cell shows."""
        ended = [entry for entry in self._shown if entry[1].has_ended]
        forgotten = ended[:-MAX_ENDED]
        self._shown = [*(entry for entry in self._shown if entry not in forgotten), (self._cell, display)]

    def begin_cell(self, cell: str | None) -> None:
        """Stop the streams of an earlier run of this cell, as Databricks does: no output would show them."""
        for shown_by, display in self._shown:
            if cell is not None and shown_by == cell and not display.has_ended:
                display.stop()
                display.finish(1.0)
        self._cell = cell

    def awaited(self) -> list[str]:
        """Return the names of the streams that `await_first` waits for."""
        return [display.name for _, display in self._shown if display.awaited]

    def await_first(self, seconds: float) -> list[StreamDisplay]:
        """Wait until each stream has something to show; return those that failed."""
        deadline = time.monotonic() + seconds
        for _, display in self._shown:
            display.await_output(deadline)
        return [display for _, display in self._shown if display.failure]

    def stop(self, seconds: float) -> None:
        """Stop all streams, and show the last state of each, also of streams that have ended."""
        active = [display for _, display in self._shown if not display.has_ended]
        stopping = [threading.Thread(target=display.stop, daemon=True) for display in active]
        for thread in stopping:
            thread.start()
        deadline = time.monotonic() + seconds
        for thread in stopping:
            thread.join(max(0.0, deadline - time.monotonic()))
        for _, display in self._shown:
            display.finish(max(0.2, deadline - time.monotonic()))
