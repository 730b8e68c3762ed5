"""Micro-batches into a Delta table, each exactly once: the table stores the number of the newest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from topiclake.config.settings import Settings
from topiclake.delta import merge
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, require_choice
from topiclake.sinks.start import table_of_sink
from topiclake.streaming.sink import Sink, SinkBatch


@dataclass(frozen=True)
class DeltaBatches(Sink):
    """Writes micro-batches into a Delta table; can be pickled, for Spark Connect.

    Attributes:
        table: The table, as Spark reads it.
        mode: `append`, `merge` or `replace`.
        keys: Columns by which `merge` matches rows.
    """

    table: str
    mode: str
    keys: tuple[str, ...]

    def destination(self) -> str:
        """Return the table."""
        return self.table

    def write(self, rows: DataFrame, batch: SinkBatch) -> None:
        """Write a batch, unless the table has it."""
        writer, number = batch.query_id, batch.number
        if self.mode == "append":
            delta.append_once(rows, self.table, writer=writer, batch_id=number, commit={})
        elif self.mode == "replace":
            delta.replace_once(rows, self.table, writer=writer, batch_id=number)
        else:
            merge.merge_once(rows, self.table, self.keys, writer=writer, batch_id=number)


def delta_batches(
    settings: Settings,
    spark: SparkSession,
    *,
    path: str,
    mode: str = "append",
    keys: Sequence[str] = (),
) -> DeltaBatches:
    """Return a sink of `start_sinks` that writes each micro-batch into a Delta table, exactly once.

    Args:
        settings: The store.
        spark: The session.
        path: The path of the table, or its name in a catalog. The first batch creates it, and later batches
            add new columns.
        mode: `append`. Or `merge`, for output mode `update`: a row replaces the row with the same keys. Or
            `replace`, for output mode `complete`: a batch replaces the whole table.
        keys: Columns by which `merge` matches rows. A batch has one row for each of their values; a null
            equals a null.

    Raises:
        ConfigError: The mode is unknown, or keys are missing for `merge`, or given for another mode.
        PlatformError: The table's log is not safe from a second driver.
        StorageError: The path cannot be used.

    Example:
        >>> sinks = {
        ...     "table": tl.delta_batches(
        ...         settings,
        ...         spark,
        ...         path="/mnt/datalake/newest",
        ...         mode="merge",
        ...         keys=["sensor"],
        ...     )
        ... }
    """
    require_choice("mode", mode, ("append", "merge", "replace"))
    if (mode == "merge") != bool(keys):
        raise ConfigError(
            f"keys are {list(keys)} in mode {mode}",
            "pass mode='merge', keys=['<column>']",
            keys=tuple(keys),
            mode=mode,
        )
    return DeltaBatches(table_of_sink(spark, settings, path), mode, tuple(keys))
