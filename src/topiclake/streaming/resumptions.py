"""Notes in a checkpoint of the rows that its tables held before it began; an audit needs them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

from pyspark.sql import DataFrame, SparkSession

from topiclake.streaming import checkpoint_notes

_FIRSTS = "topic STRING, partition INT, first BIGINT, begin BIGINT, noted_at TIMESTAMP"
_NOTES = "resumed"
_ROWS = "rows_before"


def note_firsts(
    spark: SparkSession,
    checkpoint: str,
    firsts: Mapping[str, Mapping[int, int]],
    begins: Mapping[str, Mapping[int, int]],
) -> None:
    """Note the first offsets of the queries before a checkpoint, and the first offsets of the checkpoint."""
    now = datetime.now(timezone.utc)
    rows = [
        (topic, partition, first, begins[topic][partition], now)
        for topic, offsets in firsts.items()
        for partition, first in offsets.items()
    ]
    checkpoint_notes.append(spark, checkpoint, _NOTES, rows, _FIRSTS)


def read_firsts(
    spark: SparkSession, checkpoint: str, begins: Mapping[str, Mapping[int, int]]
) -> dict[str, dict[int, int]]:
    """Return the first offsets of the queries before a checkpoint, by topic and partition.

    Notes whose `begin` differs from the offset of the checkpoint are ignored: their start failed.
    """
    firsts: dict[str, dict[int, int]] = {}
    for row in checkpoint_notes.read(spark, checkpoint, _NOTES, _FIRSTS):
        topic, partition = row["topic"], row["partition"]
        if row["begin"] == begins.get(topic, {}).get(partition):
            offsets = firsts.setdefault(topic, {})
            offsets[partition] = min(row["first"], offsets.get(partition, row["first"]))
    return firsts


def note_rows(rows: DataFrame, checkpoint: str) -> None:
    """Note the rows that existed when a new checkpoint began from `starting_offsets` again.

    Args:
        rows: `topic STRING, is_quarantined BOOLEAN, partition INT, offset BIGINT`.
        checkpoint: Location of the checkpoint.
    """
    rows.write.mode("overwrite").parquet(checkpoint_notes.path(checkpoint, _ROWS))


def read_rows(spark: SparkSession, checkpoint: str) -> DataFrame | None:
    """Return the rows that `note_rows` has noted, or None without a note."""
    path = checkpoint_notes.path(checkpoint, _ROWS)
    return checkpoint_notes.read_if_exists(lambda: spark.read.parquet(path))
