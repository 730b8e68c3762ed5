"""From Kafka's records to rows, for values whose columns the configuration declares: nothing is executed."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.delta import table as delta
from topiclake.formats.declared import Values
from topiclake.kafka import source as kafka_source
from topiclake.reasons import OK, REFUSED_BY_TABLE, TOMBSTONE, UNDECODABLE
from topiclake.sources import constraints
from topiclake.sources.constraints import REFUSED
from topiclake.sources.layout import HEADERS_COLUMN, KAFKA_COLUMN, Layout
from topiclake.sources.table_snapshot import NO_TABLE, Look
from topiclake.streaming.failure import refused_record

#: Why a value is no row; see `formats.declared`.
REASONS = (TOMBSTONE, UNDECODABLE, REFUSED_BY_TABLE)


def judge(
    values: Values,
    records: DataFrame,
    layout: Layout,
    look: Look,
    held: Mapping[str, str] | None = None,
) -> DataFrame:
    """Judge records as `Values.judge`, and hold their rows against the constraints of a table.

    Args:
        values: What values mean.
        records: Kafka's columns.
        layout: The rows' other columns.
        look: At the table.
        held: Its constraints where a batch was begun, in place of those of today.
    """
    judged, held = values.judge(records), look.constraints if held is None else held
    if not held:
        return judged

    def as_rows(records: DataFrame) -> DataFrame:
        return records.select(constraints.RECORD, *_row(layout))

    refused = constraints.with_refused(judged, F.col("reason") == OK, as_rows, look.columns, held)
    reason = F.when(F.col(REFUSED).isNotNull(), REFUSED_BY_TABLE).otherwise(F.col("reason"))
    return refused.withColumn("reason", reason)


def _detail(judged: DataFrame, values: Values) -> Column:
    if REFUSED not in judged.columns:
        return values.detail()
    why = constraints.why_refused()
    return F.when(F.col("reason") == REFUSED_BY_TABLE, why).otherwise(values.detail())


def read(records: DataFrame, values: Values, layout: Layout, *, mode: str) -> DataFrame:
    """Return the rows of Kafka's records, a stream's or a batch's; see `streams.read_values`."""
    judged = values.judge(records)
    if mode == "FAILFAST":
        judged = or_fail(judged, values, layout)
    return placed(judged, layout)


def is_left(layout: Layout) -> Column:
    """Tell whether a judged record belongs into no table; a skipped tombstone belongs nowhere."""
    return ~F.col("reason").isin(_no_left(layout))


def _no_left(layout: Layout) -> list[str]:
    """Return the verdicts of records that are in no quarantine."""
    return [OK, TOMBSTONE] if layout.skips_tombstones else [OK]


def placed(judged: DataFrame, layout: Layout, look: Look = NO_TABLE) -> DataFrame:
    """Return the rows that belong into the table: the values' columns, then those of the layout."""
    rows = judged.where(F.col("reason") == OK).select(*_row(layout))
    return constraints.with_required(rows, look.columns) if look.constraints else rows


def _row(layout: Layout) -> list[Column]:
    columns = [F.col("event.*")]
    if layout.kafka:
        columns.append(F.struct(*layout.kafka).alias(KAFKA_COLUMN))
    if layout.headers:
        columns.append(F.col("headers").alias(HEADERS_COLUMN))
    return columns


def columns(spark: SparkSession, values: Values, layout: Layout) -> StructType:
    """Return the table's columns; each may be null."""
    return delta.nullable(placed(values.judge(spark.createDataFrame([], kafka_source.RECORD_SCHEMA)), layout))


def or_fail(judged: DataFrame, values: Values, layout: Layout) -> DataFrame:
    """Raise at the first record that is not right; inside the plan, so nothing of its batch is written."""
    why = F.lit(f": the value is no {values.value_format} of its schema")
    if REFUSED in judged.columns:
        why = F.coalesce(F.concat(F.lit(": "), constraints.why_refused()), why)
    refused = refused_record(F.lit(", reason "), F.col("reason"), why)
    return judged.withColumn("reason", F.when(is_left(layout), refused).otherwise(F.col("reason")))
