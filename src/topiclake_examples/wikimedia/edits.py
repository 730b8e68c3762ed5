"""Counts of Wikimedia's edits by bots and humans, in windows of time."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import topiclake as tl

#: Edits of the last minute, every half minute, by the requester.
EDIT_WINDOWS = tl.Windows(
    "time", keys=("requested_by",), length="60 seconds", slide="30 seconds", watermark="60 seconds"
)


def wikimedia_edits(changes: DataFrame) -> DataFrame:
    """Filter the edits, and add the time and the requester of each.

    Args:
        changes: With the columns `type STRING, timestamp BIGINT, bot BOOLEAN`, as `read_values` has them.

    Returns:
        The columns of `changes`, then `time TIMESTAMP, requested_by STRING`: Bot, Human, or null if the event
        has no `bot`.
    """
    requested_by = F.when(F.col("bot"), "Bot").when(~F.col("bot"), "Human")
    return changes.where("type = 'edit'").withColumns(
        {"time": F.timestamp_seconds("timestamp"), "requested_by": requested_by}
    )


def edits_per_window(edits: DataFrame) -> DataFrame:
    """Count the rows of `wikimedia_edits` in windows of 60 s every 30 s, with a watermark of 60 s.

    Returns:
        `start TIMESTAMP, end TIMESTAMP, requested_by STRING, count BIGINT`.
    """
    return tl.window_counts(edits, EDIT_WINDOWS)


def edit_counts(counts: DataFrame) -> DataFrame:
    """Return the counts of `edits_per_window` in the form that goes back to Kafka.

    Returns:
        `window STRUCT<start TIMESTAMP, end TIMESTAMP>, requested_by STRING, counts BIGINT`.
    """
    return counts.select(
        F.struct("start", "end").alias("window"), "requested_by", F.col("count").alias("counts")
    )
