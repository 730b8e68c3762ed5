"""A displayed streaming DataFrame: its newest rows, its rates, and its end."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from py4j.protocol import Py4JError, Py4JJavaError

from topiclake.monitoring.charts import BatchPoint
from workbench.display.query import QueryOptions, batch_point, failure_cause, start_query
from workbench.display.rows import columns_of, fetch_batch
from workbench.display.table import Columns, Redaction, Rows, fitting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

REFRESH_SECONDS = 0.5
MAX_POINTS = 100
#: Of a table that is sent to the browser again with each micro-batch.
MAX_LIVE_CHARACTERS = 100_000
#: How long a run waits for rows after a stream's first micro-batch, which is empty with some sources.
ROWS_SECONDS = 5.0
LOG_COMMAND = "python -m workbench logs spark"


@dataclass(frozen=True)
class StreamState:
    """The displayed state of a stream.

    Attributes:
        status: running, ended, stopped or failed.
        cause: Why it failed.
        more: There are rows that are not shown.
    """

    name: str
    columns: Columns
    status: str = "running"
    cause: str = ""
    rows: Rows = field(default=())
    more: bool = False
    points: tuple[BatchPoint, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether it shows no more micro-batches."""
        return self.status != "running"


class Surface(Protocol):
    """Where a stream is shown."""

    def show(self, state: StreamState) -> None:
        """Replace the displayed state by this one."""


class StreamDisplay:
    """One `display` of a streaming DataFrame.

    The rows come from `foreachBatch`: Spark limits their number, and no micro-batch is missed. The table of
    Spark's memory sink would grow until the driver runs out of memory. Rates come from `lastProgress`: a
    listener receives events of all queries of the session, and may lose some. If there are more than two
    micro-batches a second, the charts omit some until the query is over.
    """

    def __init__(
        self, frame: DataFrame, options: QueryOptions, surface: Surface, redaction: Redaction
    ) -> None:
        self._options = options
        self._surface = surface
        self._redaction = redaction
        self._lock = threading.Lock()
        self._state = StreamState(redaction.redact(options.name), redaction.columns(columns_of(frame)))
        self._shown: StreamState | None = None
        self._points: deque[BatchPoint] = deque(maxlen=MAX_POINTS)
        self._has_batch = threading.Event()
        self._has_rows = threading.Event()
        self._ended = threading.Event()
        self._folder = Path(tempfile.mkdtemp(prefix="workbench-display-"))
        # Removed with the query, and again when Python ends: until the JVM ends, Spark's maintenance of state
        # may create the folder again.
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        checkpoint = options.checkpoint or self._folder.as_uri()
        try:
            self._query: StreamingQuery = start_query(frame, options, checkpoint, self._add_batch)
        except BaseException:
            self._remove_folder()
            raise

    @property
    def has_ended(self) -> bool:
        """Whether the query has ended."""
        return self._state.has_ended

    @property
    def failure(self) -> str:
        """Why the query failed, or ""."""
        return self._state.cause

    @property
    def name(self) -> str:
        """The query's name."""
        return self._state.name

    def watch(self) -> None:
        """Show rows and progress from a thread, until the query ends."""
        self._publish()
        threading.Thread(target=self._watch, name=f"display {self.name}", daemon=True).start()

    def wait(self) -> None:
        """Wait until the query is over.

        Nothing is asked of Spark here: Ctrl-C may interrupt it, and would cut a call to the JVM in two.
        """
        # After Ctrl-C during a thread's `join`, Python regards the thread as ended.
        while not self._ended.wait(REFRESH_SECONDS):
            pass

    def _watch(self) -> None:
        try:
            while not self._query.awaitTermination(REFRESH_SECONDS):  # type: ignore[arg-type]
                self._read_progress()
                self._publish()
        except Exception as error:  # noqa: BLE001 - shown, whatever it is: a thread's traceback goes nowhere
            self.stop()
            self._end(error)
        else:
            self._end(None)

    def stop(self) -> None:
        """Stop the query; the output shows its end soon after."""
        # The JVM may have ended first.
        with contextlib.suppress(Exception):
            self._query.stop()

    def finish(self, seconds: float) -> None:
        """Wait until the end is shown, and show it once more; wait at most `seconds`."""
        self._ended.wait(seconds)
        if not self.has_ended:
            self._change(status="stopped", cause="")
        self._publish(again=True)

    @property
    def awaited(self) -> bool:
        """Whether `await_output` would wait."""
        return not (self._ended if self._options.ends else self._has_rows).is_set()

    def await_output(self, deadline: float) -> None:
        """Wait for the first micro-batch that has rows, or, where the query ends by itself, for its end."""
        if self._options.ends:
            self.wait()
        self._has_batch.wait(deadline - time.monotonic())
        self._has_rows.wait(min(ROWS_SECONDS, deadline - time.monotonic()))

    def _add_batch(self, batch: DataFrame, mode: str) -> None:
        complete = mode == "complete"
        fetched = fetch_batch(batch, newest=not complete)
        rows = [*fetched.cells(self._redaction)]
        with self._lock:
            previous = self._state
            if not complete:
                rows += previous.rows
            fitting_rows, more = fitting(rows, MAX_LIVE_CHARACTERS)
            self._state = replace(previous, rows=fitting_rows, more=more or (previous.more and not complete))

    def _read_progress(self) -> None:
        progress: Any = self._query.lastProgress
        if progress is None:
            return
        point = batch_point(progress)
        if not self._points or point.time != self._points[-1].time:
            self._points.append(point)
            self._change(points=tuple(self._points))
        self._has_batch.set()
        if self._state.rows:
            self._has_rows.set()

    def _end(self, error: Exception | None) -> None:
        # The query's own reports outlive it, unless the JVM is gone.
        with contextlib.suppress(Exception):
            by_time = {point.time: point for point in self._points}
            by_time |= {batch.time: batch for batch in map(batch_point, self._query.recentProgress)}
            points = [by_time[time] for time in sorted(by_time)][-MAX_POINTS:]
            self._change(points=tuple(points))
        if error is None:
            self._change(status="ended" if self._options.ends else "stopped")
        elif _spark_was_stopped(error):
            self._change(status="stopped")
        else:
            self._change(status="failed", cause=self._redaction.redact(failure_cause(str(error))))
        self._remove_folder()
        self._has_batch.set()
        self._has_rows.set()
        self._publish()
        self._ended.set()

    def _remove_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _change(self, **changes: Any) -> None:  # noqa: ANN401 - fields of the state
        with self._lock:
            self._state = replace(self._state, **changes)

    def _publish(self, *, again: bool = False) -> None:
        state = self._state
        if again or state is not self._shown:
            self._shown = state
            self._surface.show(state)


def _spark_was_stopped(error: Exception) -> bool:
    """Return whether the query ended because Spark was stopped, which is not a failure of the query."""
    jvm_is_gone = isinstance(error, Py4JError | OSError) and not isinstance(error, Py4JJavaError)
    return jvm_is_gone or "SparkContext was shut down" in str(error)
