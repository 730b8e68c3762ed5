"""From Kafka's records to rows of the table: DataFrame → DataFrame, nothing is executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.delta import evolution
from topiclake.delta import table as delta
from topiclake.formats.codec import (
    END_FIELD,
    OWN,
    Codec,
    Codecs,
    decode_status,
    identified,
    is_decoded,
    is_decoded_key,
    is_known_schema,
    names_schema,
)
from topiclake.local_frame import local_frame
from topiclake.reasons import OK, REFUSED_BY_TABLE, UNDECODABLE
from topiclake.schema_registry.wire_format import Part, SchemaKey, identifier, schema_id_of, schema_key
from topiclake.sources import constraints
from topiclake.sources.constraints import REFUSED
from topiclake.sources.layout import HEADERS_COLUMN, KAFKA_COLUMN, KEY_COLUMN, TOMBSTONE_COLUMN, Layout
from topiclake.streaming.failure import NOT_LISTED, refused_record

#: The column of a row before it is written: true if it is valid, false if it is rejected, null if skipped.
IS_VALID = f"{OWN}is_valid"


#: The number of distinct schemas and reasons that one batch collects, at most.
KEYS_OF_A_BATCH = 1000


def decode(records: DataFrame, codecs: Codecs, layout: Layout) -> DataFrame:
    """Decode each record by its own writer schema, and check its row against the table's constraints.

    Args:
        records: Kafka's columns.
        codecs: How records of the schemas are decoded.
        layout: The rows' other columns.

    Returns:
        Kafka's columns, what `identified` adds, and `decoded` (see `Codec.decode`); with keys
        `decoded_key` as well; `_topiclake_refused STRING` where the table has constraints.
    """
    decoded = codecs.value.decode(identified(records))
    if codecs.key is not None:
        decoded = codecs.key.decode(identified(decoded, "key"), "key")
    elif codecs.declared_key is not None:
        decoded = codecs.declared_key.decode_key(decoded)
    if not codecs.constraints:
        return decoded

    def as_rows(records: DataFrame) -> DataFrame:
        return evolution.cast_to_table(_row(records, codecs, layout, constraints.RECORD), codecs.table)

    is_row = _is_decoded(codecs, layout)
    return constraints.with_refused(decoded, is_row, as_rows, codecs.table, codecs.constraints)


def is_valid(codecs: Codecs, layout: Layout) -> Column:
    """Return whether a decoded record is a row of the table; never null."""
    is_row = _is_decoded(codecs, layout)
    return is_row & F.col(REFUSED).isNull() if codecs.constraints else is_row


def _is_decoded(codecs: Codecs, layout: Layout) -> Column:
    is_decoded_value = is_decoded(F.col("decoded"))
    if layout.keeps_tombstones:
        is_decoded_value |= F.col("value").isNull()
    return (
        is_decoded_value
        if codecs.key is None and codecs.declared_key is None
        else is_decoded_value & is_decoded_key()
    )


def value_status(codecs: Codecs, *, keeps_tombstones: bool) -> Column:
    """Return the status of a decoded record's value, as `decode_status`; that of a kept tombstone is `ok`."""
    reason = decode_status(F.col("decoded"), codecs.value)
    return F.when(F.col("value").isNull(), OK).otherwise(reason) if keeps_tombstones else reason


def status(codecs: Codecs, layout: Layout) -> Column:
    """Return the status of a decoded record's value, as `value_status`, or of its row."""
    reason = value_status(codecs, keeps_tombstones=layout.keeps_tombstones)
    return (
        F.when(F.col(REFUSED).isNotNull(), REFUSED_BY_TABLE).otherwise(reason)
        if codecs.constraints
        else reason
    )


def is_late(codec: Codec, part: Part, unknown: Collection[SchemaKey] = ()) -> Column:
    """Return whether a record names a schema that is neither `codec`'s nor `unknown`; never null."""
    late = names_schema(part) & ~is_known_schema(codec, part)
    if not unknown:
        return late
    return late & ~F.col(f"{part}_schema").isin([bytearray(identifier(key)) for key in unknown])


def is_rejected(codecs: Codecs, layout: Layout) -> Column:
    """Return whether a decoded record is rejected; a skipped tombstone is neither valid nor rejected."""
    rejected = ~is_valid(codecs, layout)
    return rejected & F.col("value").isNotNull() if layout.skips_tombstones else rejected


def count_records(layout: Layout) -> Column:
    """Count `records` that are valid or rejected: all of Kafka's, or those with a value."""
    return (F.count("value") if layout.skips_tombstones else F.count("*")).alias("records")


@dataclass(frozen=True)
class Tally:
    """Counts of records by reason, and the unknown schemas that they name, the most frequent first.

    Attributes:
        reasons: The number of records by the status of their value.
        late: Keys of schemas, by part.
        is_complete: Whether each record was counted.
    """

    reasons: dict[str, int]
    late: dict[Part, list[SchemaKey]]
    is_complete: bool

    def is_open(self, codecs: Codecs) -> bool:
        """Return whether records may become rows, with more schemas or without a constraint."""
        unknown = any(set(keys) - set(codecs.parts[part].keys) for part, keys in self.late.items())
        return unknown or REFUSED_BY_TABLE in self.reasons


def tally(
    records: DataFrame,
    codecs: Codecs,
    layout: Layout,
    unknown: Mapping[Part, Collection[SchemaKey]] = MappingProxyType({}),
) -> Tally:
    """Count records by status and schema; executes one job, and collects at most `KEYS_OF_A_BATCH` rows.

    Schemas in `unknown` are not listed.
    """
    decoded = decode(records, codecs, layout).where(is_rejected(codecs, layout) | is_valid(codecs, layout))
    parts = codecs.parts
    late = [
        F.when(is_late(codec, part, unknown.get(part, ())), F.col(f"{part}_schema")).alias(part)
        for part, codec in parts.items()
    ]
    reason = status(codecs, layout).alias("reason")
    groups = decoded.select(reason, *late).groupBy("reason", *parts).count()
    most_frequent = groups.orderBy(F.desc("count")).limit(KEYS_OF_A_BATCH).collect()
    keys = {
        part: [schema_key(bytes(row[part])) for row in most_frequent if row[part] is not None]
        for part in parts
    }
    reasons: Counter[str] = Counter()
    for row in most_frequent:
        reasons[row["reason"]] += row["count"]
    return Tally(
        dict(reasons),
        {
            part: [key for key in dict.fromkeys(schema_keys) if key is not None]
            for part, schema_keys in keys.items()
        },
        is_complete=len(most_frequent) < KEYS_OF_A_BATCH,
    )


def as_rows(decoded: DataFrame, codecs: Codecs, layout: Layout) -> DataFrame:
    """Return the table's columns and `_topiclake_is_valid BOOLEAN`, one row a record, right or not."""
    is_row = is_valid(codecs, layout)
    if layout.skips_tombstones:
        is_row = F.when(F.col("value").isNotNull(), is_row)
    rows = evolution.cast_to_table(
        _row(decoded.select(is_row.alias(IS_VALID), "*"), codecs, layout, IS_VALID), codecs.table
    )
    rows = _commented(rows, codecs)
    return constraints.with_required(rows, codecs.table) if codecs.constraints else rows


def _commented(rows: DataFrame, codecs: Codecs) -> DataFrame:
    """Add to columns that the table lacks their comments."""
    existing = {name.lower() for name in codecs.table.names}
    comments = {name: text for name, text in codecs.comments.items() if name.lower() not in existing}
    if not comments.keys() & set(rows.columns):
        return rows
    return rows.select(
        *(
            F.col(delta.quoted(name)).alias(name, metadata={"comment": comments[name]})
            if name in comments
            else F.col(delta.quoted(name))
            for name in rows.columns
        )
    )


def _row(decoded: DataFrame, codecs: Codecs, layout: Layout, *other_columns: str) -> DataFrame:
    """Return the columns that the value and the layout make, and `other_columns`."""
    expressions = _event(codecs.value)
    if layout.kafka:
        expressions.append(f"struct({', '.join(layout.kafka)}) AS {KAFKA_COLUMN}")
    if layout.key_expression is not None:
        expressions.append(f"{layout.key_expression} AS {KEY_COLUMN}")
    if layout.headers:
        expressions.append(f"headers AS {HEADERS_COLUMN}")
    if layout.keeps_tombstones:
        expressions.append(f"value IS NULL AS {TOMBSTONE_COLUMN}")
    return decoded.selectExpr(*expressions, *other_columns).drop(END_FIELD)


def _event(codec: Codec) -> list[str]:
    if codec.reader is None:
        return []
    return ["decoded.*"] if codec.is_row else ["decoded.event AS value"]


def valid_rows(flat: DataFrame) -> DataFrame:
    """Return the rows that belong into the table."""
    return flat.where(IS_VALID).drop(IS_VALID)


def columns(spark: SparkSession, codecs: Codecs, layout: Layout, record_schema: str) -> StructType:
    """Return the table's columns as the codecs and the layout want them; each may be null."""
    return delta.nullable(
        valid_rows(as_rows(decode(local_frame(spark, [], record_schema), codecs, layout), codecs, layout))
    )


def fail_on_bad_record(
    decoded: DataFrame, codecs: Codecs, layout: Layout, *, is_static: bool = False
) -> DataFrame:
    """Raise at the first record that is not right; inside the plan, so nothing of its batch is written.

    A record whose schema is still to be looked up does not raise, unless the plan `is_static`, for which
    nothing is looked up.
    """
    reason = status(codecs, layout)
    if codecs.key is not None:
        key_reason = F.concat(F.lit("key "), decode_status(F.col("decoded_key"), codecs.key, "key"))
        reason = F.when(reason == OK, key_reason).otherwise(reason)
    elif codecs.declared_key is not None:
        is_undecodable_key = (reason == OK) & ~is_decoded_key()
        reason = F.when(is_undecodable_key, f"key {UNDECODABLE}").otherwise(reason)
    schema_id = F.coalesce(schema_id_of(F.col("value_schema")).cast("string"), F.lit("none"))
    mismatch = codecs.value.mismatch(decoded, tries=is_static)
    broken = F.coalesce(F.concat(F.lit(": "), F.col(REFUSED)), F.lit("")) if codecs.constraints else F.lit("")
    refused = refused_record(F.lit(", schema id "), schema_id, F.lit(", reason "), reason, broken, mismatch)
    passes = is_valid(codecs, layout)
    for part, codec in codecs.parts.items() if not is_static else ():
        passes = passes | is_late(codec, part)
    if layout.skips_tombstones:
        passes = passes | F.col("value").isNull()
    return decoded.withColumn("decoded", F.when(passes, F.col("decoded")).otherwise(refused))


def fail_on_unknown_schema(
    decoded: DataFrame, codecs: Codecs, unknown: Mapping[Part, Collection[SchemaKey]]
) -> DataFrame:
    """Raise at the first record whose schema is neither known nor `unknown`; for a plan that is fixed."""
    for part, codec in codecs.parts.items():
        schema = F.col(f"{part}_schema")
        schema_id = F.coalesce(schema_id_of(schema).cast("string"), F.hex(schema))
        label = F.lit(", schema " if part == "value" else f", schema of its {part} ")
        undecided = refused_record(label, schema_id, F.lit(f": {NOT_LISTED}"))
        is_decided = ~is_late(codec, part, unknown.get(part, ()))
        decoded = decoded.withColumn("decoded", F.when(is_decided, F.col("decoded")).otherwise(undecided))
    return decoded
