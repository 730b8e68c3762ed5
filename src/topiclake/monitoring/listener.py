"""Listener for all queries of a session, whose reports a separate thread stores."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Set
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from topiclake.monitoring.lag import Head, downsample, lag
from topiclake.monitoring.reports import BatchReport, read_report
from topiclake.monitoring.store import Run, Store
from topiclake.session import is_connect
from topiclake.streaming import batch_counts
from topiclake.streaming.failure import query_failure

SAVE_SECONDS = 30.0
FORGET_SECONDS = 3600.0
MAX_HEADS = 200
#: Most waiting events, more than a driver has in minutes. If the file is locked for longer, new events are
#: lost.
WAITING = 10_000
_log = logging.getLogger("topiclake.monitoring")

Event = Callable[["_Writer"], None]


class QueryMonitor(StreamingQueryListener):
    """Stores the reports of a session's queries.

    A listener's calls delay the session's other listeners, so each call only queues its event.

    Args:
        file: The SQLite file (`monitoring.store.Store`).
        source: Name of the program that starts the queries, such as a notebook's name.
        redact: Removes secrets from an error's text.
        days: For how long reports are kept.
        jvm: The process id of a separate JVM; when it ends, the queries end.
    """

    def __init__(
        self, file: Path, source: str, redact: Callable[[str], str], days: float, jvm: int | None = None
    ) -> None:
        self._events: queue.Queue[Event | None] = queue.Queue(WAITING)
        self._redact = redact
        self._processes: tuple[int, float, int, float] = (
            *_process(None),
            *(_process(jvm) if jvm else (0, 0.0)),
        )
        self._source = source
        self._running: set[str] = set()
        self._writer = _Writer(file, self._events, days)
        self._writer.start()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Queue a start; Spark calls this before `start` returns."""
        run_id, query_id = str(event.runId), str(event.id)
        run, at = Run(run_id, query_id, event.name or query_id, self._source, *self._processes), time.time()
        self._running.add(run_id)
        self._enqueue(lambda writer: writer.begin(run, at))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Queue a micro-batch's report; Spark calls this after each micro-batch."""
        self.enqueue_report(event.progress.json)

    def enqueue_report(self, text: str) -> None:
        """Queue a micro-batch's report, as Spark's JSON."""
        at = time.time()
        self._enqueue(lambda writer: writer.add(read_report(text), at))

    @cached_property
    def _jlistener(self) -> Any:  # noqa: ANN401 - what PySpark registers in its JVM
        # This import fails on Spark Connect, which never asks for this property.
        from topiclake.monitoring.json_listener import json_listener

        return json_listener(self, self.enqueue_report)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Queue that a query is idle; Spark calls this while no records come."""
        run_id, at = str(event.runId), time.time()
        self._enqueue(lambda writer: writer.heartbeat(run_id, at))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Queue an end; Spark calls this at the end of a query."""
        run_id, text, at = str(event.runId), event.exception, time.time()
        self._running.discard(run_id)
        self._enqueue(lambda writer: writer.end(run_id, text, at, self._redact))

    def await_ends(self, active: Set[str], seconds: float = 5.0) -> None:
        """Wait until Spark has reported the end of each query that is not `active`: its events come later."""
        deadline = time.monotonic() + seconds
        while self._running - active and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self, seconds: float = 5.0) -> None:
        """Write the events that wait, and end the thread; queries that still run are shown as ended."""
        self._enqueue(None)
        self._writer.join(seconds)

    def _enqueue(self, event: Event | None) -> None:
        try:
            self._events.put_nowait(event)
        except queue.Full:
            _log.warning("a report of a streaming query was lost: the file of reports is not written")


class _Writer(threading.Thread):
    """Writes events into the store; an error while writing does not affect the query."""

    def __init__(self, file: Path, events: queue.Queue[Event | None], days: float) -> None:
        super().__init__(name="topiclake monitoring", daemon=True)
        self._store, self._events, self._days = Store(file), events, days
        self._runs: dict[str, Run] = {}
        self._began: dict[str, float] = {}
        self._heads: dict[tuple[str, int], list[Head]] = {}
        self._counts = batch_counts.CountSubscription()
        self._saved_at = self._forgot_at = 0.0
        self._problem = ""

    def run(self) -> None:
        """Write events until the event `None`."""
        while True:
            try:
                event = self._events.get(timeout=SAVE_SECONDS)
            except queue.Empty:
                event = _do_nothing
            try:
                if event is None:
                    self._end_all(time.time())
                    return
                event(self)
                self._maintain(time.time())
                self._problem = ""
            except Exception as error:  # noqa: BLE001 - no error may affect the query
                self._warn(str(error))
                if event is None:
                    return

    def begin(self, run: Run, at: float) -> None:
        """Note a start."""
        self._runs[run.run_id] = run
        self._store.begin(run, at)

    def add(self, report: BatchReport, at: float) -> None:
        """Note a micro-batch."""
        run = self._runs.get(report.run_id)
        if run is None:  # it was started before it was watched
            return
        lags = {}
        for progress in report.partitions:
            partition = progress.topic, progress.partition
            if partition not in self._heads:
                self._heads[partition] = self._store.heads(*partition)
            # A topic that was created again, or is on another broker, starts with new heads. Spark reads
            # the heads at the batch's beginning.
            heads = [
                head for head in self._heads[partition] if head[1] <= progress.head and head[0] < report.at
            ]
            self._heads[partition] = downsample([*heads, (report.at, progress.head)], MAX_HEADS)
            lags[progress] = lag(progress.end, self._heads[partition], at)
        by_batch = self._counts.pop(run.query_id, report.batch_id)
        counts = [count for counts in by_batch.values() for count in counts]
        if counts and not report.is_exact:
            before = self._began.get(report.run_id)
            report = report.with_rows(sum(count.rows for count in counts), before)
        self._began[report.run_id] = report.at
        self._store.add(run, report, lags, counts, at)

    def end(self, run_id: str, text: str | None, at: float, redact: Callable[[str], str]) -> None:
        """Note an end, with the cause that `failure.query_failure` finds in the text."""
        run = self._runs.pop(run_id, None)
        self._began.pop(run_id, None)
        error, remedy = None, ""
        if text:
            failure = query_failure(run.name if run else "", text)
            error, remedy = redact(failure.cause), failure.remedy
        if run:
            # Spark reports neither a batch that fails after a commit nor one that it finishes after a crash.
            self._store.count(run.query_id, self._counts.pop(run.query_id, sys.maxsize), at)
        self._store.end(run_id, at, error, remedy)

    def heartbeat(self, run_id: str, at: float) -> None:
        """Note that a query is idle."""
        self._store.heartbeat(run_id, at)

    def _end_all(self, at: float) -> None:
        self._counts.close()
        try:
            # Spark does not report the end of queries that end with their session.
            for run_id in self._runs:
                self._store.end(run_id, at, None, "")
            self._save_heads()
        finally:
            self._store.close()

    def _warn(self, problem: str) -> None:
        # A problem is logged once, not with each event.
        if problem != self._problem:
            self._problem = problem
            _log.warning("what streaming queries report is not kept: %s", problem)

    def _maintain(self, now: float) -> None:
        if now - self._saved_at >= SAVE_SECONDS:
            self._save_heads()
            self._saved_at = now
        if now - self._forgot_at >= FORGET_SECONDS:
            self._store.forget(now - self._days * 86400)
            self._forgot_at = now

    def _save_heads(self) -> None:
        if self._heads:
            self._store.save_heads(self._heads)


def _process(number: int | None) -> tuple[int, float]:
    process = psutil.Process(number)
    return process.pid, process.create_time()


def _do_nothing(writer: _Writer) -> None:
    """No event came."""


def monitor_queries(
    spark: SparkSession,
    file: str | Path,
    *,
    source: str = "",
    redact: Callable[[str], str] = str,
    days: float = 7.0,
    jvm: int | None = None,
) -> QueryMonitor:
    """Store the reports of all streaming queries of a session: progress, lag, counts, end.

    Args:
        spark: The session; each query that it starts from now on is watched.
        file: An SQLite file on a local disk; several drivers may share it. `python -m workbench dashboard`
            shows it.
        source: Name of the program that starts the queries; the application's name by default.
        redact: Removes secrets from an error's text.
        days: For how long reports are kept.
        jvm: The process id of a separate JVM. The queries end when it or this process ends.

    Returns:
        The listener; `stop_monitoring` ends it.

    Raises:
        sqlite3.Error: The file cannot be used.

    Example:
        >>> monitor = tl.monitor_queries(spark, folder / "reports.db")
        >>> query = tl.start_ingest(spark, settings)
        >>> tl.await_caught_up(query, "availableNow")
        >>> tl.stop_monitoring(spark, monitor)
    """
    name = source or str(spark.conf.get("spark.app.name", ""))
    monitor = QueryMonitor(Path(file), name, redact, days, jvm)
    if is_connect(spark):
        _log.warning("on Spark Connect, counts of rows are missing: micro-batches run in another process")
    try:
        spark.streams.addListener(monitor)
    except BaseException:
        monitor.close()
        raise
    return monitor


def stop_monitoring(spark: SparkSession, monitor: QueryMonitor) -> None:
    """Stop the listener of `monitor_queries`, after the last reports of queries that have ended.

    Example:
        >>> monitor = tl.monitor_queries(spark, folder / "other_reports.db")
        >>> tl.stop_monitoring(spark, monitor)
    """
    monitor.await_ends({str(query.runId) for query in spark.streams.active})
    spark.streams.removeListener(monitor)
    monitor.close()
