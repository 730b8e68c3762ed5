"""The two forms of Avro in Kafka: Confluent's, which names its schema, and plain, which does not.

The bytes of a plain record do not show its schema. So each version that it may have is tried on it, framed
(`formats.avro.decoding`). The record then gets the header that a serializer would have written. So decoding,
quarantine and replay need not know plain records.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from topiclake.formats.avro import decoding as avro_decoding
from topiclake.formats.codec import Codec, first_of, once
from topiclake.schema_registry.wire_format import SchemaKey, header_of, identifier, record_header


def tag_plain_records(records: DataFrame, codec: Codec, usable: Sequence[SchemaKey]) -> DataFrame:
    """Add to plain records the header that names the schema of their values.

    Args:
        records: Kafka's columns, `headers` among them.
        codec: The codec of the schemas.
        usable: Schemas of the codec that values may have, oldest first. A value has the newest that it fits.
            A value that fits no schema is tagged with the newest, by which it does not decode.
    """
    if not usable:
        return records
    *older, newest = usable
    schema = F.lit(identifier(newest))
    if older:
        # One version needs no trial.
        tried = [
            (avro_decoding.fits(codec, records, key, F.col("value")), F.lit(identifier(key)))
            for key in reversed(usable)
        ]
        first = first_of(tried).otherwise(schema)
        schema = once(first)
    added = F.array(F.struct(F.lit(record_header("value")).alias("key"), schema.alias("value")))
    # The last header of a name counts.
    return records.withColumn("headers", F.concat(F.coalesce("headers", F.array()), added))


def untag_plain_records(records: DataFrame, usable: Sequence[SchemaKey]) -> DataFrame:
    """Return records without the header that `tag_plain_records` gave them."""
    if not usable:
        return records
    others = F.slice("headers", 1, F.size("headers") - 1)
    return records.withColumn("headers", F.when(F.size("headers") > 1, others))


def mismatch(codec: Codec, records: DataFrame, *, tries: bool = True) -> Column:
    """Say which form a value has, if it was read as the other form; else "".

    Args:
        codec: The codec of the schemas.
        records: The records.
        tries: Whether each schema of the codec is tried on a value without a header. Otherwise, plain Avro
            is not noticed. The plan of a micro-batch should decode only once.

    Returns:
        STRING, for records that `codec.identified` has seen and that are not right.
    """
    value, is_named = F.col("value"), F.col("value_named").isNotNull()
    headers = [identifier(key) for key in codec.writers if isinstance(key, int)]
    confluent = header_of(value).isin(headers) if headers else F.lit(False)
    detail = F.when(
        is_named & confluent,
        "; the value carries Confluent's header of a known schema: set avro_form=confluent",
    )
    for key in codec.writers if tries else ():
        plain = f"; the value is plain Avro of schema {key}: set avro_form=plain"
        detail = detail.when(~is_named & avro_decoding.fits(codec, records, key, value), plain)
    return F.coalesce(detail, F.lit(""))
