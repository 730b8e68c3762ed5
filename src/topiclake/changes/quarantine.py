"""Rejected changes as rows of their quarantine."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.changes.order import CDC_COLUMN, OFFSET, PARTITION, Order
from topiclake.changes.rows import CHANGE_COLUMN, OPERATION_FIELD, REASON_FIELD
from topiclake.delta import table as delta
from topiclake.formats.envelope import DELETE, TRUNCATE, UPSERT
from topiclake.reasons import REFUSED_BY_TABLE, UNAVAILABLE_VALUE
from topiclake.sources import constraints
from topiclake.sources.constraints import REFUSED


def refused(prepared: DataFrame, columns: StructType, properties: Mapping[str, str]) -> DataFrame:
    """Give changes whose row breaks a constraint of the table their reason.

    Args:
        prepared: The changes.
        columns: The columns of the table.
        properties: Its table properties.
    """
    conditions = constraints.of_table(columns, properties)
    if not conditions:
        return prepared
    rows = constraints.with_broken(prepared, columns, conditions, REFUSED)
    # The table keeps a truncate as a row, too.
    is_change = F.col(REASON_FIELD).isNull() & F.col(OPERATION_FIELD).isin(UPSERT, DELETE, TRUNCATE)
    change = F.col(CHANGE_COLUMN)
    row = F.struct(*(delta.quoted(name) for name in prepared.columns if name != CHANGE_COLUMN))
    bad = (
        change.withField("reason", F.lit(REFUSED_BY_TABLE))
        .withField("detail", constraints.refusal_detail())
        .withField("row_json", F.to_json(row))
    )
    changed = F.when(is_change & F.col(REFUSED).isNotNull(), bad).otherwise(change)
    return rows.withColumn(CHANGE_COLUMN, changed).select(*map(delta.quoted, prepared.columns))


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
