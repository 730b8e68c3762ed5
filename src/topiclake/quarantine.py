"""Records that are not rows of the table, kept whole, with the reason."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from topiclake.wire_format import schema_id_of

#: A record as it comes from Kafka.
RECORD_SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key STRING, value BINARY>>"
)
SCHEMA = (
    f"{RECORD_SCHEMA}, schema_id INT, reason STRING, detail STRING, "
    "pipeline STRING, batch_id BIGINT, quarantined_at TIMESTAMP"
)


def quarantined(records: DataFrame, *, pipeline: str, batch_id: int) -> DataFrame:
    """Turn records into rows of the quarantine table.

    Args:
        records: Kafka's columns and `verdict STRING`, which becomes the reason.
        pipeline: The pipeline's name.
        batch_id: The micro-batch that met them.

    Returns:
        Columns of `SCHEMA`, one row a record.
    """
    return records.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
        schema_id_of(F.col("value")).alias("schema_id"),
        F.col("verdict").alias("reason"),
        _detail().alias("detail"),
        F.lit(pipeline).alias("pipeline"),
        F.lit(batch_id).cast("bigint").alias("batch_id"),
        F.current_timestamp().alias("quarantined_at"),
    )


def _detail() -> Column:
    """Say the reason in words, for the person who looks at the row."""
    value, reason = F.col("value"), F.col("verdict")
    length = F.length(value).cast("string")
    schema_id = schema_id_of(value).cast("string")
    return (
        F.when(reason == "tombstone", "the value is null")
        .when(reason == "too_short", F.concat(length, F.lit(" bytes, fewer than the header's 5")))
        .when(
            reason == "bad_magic",
            F.concat(F.lit("byte 0 is 0x"), F.hex(F.substring(value, 1, 1)), F.lit(", not 0x00")),
        )
        .when(
            reason == "unknown_schema_id",
            F.concat(F.lit("the subject has no schema with id "), schema_id),
        )
        .otherwise(
            F.concat(
                F.lit("the "),
                (F.length(value) - 5).cast("string"),
                F.lit(" bytes after the header are not one record of schema id "),
                schema_id,
            )
        )
    )
