"""Watches every query of a session, and keeps what it reports, from a thread of its own."""

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
from topiclake.streaming import batch_counts
from topiclake.streaming.failure import query_failure

KEEP_SECONDS = 30.0
FORGET_SECONDS = 3600.0
KEPT_HEADS = 200
#: More events than a driver has in minutes: should the file be locked for so long, the oldest are lost.
WAITING = 10_000
_log = logging.getLogger("topiclake.monitoring")

Event = Callable[["_Writer"], None]


class QueryMonitor(StreamingQueryListener):
    """Keeps what the queries of a session report.

    A listener's calls hold up the session's other listeners, so each only hands its event on.

    Args:
        file: The SQLite file (`monitoring.store.Store`).
        source: Who starts the queries: a notebook's name, for one.
        redact: Takes secrets out of an error's text.
        days: For how long reports are kept.
        jvm: The process id of a JVM of its own, with whose end the queries end.
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
        """Spark calls it before `start` returns."""
        run_id, query_id = str(event.runId), str(event.id)
        run, at = Run(run_id, query_id, event.name or query_id, self._source, *self._processes), time.time()
        self._running.add(run_id)
        self._tell(lambda writer: writer.begin(run, at))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Spark calls it behind each micro-batch."""
        self.take(event.progress.json)

    def take(self, text: str) -> None:
        """Take a micro-batch's report, as Spark's JSON."""
        at = time.time()
        self._tell(lambda writer: writer.add(read_report(text), at))

    @cached_property
    def _jlistener(self) -> Any:  # noqa: ANN401 - what PySpark registers in its JVM
        # Not there on Spark Connect, which never asks for this.
        from topiclake.monitoring.json_listener import json_listener

        return json_listener(self, self.take)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Spark calls it while nothing comes."""
        run_id, at = str(event.runId), time.time()
        self._tell(lambda writer: writer.hear(run_id, at))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Spark calls it at the end of a query."""
        run_id, text, at = str(event.runId), event.exception, time.time()
        self._running.discard(run_id)
        self._tell(lambda writer: writer.end(run_id, text, at, self._redact))

    def await_ends(self, active: Set[str], seconds: float = 5.0) -> None:
        """Wait until the end of each query that is not `active` was told: Spark's events come behind it."""
        deadline = time.monotonic() + seconds
        while self._running - active and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self, seconds: float = 5.0) -> None:
        """Write what is still to be written, and end; queries that still run are shown as ended."""
        self._tell(None)
        self._writer.join(seconds)

    def _tell(self, event: Event | None) -> None:
        try:
            self._events.put_nowait(event)
        except queue.Full:
            _log.warning("a report of a streaming query was lost: the file of reports is not written")


class _Writer(threading.Thread):
    """Writes events into the store; what it cannot write costs the query nothing."""

    def __init__(self, file: Path, events: queue.Queue[Event | None], days: float) -> None:
        super().__init__(name="topiclake monitoring", daemon=True)
        self._store, self._events, self._days = Store(file), events, days
        self._runs: dict[str, Run] = {}
        self._heads: dict[tuple[str, int], list[Head]] = {}
        self._counts = batch_counts.CountSubscription()
        self._kept = self._forgot = 0.0
        self._problem = ""

    def run(self) -> None:
        """Write until `None` comes."""
        while True:
            try:
                event = self._events.get(timeout=KEEP_SECONDS)
            except queue.Empty:
                event = _nothing
            try:
                if event is None:
                    self._end_all(time.time())
                    return
                event(self)
                self._look_after(time.time())
                self._problem = ""
            except Exception as error:  # noqa: BLE001 - whatever it is, the query goes on
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
            # A topic that was created again, or another broker's, begins anew. Heads are Spark's at the
            # batch's beginning.
            known = [
                head for head in self._heads[partition] if head[1] <= progress.head and head[0] < report.at
            ]
            self._heads[partition] = downsample([*known, (report.at, progress.head)], KEPT_HEADS)
            lags[progress] = lag(progress.end, self._heads[partition], at)
        taken = self._counts.take(run.query_id, report.batch_id)
        counts = [count for counts in taken.values() for count in counts]
        if counts and not report.is_exact:
            report = report.with_rows(sum(count.rows for count in counts))
        self._store.add(run, report, lags, counts, at)

    def end(self, run_id: str, text: str | None, at: float, redact: Callable[[str], str]) -> None:
        """Note an end, with the cause that `failure.query_failure` finds in the text."""
        run = self._runs.pop(run_id, None)
        error, remedy = None, ""
        if text:
            failure = query_failure(run.name if run else "", text)
            error, remedy = redact(failure.cause), failure.remedy
        if run:
            # Spark reports no batch that fails behind a commit, nor one that it finishes after a crash.
            self._store.count(run.query_id, self._counts.take(run.query_id, sys.maxsize), at)
        self._store.end(run_id, at, error, remedy)

    def hear(self, run_id: str, at: float) -> None:
        """Note that nothing comes."""
        self._store.hear(run_id, at)

    def _end_all(self, at: float) -> None:
        self._counts.close()
        try:
            # Spark tells nothing of queries that end with their session.
            for run_id in self._runs:
                self._store.end(run_id, at, None, "")
            self._keep()
        finally:
            self._store.close()

    def _warn(self, problem: str) -> None:
        # Once, and not with each event.
        if problem != self._problem:
            self._problem = problem
            _log.warning("what streaming queries report is not kept: %s", problem)

    def _look_after(self, now: float) -> None:
        if now - self._kept >= KEEP_SECONDS:
            self._keep()
            self._kept = now
        if now - self._forgot >= FORGET_SECONDS:
            self._store.forget(now - self._days * 86400)
            self._forgot = now

    def _keep(self) -> None:
        if self._heads:
            self._store.keep_heads(self._heads)


def _process(number: int | None) -> tuple[int, float]:
    process = psutil.Process(number)
    return process.pid, process.create_time()


def _nothing(writer: _Writer) -> None:
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
    """Keep what all streaming queries of a session report: progress, lag, counts, end.

    Args:
        spark: The session; each query that it starts from now on is watched.
        file: An SQLite file on a local disk; several drivers may share it. `python -m workbench dashboard`
            shows it.
        source: Who starts the queries; the application's name by default.
        redact: Takes secrets out of an error's text.
        days: For how long reports are kept.
        jvm: The process id of a JVM of its own, with whose end the queries end as with this process's.

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
    try:
        spark.streams.addListener(monitor)
    except BaseException:
        monitor.close()
        raise
    return monitor


def stop_monitoring(spark: SparkSession, monitor: QueryMonitor) -> None:
    """End what `monitor_queries` began, with the last reports of queries that have ended.

    Example:
        >>> monitor = tl.monitor_queries(spark, folder / "other_reports.db")
        >>> tl.stop_monitoring(spark, monitor)
    """
    monitor.await_ends({str(query.runId) for query in spark.streams.active})
    spark.streams.removeListener(monitor)
    monitor.close()
