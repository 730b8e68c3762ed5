"""Changes of keyed rows into a Delta table: each once, in the order of their source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from topiclake.changes import tables
from topiclake.changes.batch import ChangeTarget
from topiclake.changes.rows import ChangeRows
from topiclake.changes.rules import ChangeRules, names
from topiclake.config import table_name
from topiclake.config.pipeline import QUARANTINE
from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.errors import ConfigError
from topiclake.sinks.names import require_name
from topiclake.sinks.start import table_of_sink
from topiclake.storage import mount
from topiclake.storage.failures import storage_errors
from topiclake.streaming import queries
from topiclake.streaming.sink import Sink, SinkBatch

#: The time that the table keeps a deletion, unless `purge_changes` has another one.
RETENTION_DAYS = 30


@dataclass(frozen=True)
class ChangeBatches(Sink):
    """Merges micro-batches of changes into a Delta table; can be pickled, for Spark Connect.

    Attributes:
        target: The table, its quarantine, and the rules of the changes.
        retention_days: Days that the table keeps a deletion; None: until `purge_changes`.
    """

    target: ChangeTarget
    retention_days: float | None = None

    def destination(self) -> str:
        """Return the table."""
        return self.target.table

    def write(self, rows: DataFrame, batch: SinkBatch) -> None:
        """Merge a batch, unless the table has it."""
        self.target.write(rows, writer=batch.query_id, batch_id=batch.number)
        tables.purge_at(rows.sparkSession, self.target.table, self.retention_days, batch.number)


def apply_changes(
    changes: DataFrame,
    settings: Settings,
    *,
    path: str,
    keys: Sequence[str],
    checkpoint_path: str,
    sequence_by: str | Sequence[str] | None = None,
    envelope: str = "none",
    apply_as_deletes: str | None = None,
    apply_as_truncates: str | None = None,
    ignore_null_updates: bool | Sequence[str] = False,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    stored_as_scd_type: int = 1,
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] | None = None,
    quarantine_path: str | None = None,
    table_properties: Mapping[str, str] | None = None,
    retention_days: float | None = None,
    name: str = "changes",
) -> StreamingQuery:
    """Start a query that applies changes to the rows of a Delta table, with the pipeline's trigger.

    A micro-batch is one MERGE. A change counts if it is newer than the row of its key, in whatever order
    changes arrive. The table keeps deletions, so that an older change does not bring a row back.
    `changes_view` hides them. A rejected change goes to the quarantine with its reason, and the other
    changes continue.

    Args:
        changes: A streaming DataFrame of one topic, such as `read_values`, or of another source. `_kafka`,
            `_key` and `_headers` are not columns of the table. A key that the row lacks is read from `_key`.
            Unavailable values after a change of a primary key are found by `_headers`.
        settings: The trigger, the store and the pipeline's name.
        path: The path of the table, or its name in a catalog. It is created if it does not exist. An empty
            table of yours may have partitions and other columns, which allow null.
        keys: The columns that identify a row.
        checkpoint_path: A dedicated folder.
        sequence_by: Columns that order the changes of a key, such as `source.lsn`. Equal values are ordered
            by partition and offset in Kafka. Texts are compared part by part, as numbers. By default
            partition and offset alone are the order.
        envelope: `none` for rows. `debezium` for Debezium's `before`, `after`, `op` and `source`. Or
            `debezium_flat` for rows of Debezium's ExtractNewRecordState.
        apply_as_deletes: A condition in SQL for changes that delete their row, such as `op = 'DELETE'`.
        apply_as_truncates: A condition in SQL for changes that delete all older rows; needs `sequence_by`.
        ignore_null_updates: Whether null in a change keeps the row's value; or the columns for which it does.
        column_list: The columns of the table; by default all. Keys are always among them.
        except_column_list: Columns that are not in the table; by default none.
        stored_as_scd_type: 1 for the newest row of each key. 2 for all its versions, with `__START_AT` and
            `__END_AT`; needs `sequence_by`.
        track_history_column_list: Columns whose change begins a version; by default all.
        track_history_except_column_list: Columns whose change begins no version; by default none.
        quarantine_path: The path or the name of the quarantine; by default `<path>_quarantine`.
        table_properties: Table properties of a new table. By default it has deletion vectors and auto
            compaction. For readers that do not know deletion vectors, set `delta.enableDeletionVectors` to
            `"false"`. Then it is clustered by its keys.
        retention_days: Days that the table keeps a deletion. Each hundredth batch removes older ones. By
            default only `purge_changes` removes deletions.
        name: Last part of the query's name, after the pipeline's name.

    Raises:
        ConfigError: An argument is wrong, or the table has rows by other keys or in another order.
        PlatformError: The table's log is not safe from a second driver.
        StorageError: The checkpoint or the table cannot be used.
        TopiclakeError: The unfinished batch of an earlier run failed.

    Example:
        >>> query = tl.apply_changes(
        ...     tl.read_values(spark, settings),
        ...     settings,
        ...     path="/mnt/datalake/newest_readings",
        ...     keys=["sensor"],
        ...     sequence_by="at",
        ...     apply_as_deletes="celsius > 1000",
        ...     checkpoint_path="/mnt/datalake/checkpoints/newest_readings",
        ... )
        >>> tl.await_caught_up(query, "availableNow")
        >>> path = "/mnt/datalake/newest_readings"
        >>> [row.celsius for row in tl.changes_view(spark, settings, path=path).orderBy("sensor").collect()]
        [79.0, 11.0]
    """
    spark = changes.sparkSession
    rules = ChangeRules(
        keys=names(keys),
        envelope=envelope,
        sequence_by=names(sequence_by),
        apply_as_deletes=apply_as_deletes,
        apply_as_truncates=apply_as_truncates,
        ignore_null_updates=(
            ignore_null_updates if isinstance(ignore_null_updates, bool) else names(ignore_null_updates)
        ),
        column_list=None if column_list is None else names(column_list),
        except_column_list=names(except_column_list),
        stored_as_scd_type=stored_as_scd_type,
        track_history_column_list=(
            None if track_history_column_list is None else names(track_history_column_list)
        ),
        track_history_except_column_list=names(track_history_except_column_list),
    )
    rows = ChangeRows.of(changes, rules)
    table = table_of_sink(spark, settings, path)
    quarantine = table_of_sink(spark, settings, quarantine_path or table_name.suffixed(path, QUARANTINE))
    if retention_days is not None:
        tables.require_purgeable(table, retention_days, has_versions=rules.has_versions)
    if table_name.folded(quarantine) == table_name.folded(table):
        raise ConfigError(
            f"quarantine_path is the table {path} itself", "set another path", parameter="quarantine_path"
        )
    location = mount.resolve(settings.storage, checkpoint_path)
    mount.require_writable(location)
    with storage_errors(settings.storage, table):
        tables.ensure(spark, table, rows.table_schema(changes), rows, table_properties or {})
    return queries.start_sink(
        changes,
        settings,
        ChangeBatches(ChangeTarget(table, quarantine, rules), retention_days),
        name=f"{settings.name}_{name}",
        location=location,
    )


def changes_view(spark: SparkSession, settings: Settings, *, path: str, name: str | None = None) -> DataFrame:
    """Return the rows of a table of `apply_changes`, without deletions and without `_cdc`.

    Args:
        spark: The session.
        settings: The store.
        path: The path or the name of the table.
        name: Name of a temporary view to create; by default none is created.

    Raises:
        ConfigError: SQL does not accept the name.
        StorageError: The table cannot be read.

    Example:
        >>> query = tl.apply_changes(
        ...     tl.read_values(spark, settings),
        ...     settings,
        ...     path="/mnt/datalake/viewed",
        ...     keys=["sensor"],
        ...     checkpoint_path="/mnt/datalake/checkpoints/viewed",
        ... )
        >>> tl.await_caught_up(query, "availableNow")
        >>> tl.changes_view(spark, settings, path="/mnt/datalake/viewed", name="viewed").columns
        ['sensor', 'celsius', 'at']
    """
    table = mount.resolve_table(settings.storage, path)
    with storage_errors(settings.storage, table):
        rows = tables.current_rows(delta.read(spark, table))
    if name is not None:
        require_name(name)
        rows.createOrReplaceTempView(name)
    return rows


def purge_changes(
    spark: SparkSession, settings: Settings, *, path: str | None = None, retention_days: float | None = None
) -> int:
    """Remove old deletions from a table of changes, and return their number.

    After that, a change that is older than such a deletion would bring its row back, also by a replay. So the
    time must be longer than changes can be late or wait in quarantine. Files remain until `VACUUM`. A table
    with deletion vectors writes the files with removed and replaced rows again.

    Args:
        spark: The session.
        settings: The store and the pipeline.
        path: The path or the name of the table; by default that of the pipeline.
        retention_days: The time that the table keeps a deletion after its batch, in days. By default that of
            the pipeline, else 30.

    Raises:
        ConfigError: The time is negative, or the table has no changes, or SCD type 2. Or it has deletion
            vectors and clusters. Or the pipeline has several topics.
        StorageError: The table cannot be used.

    Example:
        >>> query = tl.apply_changes(
        ...     tl.read_values(spark, settings),
        ...     settings,
        ...     path="/mnt/datalake/purged",
        ...     keys=["sensor"],
        ...     apply_as_deletes="sensor = 'boiler'",
        ...     checkpoint_path="/mnt/datalake/checkpoints/purged",
        ... )
        >>> tl.await_caught_up(query, "availableNow")
        >>> tl.purge_changes(spark, settings, path="/mnt/datalake/purged", retention_days=0)
        1
    """
    changes = settings.pipeline.changes
    if retention_days is None:
        retention_days = changes.retention_days if changes is not None else None
    table = mount.resolve_table(settings.storage, path or settings.only_topic().pipeline.location)
    with storage_errors(settings.storage, table):
        return tables.purge(spark, table, RETENTION_DAYS if retention_days is None else retention_days)
