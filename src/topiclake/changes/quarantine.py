"""Rejected changes as rows of their quarantine."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topiclake.changes.order import CDC_COLUMN, OFFSET, PARTITION, Order
from topiclake.changes.rows import CHANGE_COLUMN
from topiclake.reasons import UNAVAILABLE_VALUE


def unresolved(changes: DataFrame) -> DataFrame:
    """Give changes with an unavailable value of an unknown row their reason."""
    names = F.array_join(f"{CHANGE_COLUMN}.unavailable", ", ")
    detail = F.concat(names, F.lit(": the value did not change, and the table has no row of this key"))
    change = F.col(CHANGE_COLUMN).withField("reason", F.lit(UNAVAILABLE_VALUE)).withField("detail", detail)
    return changes.withColumn(CHANGE_COLUMN, change)


def quarantine_rows(rejected: DataFrame, order: Order, batch_id: int) -> DataFrame:
    """Turn rejected changes into rows of the quarantine table.

    Returns:
        `partition INT, offset BIGINT, reason STRING, detail STRING, row_json STRING, batch_id BIGINT,
        quarantined_at TIMESTAMP`; partition and offset are null without a position in Kafka.
    """
    position = [
        (F.col(f"{CDC_COLUMN}.{name}") if order.position else F.lit(None)).cast(kind).alias(name)
        for name, kind in ((PARTITION, "int"), (OFFSET, "bigint"))
    ]
    return rejected.select(
        *position,
        *(f"{CHANGE_COLUMN}.{name}" for name in ("reason", "detail", "row_json")),
        F.lit(batch_id).cast("bigint").alias("batch_id"),
        F.current_timestamp().alias("quarantined_at"),
    )
