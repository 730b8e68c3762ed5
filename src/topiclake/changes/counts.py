"""Counts of a batch of changes, for the commit of its MERGE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topiclake.changes.order import CDC_COLUMN, OFFSET, PARTITION, Order
from topiclake.changes.rows import CHANGE_COLUMN, OLD_KEY, OPERATION_FIELD, REASON_FIELD
from topiclake.formats.envelope import SKIP, TRUNCATE


@dataclass(frozen=True)
class Counts:
    """Counts of a batch.

    Attributes:
        rows: Number of its rows.
        skipped: Number of rows that are no change, such as heartbeats.
        truncates: Number of truncates, rejected ones not included.
        rejected: Number of changes with a reason.
        unavailable: Number of changes with an unavailable value.
        moved: Number of those whose primary key has changed.
        offsets: First and last offset by partition, if the rows have a position in Kafka.
    """

    rows: int
    skipped: int
    truncates: int
    rejected: int
    unavailable: int
    moved: int
    offsets: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, prepared: DataFrame, order: Order) -> Counts:
        """Count the prepared rows in one job."""
        partition, offset = (
            (F.col(f"{CDC_COLUMN}.{name}") if order.position else F.lit(None).cast("bigint"))
            for name in (PARTITION, OFFSET)
        )
        is_valid = F.col(REASON_FIELD).isNull()
        is_incomplete = is_valid & (F.size(f"{CHANGE_COLUMN}.unavailable") > 0)
        has_old_keys = "old_key" in prepared.select(f"{CHANGE_COLUMN}.*").columns
        counts = (
            F.count("*"),
            F.count_if(is_valid & (F.col(OPERATION_FIELD) == SKIP)),
            F.count_if(is_valid & (F.col(OPERATION_FIELD) == TRUNCATE)),
            F.count_if(~is_valid),
            F.count_if(is_incomplete),
            F.count_if(is_incomplete & F.col(OLD_KEY).isNotNull()) if has_old_keys else F.lit(0),
        )
        grouped = prepared.groupBy(partition.alias("partition"))
        found = grouped.agg(*counts, F.min(offset), F.max(offset)).collect()
        rows, skipped, truncates, rejected, incomplete, moved = (
            sum(row[column] for row in found) for column in range(1, 1 + len(counts))
        )
        offsets = {str(row[0]): (row[-2], row[-1]) for row in found if row[0] is not None}
        return cls(rows, skipped, truncates, rejected, incomplete, moved, offsets)
