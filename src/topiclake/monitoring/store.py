"""Reports of queries, in an SQLite file that several drivers write and a dashboard reads."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from topiclake.monitoring.lag import Head, Lag
from topiclake.monitoring.reports import BatchReport, PartitionReport
from topiclake.streaming.batch_counts import TableCount

BUSY_SECONDS = 30.0
_OF_QUERIES = ("batches", "totals", "partitions", "tables", "commits", "reasons", "reason_batches")
#: Changes with the tables.
_LAYOUT = 2
TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, query_id TEXT NOT NULL, name TEXT NOT NULL, source TEXT NOT NULL,
    process INTEGER NOT NULL, process_began REAL NOT NULL, jvm INTEGER NOT NULL, jvm_began REAL NOT NULL,
    began REAL NOT NULL, heard REAL NOT NULL, ended REAL, error TEXT, remedy TEXT);
CREATE INDEX IF NOT EXISTS runs_of_query ON runs (query_id, began);
CREATE TABLE IF NOT EXISTS batches (
    query_id TEXT NOT NULL, run_id TEXT NOT NULL, batch_id INTEGER NOT NULL, at REAL NOT NULL,
    rows INTEGER NOT NULL, input_rate REAL NOT NULL, processing_rate REAL NOT NULL,
    milliseconds INTEGER NOT NULL, phases TEXT NOT NULL, late_rows INTEGER NOT NULL,
    state_rows INTEGER NOT NULL, state_bytes INTEGER NOT NULL, lag_records INTEGER, lag_seconds REAL,
    sink TEXT NOT NULL, PRIMARY KEY (query_id, batch_id));
CREATE INDEX IF NOT EXISTS batches_by_time ON batches (at);
CREATE TABLE IF NOT EXISTS totals (
    query_id TEXT PRIMARY KEY, rows INTEGER NOT NULL, late_rows INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS partitions (
    query_id TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, end INTEGER NOT NULL,
    lag_records INTEGER NOT NULL, lag_seconds REAL NOT NULL, at_least INTEGER NOT NULL,
    PRIMARY KEY (query_id, topic, partition));
CREATE TABLE IF NOT EXISTS heads (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, known TEXT NOT NULL, PRIMARY KEY (topic, partition));
CREATE TABLE IF NOT EXISTS tables (
    query_id TEXT NOT NULL, path TEXT NOT NULL, is_quarantine INTEGER NOT NULL, rows INTEGER NOT NULL,
    committed REAL NOT NULL, batch_id INTEGER NOT NULL, folder TEXT NOT NULL,
    PRIMARY KEY (query_id, path));
CREATE TABLE IF NOT EXISTS commits (
    query_id TEXT NOT NULL, path TEXT NOT NULL, writer TEXT NOT NULL, batch_id INTEGER NOT NULL,
    PRIMARY KEY (query_id, path, writer));
CREATE TABLE IF NOT EXISTS reasons (
    query_id TEXT NOT NULL, path TEXT NOT NULL, reason TEXT NOT NULL, rows INTEGER NOT NULL,
    PRIMARY KEY (query_id, path, reason));
CREATE TABLE IF NOT EXISTS reason_batches (
    query_id TEXT NOT NULL, path TEXT NOT NULL, reason TEXT NOT NULL, batch_id INTEGER NOT NULL,
    at REAL NOT NULL, rows INTEGER NOT NULL, PRIMARY KEY (query_id, reason, batch_id, path));
CREATE INDEX IF NOT EXISTS reason_batches_by_time ON reason_batches (at);
"""


@dataclass(frozen=True)
class Run:
    """One start of a query, and the process that runs it.

    Attributes:
        run_id: Spark's, new with each start.
        query_id: Spark's, the checkpoint's.
        name: The query's name, or its id.
        source: Name of the notebook or the application that started it.
        process: The driver's process id.
        process_began: When that process began, in seconds since 1970: ids are used again.
        jvm: The process id of its separate JVM, or 0 if it has none.
        jvm_began: As `process_began`.
    """

    run_id: str
    query_id: str
    name: str
    source: str
    process: int
    process_began: float
    jvm: int = 0
    jvm_began: float = 0.0


class Store:
    """The file; every method is one transaction. Not for several threads.

    Args:
        file: Created if it does not exist, for its owner only: error texts may contain values of records.

    Raises:
        sqlite3.Error: The file cannot be used.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
        self._database = sqlite3.connect(
            file, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._database.row_factory = sqlite3.Row
        # A power cut may lose the newest rows, but not the file; nothing waits for the disk.
        # SQLite does not wait for the change to WAL, which two processes may want at once.
        with file.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._prepare()

    def _prepare(self) -> None:
        """Create the tables; tables of another version of Topiclake are dropped, as reports may be lost."""
        (layout,) = self._database.execute("PRAGMA user_version").fetchone()
        if layout != _LAYOUT:
            names = self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")
            drops = "".join(f"DROP TABLE {table['name']};" for table in names)
            self._database.executescript(f"BEGIN; {drops} PRAGMA user_version = {_LAYOUT}; COMMIT;")
        self._database.executescript(TABLES)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def begin(self, run: Run, at: float) -> None:
        """Note that a query has started."""
        with self._writing() as database:
            _begin(database, run, at)

    def heartbeat(self, run_id: str, at: float) -> None:
        """Note that a query has reported: a batch, or that it is idle."""
        with self._writing() as database:
            database.execute("UPDATE runs SET heard = ? WHERE run_id = ?", (at, run_id))

    def end(self, run_id: str, at: float, error: str | None, remedy: str) -> None:
        """Note that a query has ended, and why when it failed."""
        with self._writing() as database:
            database.execute(
                "UPDATE runs SET ended = ?, error = ?, remedy = ? WHERE run_id = ?",
                (at, error, remedy, run_id),
            )

    def add(
        self,
        run: Run,
        report: BatchReport,
        lags: Mapping[PartitionReport, Lag],
        counts: Iterable[TableCount],
        at: float,
    ) -> None:
        """Store a micro-batch; a batch that is repeated after a crash replaces its first attempt."""
        with self._writing() as database:
            # Its start may have come while the file was locked.
            _begin(database, run, at)
            database.execute("UPDATE runs SET heard = ? WHERE run_id = ?", (at, run.run_id))
            _add_to_totals(database, run.query_id, report)
            database.execute(
                "INSERT OR REPLACE INTO batches VALUES (:query_id, :run_id, :batch_id, :at, :rows,"
                " :input_rate, :processing_rate, :milliseconds, :phases, :late_rows, :state_rows,"
                " :state_bytes, :lag_records, :lag_seconds, :sink)",
                _batch(run, report, lags),
            )
            database.executemany(
                "INSERT OR REPLACE INTO partitions VALUES (:query_id, :topic, :partition, :end, :records,"
                " :seconds, :at_least)",
                [
                    {"query_id": run.query_id, **asdict(partition), **asdict(lag)}
                    for partition, lag in lags.items()
                ],
            )
            for count in counts:
                _add_count(database, run.query_id, report.batch_id, count, at)

    def count(self, query_id: str, counts: Mapping[int, Iterable[TableCount]], at: float) -> None:
        """Store the table counts of batches that have no report, by batch."""
        with self._writing() as database:
            for batch_id, of_batch in counts.items():
                for count in of_batch:
                    _add_count(database, query_id, batch_id, count, at)

    def heads(self, topic: str, partition: int) -> list[Head]:
        """Return the known heads of a partition, the oldest first."""
        sql = "SELECT known FROM heads WHERE topic = ? AND partition = ?"
        newest = self._database.execute(sql, (topic, partition)).fetchone()
        return [(at, head) for at, head in json.loads(newest[0])] if newest else []

    def save_heads(self, heads: Mapping[tuple[str, int], list[Head]]) -> None:
        """Store the heads of partitions, for queries that start later."""
        with self._writing() as database:
            database.executemany(
                "INSERT OR REPLACE INTO heads VALUES (?, ?, ?)",
                [
                    (topic, partition, json.dumps(partition_heads))
                    for (topic, partition), partition_heads in heads.items()
                ],
            )

    def forget(self, before: float) -> None:
        """Delete older batches and runs, and the data of queries without a run."""
        with self._writing() as database:
            database.execute("DELETE FROM batches WHERE at < ?", (before,))
            database.execute("DELETE FROM reason_batches WHERE at < ?", (before,))
            database.execute("DELETE FROM runs WHERE coalesce(ended, heard) < ?", (before,))
            delete = "DELETE FROM {} WHERE query_id NOT IN (SELECT query_id FROM runs)"
            for table in _OF_QUERIES:
                database.execute(delete.format(table))

    def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """Return the rows of a SELECT, each by column names."""
        return [dict(row) for row in self._database.execute(sql, values)]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


def _begin(database: sqlite3.Connection, run: Run, at: float) -> None:
    database.execute(
        "INSERT OR IGNORE INTO runs (run_id, query_id, name, source, process, process_began, jvm, jvm_began,"
        " began, heard) VALUES (:run_id, :query_id, :name, :source, :process, :process_began, :jvm,"
        " :jvm_began, :at, :at)",
        {**asdict(run), "at": at},
    )


def _batch(run: Run, report: BatchReport, lags: Mapping[PartitionReport, Lag]) -> dict[str, object]:
    """Return the values of a row of `batches`, by column."""
    return vars(report) | {
        "query_id": run.query_id,
        "run_id": run.run_id,
        "phases": json.dumps(dict(report.phases)),
        "lag_records": sum(lag.records for lag in lags.values()) if lags else None,
        "lag_seconds": max(lag.seconds for lag in lags.values()) if lags else None,
    }


def _add_to_totals(database: sqlite3.Connection, query_id: str, report: BatchReport) -> None:
    # Totals only grow, also when batches are deleted, as Prometheus expects it of a counter.
    existing = "SELECT 1 FROM batches WHERE query_id = ? AND batch_id = ?"
    if database.execute(existing, (query_id, report.batch_id)).fetchone():
        return
    database.execute(
        "INSERT INTO totals VALUES (?, ?, ?) ON CONFLICT (query_id) DO UPDATE SET"
        " rows = rows + excluded.rows, late_rows = late_rows + excluded.late_rows",
        (query_id, report.rows, report.late_rows),
    )


def _add_count(
    database: sqlite3.Connection, query_id: str, batch_id: int, count: TableCount, at: float
) -> None:
    if count.writer is not None and not _is_new(database, query_id, batch_id, count):
        return
    reasons, committed = (count.reasons or {}).items(), at if count.rows else 0.0
    database.execute(
        "INSERT INTO tables VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (query_id, path) DO UPDATE SET"
        " rows = rows + excluded.rows, batch_id = excluded.batch_id, folder = excluded.folder,"
        " committed = max(committed, excluded.committed)",
        (
            query_id,
            count.path,
            count.is_quarantine,
            count.rows,
            committed,
            batch_id,
            count.folder or count.path,
        ),
    )
    database.executemany(
        "INSERT INTO reasons VALUES (?, ?, ?, ?) ON CONFLICT (query_id, path, reason) DO UPDATE SET"
        " rows = rows + excluded.rows",
        [(query_id, count.path, reason, rows) for reason, rows in reasons],
    )
    # The counts of a resumed topic's older batches come with the newest batch, and are added.
    database.executemany(
        "INSERT INTO reason_batches VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (query_id, path, reason, batch_id)"
        " DO UPDATE SET rows = rows + excluded.rows, at = excluded.at",
        [(query_id, count.path, reason, batch_id, at, rows) for reason, rows in reasons],
    )


def _is_new(database: sqlite3.Connection, query_id: str, batch_id: int, count: TableCount) -> bool:
    """Note a commit, and return whether it is new.

    A writer commits each batch once, in order. But its commit is reported again if the batch is repeated
    after a crash, or from a restored checkpoint.
    """
    noted = database.execute(
        "INSERT INTO commits VALUES (?, ?, ?, ?) ON CONFLICT (query_id, path, writer) DO UPDATE SET"
        " batch_id = excluded.batch_id WHERE excluded.batch_id > batch_id",
        (query_id, count.path, count.writer, batch_id),
    )
    return noted.rowcount == 1
