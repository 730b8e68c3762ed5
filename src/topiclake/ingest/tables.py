"""The tables of a configuration: views, histories, and a summary of one run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructType

from topiclake.changes.order import CDC_COLUMN
from topiclake.changes.tables import current_rows
from topiclake.config.settings import Settings
from topiclake.delta import catalog
from topiclake.delta import table as delta
from topiclake.errors import StorageError
from topiclake.ingest.paused_topics import LEDGER_SCHEMA, waiting
from topiclake.local_frame import local_frame
from topiclake.sources.layout import KAFKA_COLUMN
from topiclake.storage import mount
from topiclake.storage.failures import storage_errors
from topiclake.streaming import checkpoint

#: Columns of the list of several topics.
_LIST = (
    StructType()
    .add("topic", StringType())
    .add("rows", LongType())
    .add("quarantined", LongType())
    .add("table", StringType())
)


@dataclass(frozen=True)
class TableState:
    """A Delta table at the end of a run; `path` is its name if it has one."""

    path: str
    version: int
    rows: int


@dataclass(frozen=True)
class RunSummary:
    """The result of one run of an ingest, and the current content of its tables.

    Attributes:
        query_id: Id of the streaming query, which is the same in each run with this checkpoint.
        rows_written: Rows that this run appended to the table. With `apply: upsert`, the changes that it
            merged: the newest of each key in each batch.
        quarantined: Records that this run put into quarantine, by reason.
        table: The table. For several topics, its path or name contains `{topic}`, its version is -1, and its
            rows are those of all topics.
        quarantine: The quarantine table, likewise; its version is -1 if it does not exist.
        preview: The first rows of the view; times in ISO 8601 with their zone.
    """

    query_id: str
    rows_written: int
    quarantined: dict[str, int]
    table: TableState
    quarantine: TableState
    preview: list[dict[str, Any]]

    def to_json(self, indent: int | None = None) -> str:
        """Return the summary as JSON, for the exit value of a notebook."""
        return json.dumps(asdict(self), indent=indent)

    def counts(self, spark: SparkSession) -> DataFrame:
        """Return the result as a table: `result STRING, records BIGINT, path STRING`."""
        table, quarantine = self.table, self.quarantine
        rows = [("written by this run", self.rows_written, table.path)]
        for reason, records in self.quarantined.items():
            rows.append((f"quarantined by this run: {reason}", records, quarantine.path))
        version = f", version {table.version}" if table.version >= 0 else ""
        rows.append((f"in the table{version}", table.rows, table.path))
        rows.append(("in the quarantine", quarantine.rows, quarantine.path))
        return local_frame(spark, rows, "result STRING, records BIGINT, path STRING")


def table_path(settings: Settings) -> str:
    """Return the location of the pipeline's table: its path, as Spark reads it, or its name.

    Example:
        >>> tl.table_path(settings) == f"file:{folder}/readings"
        True
    """
    return mount.resolve_table(settings.storage, settings.only_topic().pipeline.location)


def table_identifier(settings: Settings) -> str:
    """Return the pipeline's table for SQL.

    Example:
        >>> spark.sql(f"SELECT count(*) AS rows FROM {tl.table_identifier(settings)}").first()
        Row(rows=4)
    """
    return catalog.identifier(table_path(settings))


def read_table_stream(
    spark: SparkSession, settings: Settings, *, path: str | None = None, **options: str
) -> DataFrame:
    """Read a Delta table as a stream.

    Args:
        spark: The session.
        settings: The store and the pipeline.
        path: Path or name of the table; by default that of the pipeline.
        options: Options of Delta's source, such as `withEventTimeOrder="true"`.

    Example:
        >>> tl.read_table_stream(spark, settings).isStreaming
        True
    """
    location = path or settings.only_topic().pipeline.location
    return delta.read_stream(spark, mount.resolve_table(settings.storage, location), options)


def create_view(
    spark: SparkSession,
    settings: Settings,
    *,
    path: str | None = None,
    name: str | None = None,
    columns: StructType | None = None,
) -> DataFrame:
    """Create a temporary view of a Delta table, without `_kafka`, and return its rows.

    With `apply: upsert`, the view has neither deletions nor `_cdc`.

    A pipeline of several topics has a table for each, so its view lists them: `topic STRING, rows BIGINT,
    quarantined BIGINT, table STRING`. `settings.for_topic` returns the view of one of them.

    Args:
        spark: The session.
        settings: The store and the pipeline.
        path: Path or name of the table; by default that of the pipeline.
        name: Name of the view; by default that of the pipeline.
        columns: Columns of an empty view, if the table does not exist.

    Raises:
        StorageError: The table does not exist and `columns` is missing, or the storage refuses access to it.

    Example:
        >>> tl.create_view(spark, settings).count()
        4
        >>> spark.sql("SELECT sensor FROM readings WHERE celsius > 80").collect()
        [Row(sensor='boiler')]
    """
    view = name or settings.pipeline.view
    if path is None and settings.pipeline.has_several_topics:
        rows = _tables_of_topics(spark, settings)
        rows.createOrReplaceTempView(view)
        return rows
    shown = path or settings.only_topic().pipeline.location
    table = mount.resolve_table(settings.storage, shown)
    with storage_errors(settings.storage, table):
        is_table = delta.is_table(spark, table)
    if is_table:
        rows = _visible(settings, delta.read(spark, table))
    elif columns is not None:
        rows = local_frame(spark, [], columns)
    else:
        raise StorageError(
            f"there is no Delta table at {shown}" + ("" if table == shown else f" ({table})"),
            f"python -m workbench ingest {settings.name}",
            table=table,
            path=shown,
            reason="missing",
        )
    rows.createOrReplaceTempView(view)
    return rows


def table_history(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the commits of the pipeline's table, newest first.

    Returns:
        `version BIGINT, timestamp TIMESTAMP, operation STRING, rows BIGINT, batch STRING`; `batch` is the
        JSON text that Topiclake wrote into the commit.

    Example:
        >>> tl.table_history(spark, settings).orderBy("version").select("operation").first()
        Row(operation='CREATE TABLE')
    """
    return delta.history(spark, table_path(settings))


def paused_topics(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the ranges of offsets that paused topics still wait for.

    Returns:
        `topic STRING, batch_id BIGINT, partition INT, first BIGINT, last BIGINT, why STRING, paused_at
        TIMESTAMP, resumed_at TIMESTAMP, resumed_as BIGINT`; the last two are null. A row has the offsets of
        the batch `batch_id`, and after a long pause also those of batches before it.

    Example:
        >>> tl.paused_topics(spark, settings).count()
        0
    """
    ledger = mount.resolve(settings.storage, settings.pipeline.paused_path)
    missed = waiting(spark, ledger)
    if missed is None:
        return local_frame(spark, [], LEDGER_SCHEMA)
    return missed.orderBy("topic", "batch_id", "partition")


def summarize(
    spark: SparkSession,
    settings: Settings,
    query: Any,  # noqa: ANN401 (StreamingQuery, classic or Connect)
) -> RunSummary:
    """Count the rows that this run appended and quarantined, from the tables; of several topics, their sums.

    Returns:
        The written rows, the quarantined records by reason, the tables, and their first rows.

    Example:
        >>> query = tl.start_ingest(spark, settings)
        >>> tl.await_caught_up(query, settings.pipeline.trigger)
        >>> tl.summarize(spark, settings, query).rows_written
        4
    """
    of_topics = _each_topic(spark, settings)
    summaries = [_summary(spark, of_topic, query) for of_topic in of_topics]
    if not settings.pipeline.has_several_topics:
        rows = _visible(settings, delta.read(spark, table_path(settings)))
        return replace(summaries[0], preview=delta.as_json(rows.limit(5)))
    quarantined: Counter[str] = Counter()
    for summary in summaries:
        quarantined.update(summary.quarantined)
    tables, quarantines = [each.table for each in summaries], [each.quarantine for each in summaries]
    listed = [
        (each.pipeline.topic, table.rows, quarantine.rows, table.path)
        for each, table, quarantine in zip(of_topics[:5], tables, quarantines, strict=False)
    ]
    return RunSummary(
        query_id=str(query.id),
        rows_written=sum(summary.rows_written for summary in summaries),
        quarantined=dict(sorted(quarantined.items())),
        table=_sum(settings.pipeline.location, tables),
        quarantine=_sum(settings.pipeline.quarantine_path, quarantines),
        preview=[dict(zip(_LIST.names, row, strict=True)) for row in listed],
    )


def _summary(spark: SparkSession, settings: Settings, query: Any) -> RunSummary:  # noqa: ANN401 (as above)
    """Count the rows of one topic; without a preview."""
    table, quarantine = (_state(spark, settings, path) for path in _paths(settings))
    # The first record of one of several topics creates its table.
    return RunSummary(
        query_id=str(query.id),
        rows_written=_rows_of_run(spark, table.path, settings.run_id) if table.version >= 0 else 0,
        quarantined=_reasons_of_run(spark, quarantine.path, settings) if quarantine.version >= 0 else {},
        table=table,
        quarantine=quarantine,
        preview=[],
    )


def _each_topic(spark: SparkSession, settings: Settings) -> list[Settings]:
    """Return the configuration of each topic; of several, of those that the query has read."""
    if not settings.pipeline.has_several_topics:
        return [settings.only_topic()]
    path = mount.resolve(settings.storage, settings.pipeline.checkpoint_path)
    return [settings.for_topic(topic) for topic in sorted(checkpoint.position(spark, path) or {})]


def _tables_of_topics(spark: SparkSession, settings: Settings) -> DataFrame:
    listed = []
    for each in _each_topic(spark, settings):
        rows, quarantined = (_rows(spark, each, path) or 0 for path in _paths(each))
        listed.append((each.pipeline.topic, rows, quarantined, table_path(each)))
    return local_frame(spark, listed, _LIST)


def _visible(settings: Settings, rows: DataFrame) -> DataFrame:
    """Return the rows and columns of a table that readers want."""
    if settings.pipeline.changes is not None and CDC_COLUMN in rows.columns:
        return current_rows(rows)
    return rows.drop(KAFKA_COLUMN)


def _rows_of_run(spark: SparkSession, path: str, run_id: str) -> int:
    of_run = F.get_json_object("batch", "$.run") == run_id
    # The rows of a MERGE include those that it did not change.
    merged = F.get_json_object("batch", "$.changes.merged").cast("bigint")
    rows = F.sum(F.coalesce(merged, "rows"))
    return int(delta.history(spark, path).where(of_run).agg(F.coalesce(rows, F.lit(0))).collect()[0][0])


def _reasons_of_run(spark: SparkSession, path: str, settings: Settings) -> dict[str, int]:
    since = F.lit(settings.loaded_at).cast("timestamp")
    rows = delta.read(spark, path).where(
        (F.col("pipeline") == settings.name) & (F.col("quarantined_at") >= since)
    )
    return {row["reason"]: row["count"] for row in rows.groupBy("reason").count().orderBy("reason").collect()}


def _paths(settings: Settings) -> tuple[str, str]:
    """Return the table of one topic, and its quarantine."""
    return table_path(settings), mount.resolve_table(settings.storage, settings.pipeline.quarantine_path)


def _rows(spark: SparkSession, settings: Settings, path: str) -> int | None:
    """Count the rows of a table that readers see; None if it does not exist."""
    return _visible(settings, delta.read(spark, path)).count() if delta.is_table(spark, path) else None


def _state(spark: SparkSession, settings: Settings, path: str) -> TableState:
    rows = _rows(spark, settings, path)
    if rows is None:
        return TableState(path, -1, 0)
    return TableState(path, delta.latest_version(spark, path), rows)


def _sum(path: str, states: Iterable[TableState]) -> TableState:
    return TableState(path, -1, sum(state.rows for state in states))
