"""Micro-batches into a Delta table, each once: the table itself keeps the number of the newest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from topiclake.config.settings import Settings
from topiclake.delta import merge
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, require_choice
from topiclake.sinks.start import table_and_checkpoint
from topiclake.streaming import queries


@dataclass(frozen=True)
class DeltaBatches(queries.QuerySink):
    """Writes micro-batches into a Delta table; can be pickled, for Spark Connect.

    Attributes:
        destination: The table, as Spark reads it.
        mode: `append`, `merge` or `replace`.
        keys: What `merge` goes by.
    """

    destination: str
    mode: str
    keys: tuple[str, ...]

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch, unless the table has it."""
        writer = self.query_id(rows.sparkSession)
        if self.mode == "append":
            delta.append_once(rows, self.destination, writer=writer, batch_id=batch_id, commit={})
        elif self.mode == "replace":
            delta.replace_once(rows, self.destination, writer=writer, batch_id=batch_id)
        else:
            merge.merge_once(rows, self.destination, self.keys, writer=writer, batch_id=batch_id)


def delta_batches(
    settings: Settings,
    spark: SparkSession,
    *,
    path: str,
    checkpoint_path: str,
    mode: str = "append",
    keys: Sequence[str] = (),
) -> DeltaBatches:
    """Return a sink of `start_sinks` that writes each micro-batch into a Delta table, exactly once.

    Args:
        settings: The store.
        spark: The session.
        path: The table; made by its first batch, and given new columns.
        checkpoint_path: That of `start_sinks`.
        mode: `append`; `merge`, for output mode `update`: a row takes the place of the one with the same
            keys; `replace`, for `complete`: the batch takes the place of the whole table.
        keys: Columns that `merge` goes by; a batch has one row for each of their values, null among them.

    Raises:
        ConfigError: The mode is another one, or keys belong to `merge` and are missing.
        PlatformError: The table's log is not safe from a second driver.
        StorageError: The path cannot be used.

    Example:
        >>> place = "/mnt/datalake/checkpoints/newest"
        >>> sinks = {
        ...     "table": tl.delta_batches(
        ...         settings,
        ...         spark,
        ...         path="/mnt/datalake/newest",
        ...         checkpoint_path=place,
        ...         mode="merge",
        ...         keys=["sensor"],
        ...     )
        ... }
    """
    require_choice("mode", mode, ("append", "merge", "replace"))
    if (mode == "merge") != bool(keys):
        raise ConfigError(f"keys are {list(keys)} in mode {mode}", "mode='merge', keys=['<column>']")
    destination, location = table_and_checkpoint(spark, settings, path, checkpoint_path)
    return DeltaBatches(destination, mode, tuple(keys), checkpoint=location)
