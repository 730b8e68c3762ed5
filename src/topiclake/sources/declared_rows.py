"""From Kafka's records to rows, for values whose columns the configuration declares: nothing is executed."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.delta import table as delta
from topiclake.formats.codec import is_decoded_key
from topiclake.formats.declared import DeclaredFormat
from topiclake.kafka import source as kafka_source
from topiclake.local_frame import local_frame
from topiclake.reasons import OK, REFUSED_BY_TABLE, TOMBSTONE, UNDECODABLE
from topiclake.sources import constraints
from topiclake.sources.constraints import REFUSED
from topiclake.sources.layout import HEADERS_COLUMN, KAFKA_COLUMN, KEY_COLUMN, TOMBSTONE_COLUMN, Layout
from topiclake.sources.table_snapshot import NO_TABLE, TableSnapshot
from topiclake.streaming.failure import refused_record

#: The reasons of rejected values; see `formats.declared`.
DECLARED_REASONS = (TOMBSTONE, UNDECODABLE, REFUSED_BY_TABLE)


def decode(
    values: DeclaredFormat,
    records: DataFrame,
    layout: Layout,
    snapshot: TableSnapshot,
    enforced: Mapping[str, str] | None = None,
) -> DataFrame:
    """Decode records as `DeclaredFormat.decode`, and check their rows against the constraints of a table.

    Args:
        values: The format of values.
        records: Kafka's columns.
        layout: The rows' other columns.
        snapshot: The table.
        enforced: Its constraints when a batch was begun, in place of those of today.
    """
    decoded, enforced = values.decode(records), snapshot.constraints if enforced is None else enforced
    if not enforced:
        return decoded

    def as_rows(records: DataFrame) -> DataFrame:
        return records.select(constraints.RECORD, *_row(layout))

    refused = constraints.with_refused(decoded, F.col("reason") == OK, as_rows, snapshot.columns, enforced)
    reason = F.when(F.col(REFUSED).isNotNull(), REFUSED_BY_TABLE).otherwise(F.col("reason"))
    return refused.withColumn("reason", reason)


def detail(decoded: DataFrame, values: DeclaredFormat) -> Column:
    """Say what is wrong with a decoded record that is not valid."""
    if REFUSED not in decoded.columns:
        return values.detail()
    refused = F.col("reason") == REFUSED_BY_TABLE
    return F.when(refused, constraints.refusal_detail()).otherwise(values.detail())


def read(records: DataFrame, values: DeclaredFormat, layout: Layout, *, mode: str) -> DataFrame:
    """Return the rows of Kafka's records, a stream's or a batch's; see `streams.read_values`."""
    decoded = values.decode(records)
    if mode == "FAILFAST":
        decoded = fail_on_bad_record(decoded, values, layout)
    return valid_rows(decoded, layout)


def is_rejected(layout: Layout) -> Column:
    """Return whether a decoded record is rejected; a skipped tombstone is neither valid nor rejected."""
    return ~F.col("reason").isin(reasons_not_rejected(layout))


def reasons_not_rejected(layout: Layout) -> list[str]:
    """Return the reasons of records that are in no quarantine."""
    return [OK, TOMBSTONE] if layout.skips_tombstones else [OK]


def valid_rows(decoded: DataFrame, layout: Layout, snapshot: TableSnapshot = NO_TABLE) -> DataFrame:
    """Return the rows that belong into the table: the values' columns, then those of the layout."""
    rows = decoded.where(F.col("reason") == OK).select(*_row(layout))
    return constraints.with_required(rows, snapshot.columns) if snapshot.constraints else rows


def _row(layout: Layout) -> list[Column]:
    columns = [F.col("event.*")]
    if layout.kafka:
        columns.append(F.struct(*layout.kafka).alias(KAFKA_COLUMN))
    if layout.key_expression is not None:
        columns.append(F.expr(layout.key_expression).alias(KEY_COLUMN))
    if layout.headers:
        columns.append(F.col("headers").alias(HEADERS_COLUMN))
    if layout.keeps_tombstones:
        columns.append(F.col("value").isNull().alias(TOMBSTONE_COLUMN))
    return columns


def columns(spark: SparkSession, values: DeclaredFormat, layout: Layout) -> StructType:
    """Return the table's columns; each may be null."""
    return delta.nullable(
        valid_rows(values.decode(local_frame(spark, [], kafka_source.RECORD_SCHEMA)), layout)
    )


def fail_on_bad_record(decoded: DataFrame, values: DeclaredFormat, layout: Layout) -> DataFrame:
    """Raise at the first record that is not right; inside the plan, so nothing of its batch is written."""
    detail = F.lit(f": the value is no {values.value_format} of its schema")
    if values.key is not None:
        key_detail = F.lit(f": the key is no {values.key.value_format} of its schema")
        detail = F.when(is_decoded_key(), detail).otherwise(key_detail)
    if REFUSED in decoded.columns:
        detail = F.coalesce(F.concat(F.lit(": "), constraints.refusal_detail()), detail)
    refused = refused_record(F.lit(", reason "), F.col("reason"), detail)
    return decoded.withColumn("reason", F.when(is_rejected(layout), refused).otherwise(F.col("reason")))
