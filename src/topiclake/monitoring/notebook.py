"""A query's progress below a notebook's cell, drawn while the query runs."""

from __future__ import annotations

import contextlib
import html
import sys
import threading
import uuid
from collections.abc import Callable
from datetime import datetime, timezone

from pyspark.sql.streaming import StreamingQuery

from topiclake.monitoring.charts import BatchPoint, duration_text, html_charts, rate_text
from topiclake.monitoring.reports import BatchReport, read_report
from topiclake.streaming import progress
from topiclake.streaming.failure import query_failure

REFRESH_SECONDS = 0.5
MAX_POINTS = 100

#: Function that shows the picture, or the newest batch as one line.
Output = Callable[[str, str], None]


def show_progress(query: StreamingQuery) -> None:
    """Draw rates, batch duration and lag of a query below the cell, in place, until it ends.

    Returns at once. A thread continues to draw while later cells run, and `await_caught_up` draws once more.
    Outside a notebook, each batch is one line on standard output.

    Args:
        query: A running query; one that has ended is drawn once.

    Example:
        >>> query = tl.start_ingest(spark, settings)
        >>> tl.await_caught_up(query, "availableNow")
        >>> tl.show_progress(query)
        readings: ended...
    """
    drawing = _Drawing(query, _cell_output() or _print_line)
    drawing.draw()
    progress.draw_when_caught_up(query, drawing.draw)
    threading.Thread(target=drawing.run, name=f"progress of {query.name}", daemon=True).start()


class _Drawing:
    def __init__(self, query: StreamingQuery, output: Output) -> None:
        self._query, self._output = query, output
        self._name = query.name or str(query.id)
        self._reports: dict[float, BatchReport] = {}
        self._lock = threading.Lock()
        self._shown = ""

    def run(self) -> None:
        """Draw each batch until the query ends, and then its end."""
        # `draw` checks whether the query failed, and whether the JVM has ended.
        with contextlib.suppress(Exception):
            while not self._query.awaitTermination(REFRESH_SECONDS):  # type: ignore[arg-type]
                self.draw()
        self.draw()

    def draw(self) -> None:
        """Draw the batches and the status, unless they are shown already."""
        with self._lock:
            status = self._status()
            reports = self._read(all_batches=status != "running")
            line = ", ".join([f"{self._name}: {status}", *map(summary, reports[-1:])])
            if line == self._shown:
                return
            self._shown = line
            charts = html_charts([_point(report) for report in reports])
            self._output(f'<div class="topiclake-progress"><p>{html.escape(line)}</p>{charts}</div>', line)

    def _status(self) -> str:
        try:
            error = self._query.exception()
            if error is not None:
                return f"failed: {query_failure(self._name, str(error)).cause}"
            return "running" if self._query.isActive else "ended"
        except Exception:  # noqa: BLE001 - the JVM is gone, and takes its queries with it
            return "stopped"

    def _read(self, *, all_batches: bool) -> list[BatchReport]:
        """Return the newest reports; batches that end between two calls are read at the end."""
        with contextlib.suppress(Exception):
            progresses = (
                self._query.recentProgress if all_batches or not self._reports else [self._query.lastProgress]
            )
            self._reports |= {
                report.at: report for report in (read_report(each.json) for each in progresses if each)
            }
        self._reports = {at: self._reports[at] for at in sorted(self._reports)[-MAX_POINTS:]}
        return list(self._reports.values())


def summary(report: BatchReport) -> str:
    """Return a batch as a part of a line."""
    lag_text = "" if report.lag is None else f", lag {report.lag:,} records"
    late = f", {report.late_rows:,} rows too late" if report.late_rows else ""
    duration, rate = duration_text(report.milliseconds), rate_text(report.processing_rate)
    return f"batch {report.batch_id}: {report.rows:,} records in {duration} ({rate}){lag_text}{late}"


def _point(report: BatchReport) -> BatchPoint:
    return BatchPoint(
        batch=report.batch_id,
        time=datetime.fromtimestamp(report.at, timezone.utc),
        rows=report.rows,
        input_rate=report.input_rate,
        processing_rate=report.processing_rate,
        milliseconds=report.milliseconds,
        lag=report.lag,
    )


def _print_line(_: str, line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _cell_output() -> Output | None:
    """Return a function that draws below the running cell, or None outside a kernel."""
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import publish_display_data
    except ImportError:
        return None
    if getattr(get_ipython(), "kernel", None) is None:  # type: ignore[no-untyped-call]
        return None
    display_id, is_displayed = uuid.uuid4().hex, False

    def show(picture: str, line: str) -> None:
        nonlocal is_displayed
        # Also in the metadata, which is saved: a page that is loaded again finds the output by this id.
        publish_display_data(  # type: ignore[no-untyped-call]
            {"text/html": picture, "text/plain": line},
            metadata={"display_id": display_id},
            transient={"display_id": display_id},
            update=is_displayed,
        )
        is_displayed = True

    return show
