"""Rows into a table of MariaDB, MySQL or PostgreSQL, by their keys, each micro-batch exactly once.

A micro-batch is one transaction. It locks the writer's row in `topiclake_batches`, upserts the rows, writes
rejected rows to `<table>_quarantine`, and stores the number of the batch. If a batch is repeated after a
crash or by a second driver, its number is already stored, and the batch is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery
from sqlalchemy import Connection, delete, select, update
from sqlalchemy.dialects import mysql, postgresql

from topiclake.config.settings import Settings
from topiclake.sinks.jdbc import checks as jdbc_checks
from topiclake.sinks.jdbc import errors as jdbc_errors
from topiclake.sinks.jdbc import tables as jdbc_tables
from topiclake.sinks.jdbc.connection import Database, transaction
from topiclake.sinks.jdbc.rows import UpsertTransaction
from topiclake.sinks.jdbc.tables import TableSchema
from topiclake.storage import mount
from topiclake.streaming import checkpoint, queries
from topiclake.streaming.sink import Sink, SinkBatch

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpsertBatches(Sink):
    """Writes micro-batches into a table of a database; can be pickled, for Spark Connect.

    Attributes:
        pipeline: Its name.
        database: The database of the table, with the login.
        shape: The table and its columns.
        replaces: Whether a batch replaces all rows of the table.
    """

    pipeline: str
    database: Database
    shape: TableSchema
    replaces: bool

    @property
    def label(self) -> str:
        """The sink's name in errors."""
        return f"pipeline {self.pipeline}, table {self.shape.table}"

    def destination(self) -> str:
        """Return the database and the table."""
        return f"{self.database.address}, table {self.shape.table}"

    def write(self, rows: DataFrame, batch: SinkBatch) -> None:
        """Write a batch, unless the database has it."""
        writer = f"{batch.query_id}/{self.shape.table}"

        def attempt() -> bool:
            with transaction(self.database) as connection:
                return _write_once(
                    connection, self, UpsertTransaction(connection, self.shape, writer, batch.number), rows
                )

        retry_seconds = self.database.retry_seconds
        if not jdbc_errors.persist(self.database, self.label, attempt, retry_seconds=retry_seconds):
            _LOG.info("%s: batch %d is written already", self.label, batch.number)
            # Spark commits the state of an aggregation only if all partitions are computed, and fails the
            # query otherwise.
            rows.write.format("noop").mode("overwrite").save()


def start_upsert(
    rows: DataFrame,
    settings: Settings,
    *,
    table: str,
    keys: Sequence[str],
    checkpoint_path: str,
    output_mode: str = "update",
) -> StreamingQuery:
    """Start upserting a stream's rows into a database, with the pipeline's trigger; see docs/sinks.md.

    Args:
        rows: A streaming DataFrame of plain columns, such as `zip STRING, count BIGINT`. A micro-batch has
            at most one row for the same keys.
        settings: Its section `database`, the trigger and the pipeline's name.
        table: Created if it does not exist, with the rows' columns and `keys` as its primary key. An existing
            table needs these columns, and a unique index over exactly `keys`.
        keys: Columns that identify a row. A row whose keys exist in the table updates that row.
        checkpoint_path: A dedicated folder.
        output_mode: `update`, or `append`: rows are added and updated. `complete`: each batch of an
            aggregation replaces all rows of the table.

    Returns:
        The running query; `await_caught_up` waits for it.

    Raises:
        ConfigError: There is no section `database`; a name, type, key or mode cannot be used; or the existing
            table does not fit. Within a micro-batch: two of its rows have the same keys.
        DatabaseError: The database cannot be used. Within a micro-batch, transient errors are first retried
            for `retry_seconds`.
        StorageError: The checkpoint cannot be written.

    Example:
        >>> counts = tl.read_values(spark, settings).groupBy("sensor").count()
        >>> query = tl.start_upsert(
        ...     counts,
        ...     settings,
        ...     table="readings_per_sensor",
        ...     keys=["sensor"],
        ...     checkpoint_path="/mnt/datalake/checkpoints/readings_per_sensor",
        ... )
        >>> tl.await_caught_up(query, "availableNow")
    """
    queries.require_output_mode(output_mode, default="update")
    location = mount.resolve(settings.storage, checkpoint_path)
    mount.require_writable(location)
    sink = upsert_batches(rows, settings, table=table, keys=keys, replaces=output_mode == "complete")
    return queries.start_sink(
        rows,
        settings,
        sink,
        name=f"{settings.name}_to_{table}",
        location=location,
        output_mode=output_mode,
    )


def upsert_batches(
    rows: DataFrame,
    settings: Settings,
    *,
    table: str,
    keys: Sequence[str],
    replaces: bool = False,
) -> UpsertBatches:
    """Return a sink of `start_sinks` that upserts each micro-batch; its tables are created and checked first.

    Args:
        rows: As for `start_upsert`, for its columns.
        settings: As for `start_upsert`.
        table: As for `start_upsert`.
        keys: As for `start_upsert`.
        replaces: Whether a batch replaces all rows of the table.

    Raises:
        ConfigError, DatabaseError: As `start_upsert`.

    Example:
        >>> counts = tl.read_values(spark, settings).groupBy("sensor").count()
        >>> sinks = {"database": tl.upsert_batches(counts, settings, table="counted", keys=["sensor"])}
    """
    database = Database.from_settings(settings)
    shape = TableSchema.of(database.kind, table, rows.schema, keys)
    target = UpsertBatches(settings.name, database, shape, replaces)

    def prepare() -> None:
        for needed in (jdbc_tables.batches(shape.kind), jdbc_tables.quarantine(shape.kind, table)):
            jdbc_tables.create(database, needed)
        if not jdbc_tables.create(database, shape.typed()):
            with transaction(database) as connection:
                jdbc_checks.require_fitting(connection, shape)

    # One try, since a user waits.
    jdbc_errors.persist(database, target.label, prepare, retry_seconds=0)
    return target


def _write_once(
    connection: Connection, target: UpsertBatches, writing: UpsertTransaction, rows: DataFrame
) -> bool:
    """Write a batch within a transaction, unless the table has it; return whether it was written."""
    batches = jdbc_tables.batches(target.shape.kind)
    is_writer = batches.c.writer == writing.writer
    _enter(connection, target.shape.kind, writing.writer)
    # Locked until the end: a second driver with this checkpoint waits, and then finds the batch done.
    last_batch = connection.execute(
        select(batches.c.batch_id).where(is_writer).with_for_update()
    ).scalar_one()
    if last_batch >= writing.batch_id:
        return False
    if target.replaces:
        connection.execute(delete(target.shape.plain()))
    writing.write(rows)
    connection.execute(update(batches).where(is_writer).values(batch_id=writing.batch_id))
    if writing.refused:
        _LOG.warning(
            "%s: batch %d has %d rows in the quarantine", target.label, writing.batch_id, writing.refused
        )
    return True


def _enter(connection: Connection, kind: str, writer: str) -> None:
    """Make sure that a writer has a row; of two transactions at once, one waits for the other."""
    batches = jdbc_tables.batches(kind)
    first = {"writer": writer, "batch_id": checkpoint.NONE}
    if kind == "postgresql":
        connection.execute(postgresql.insert(batches).values(first).on_conflict_do_nothing())
    else:
        entered = mysql.insert(batches).values(first)
        connection.execute(entered.on_duplicate_key_update(writer=entered.inserted.writer))
