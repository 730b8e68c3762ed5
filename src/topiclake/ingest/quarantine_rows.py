"""Rows of the quarantine: complete rejected records, with their reason."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from topiclake.formats.codec import Codec, Codecs, decode_status, is_decoded_key
from topiclake.kafka.source import RECORD_COLUMNS, RECORD_SCHEMA
from topiclake.reasons import (
    BAD_MAGIC,
    OK,
    REFUSED_BY_TABLE,
    TOMBSTONE,
    TOO_SHORT,
    UNDECODABLE,
    UNKNOWN_SCHEMA_ID,
)
from topiclake.schema_registry.wire_format import (
    GUID_HEADER_LENGTH,
    HEADER_LENGTH,
    Part,
    SchemaKey,
    identifier,
    payload_of,
    record_header,
    schema_id_of,
)
from topiclake.sources.constraints import REFUSED, refusal_detail
from topiclake.sources.registered_rows import value_status

SCHEMA = (
    f"{RECORD_SCHEMA}, schema_id INT, reason STRING, detail STRING, pipeline STRING, batch_id BIGINT, "
    "quarantined_at TIMESTAMP"
)


def quarantined(records: DataFrame, *, pipeline: str, batch_id: int) -> DataFrame:
    """Turn records of a registered format into rows of the quarantine table.

    Args:
        records: Kafka's columns, `value_schema BINARY`, `reason STRING` and `detail STRING`.
        pipeline: The pipeline's name.
        batch_id: The micro-batch of the records.

    Returns:
        Columns of `SCHEMA`, one row for each record.
    """
    rows = records.withColumn("schema_id", schema_id_of(F.col("value_schema")))
    return quarantine_rows(rows, pipeline=pipeline, batch_id=batch_id)


def count_reasons(records: DataFrame) -> dict[str, int]:
    """Count records by their column `reason STRING`, in one job."""
    return {row["reason"]: row["count"] for row in records.groupBy("reason").count().collect()}


def quarantine_rows(records: DataFrame, *, pipeline: str, batch_id: int) -> DataFrame:
    """Turn records into rows of the quarantine table.

    Args:
        records: Kafka's columns, `schema_id INT`, `reason STRING` and `detail STRING`.
        pipeline: The pipeline's name.
        batch_id: The micro-batch of the records.

    Returns:
        Columns of `SCHEMA`, one row for each record.
    """
    return records.select(
        *RECORD_COLUMNS,
        F.col("schema_id").cast("int").alias("schema_id"),
        "reason",
        "detail",
        F.lit(pipeline).alias("pipeline"),
        F.lit(batch_id).cast("bigint").alias("batch_id"),
        F.current_timestamp().alias("quarantined_at"),
    )


def with_reasons(
    decoded: DataFrame,
    codecs: Codecs,
    unknown: Mapping[Part, Set[SchemaKey]],
    *,
    needs_python: bool,
    keeps_tombstones: bool = False,
) -> DataFrame:
    """Add `reason STRING` and `detail STRING` to decoded records that are in no table.

    Args:
        decoded: The result of `registered_rows.decode`.
        codecs: The codecs of the schemas.
        unknown: Schemas that the registry does not know. It was not asked for other missing schemas.
        needs_python: Whether rows may be undecodable, whose details need a Python worker.
        keeps_tombstones: Whether a value may be null.
    """
    reason = value_status(codecs, keeps_tombstones=keeps_tombstones)
    detail = _ReasonText(codecs.value, "value", unknown.get("value", set()), needs_python).detail(reason)
    # The bytes of a record of the other form lead to one of these reasons.
    depends_on_form = reason.isin(BAD_MAGIC, UNKNOWN_SCHEMA_ID, UNDECODABLE)
    detail = F.when(depends_on_form, F.concat(detail, codecs.value.mismatch(decoded))).otherwise(detail)
    if codecs.key is not None:
        key_status = decode_status(F.col("decoded_key"), codecs.key, "key")
        key_text = _ReasonText(codecs.key, "key", unknown.get("key", set()), needs_python)
        detail = F.when(reason == OK, key_text.detail(key_status)).otherwise(detail)
        reason = F.when(reason == OK, key_status).otherwise(reason)
    if codecs.declared_key is not None:
        is_undecodable_key = (reason == OK) & ~is_decoded_key()
        detail = F.when(is_undecodable_key, codecs.declared_key.key_detail()).otherwise(detail)
        reason = F.when(is_undecodable_key, UNDECODABLE).otherwise(reason)
    if codecs.constraints:
        refused = F.col(REFUSED).isNotNull()
        detail = F.when(refused, refusal_detail()).otherwise(detail)
        reason = F.when(refused, REFUSED_BY_TABLE).otherwise(reason)
    # The schema became known after the batch was partly written. Only a replay can add its rows.
    reason, detail = (
        F.when(reason == OK, UNKNOWN_SCHEMA_ID).otherwise(reason),
        F.when(reason == OK, "its schema was registered after its batch was written; replay it").otherwise(
            detail
        ),
    )
    return decoded.withColumn("detail", detail).withColumn("reason", reason)


@dataclass(frozen=True)
class _ReasonText:
    """Texts of the column `detail`, which explain the reasons."""

    codec: Codec
    part: Part
    unknown: Set[SchemaKey]
    needs_python: bool

    def detail(self, reason: Column) -> Column:
        value, schema = F.col(self.part), F.col(f"{self.part}_schema")
        length = F.length(value).cast("string")
        name = F.coalesce(
            F.concat(F.lit("schema id "), schema_id_of(schema).cast("string")),
            F.concat(F.lit("schema GUID "), F.hex(F.substring(schema, 2, GUID_HEADER_LENGTH))),
        )
        text_of_reason = (
            F.when(reason == TOMBSTONE, f"the {self.part} is null")
            .when(
                reason == TOO_SHORT,
                F.concat(length, F.lit(f" bytes, fewer than the header's {HEADER_LENGTH}")),
            )
            .when(reason == BAD_MAGIC, self._bad_magic())
            .when(reason == UNKNOWN_SCHEMA_ID, self._unknown(schema, name))
            .when(reason == UNDECODABLE, self._undecodable(schema, name, reason))
        )
        for key, (_, text) in self.codec.refused.items():
            text_of_reason = text_of_reason.when(schema == F.lit(identifier(key)), text)
        return F.concat(F.lit("" if self.part == "value" else "key: "), text_of_reason)

    def _bad_magic(self) -> Column:
        header = F.col(f"{self.part}_named")
        in_header = F.concat(
            F.lit(f"the header {record_header(self.part)} is 0x"),
            F.hex(header),
            F.lit(", neither id nor GUID"),
        )
        in_front = F.concat(F.lit("byte 0 is 0x"), F.hex(F.substring(self.part, 1, 1)), F.lit(", not 0x00"))
        return F.when(header.isNotNull(), in_header).otherwise(in_front)

    def _unknown(self, schema: Column, name: Column) -> Column:
        unknown_ids = [identifier(key) for key in self.unknown]
        not_looked_up = F.concat(
            name, F.lit(" was not looked up, after others that the registry does not know; replay it")
        )
        if not unknown_ids:
            return not_looked_up
        return F.when(
            schema.isin(unknown_ids), F.concat(F.lit("the registry does not know "), name)
        ).otherwise(not_looked_up)

    def _undecodable(self, schema: Column, name: Column, reason: Column) -> Column:
        value = F.col(self.part)
        payload = F.when(F.col(f"{self.part}_named").isNull(), payload_of(value)).otherwise(value)
        parts = [
            F.lit("the "),
            F.length(payload).cast("string"),
            F.lit(" bytes are not one record of "),
            name,
        ]
        if self.needs_python:
            # Spark runs Python for every row of a projection, also for rows that no CASE branch needs it for.
            problem = self.codec.reason(F.when(reason == UNDECODABLE, payload), schema, self.part)
            parts.append(F.coalesce(F.concat(F.lit(": "), problem), F.lit("")))
        return F.concat(*parts)
