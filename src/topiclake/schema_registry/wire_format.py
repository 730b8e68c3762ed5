"""Confluent's wire format: the schema that a record was written with, and the first byte of its Avro.

A topic may mix two forms:

1. Prefix: one magic byte (0), the schema id as four big-endian bytes, then Avro.
2. Record header: `__value_schema_id` (`__key_schema_id`) holds the same five bytes, or magic byte 1 and the
   schema's GUID (16 bytes). Key or value are then Avro from their first byte on.

Sources: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/#wire-format,
and `confluent_kafka.schema_registry` (dual_schema_id_deserializer).
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pyspark.sql import Column
from pyspark.sql import functions as F

MAGIC_BYTE = 0
HEADER_LENGTH = 5
GUID_MAGIC_BYTE = 1
GUID_HEADER_LENGTH = 17

#: The name of a record's writer schema: its id, or its GUID.
SchemaKey = int | str
Part = Literal["value", "key"]


def header(schema_id: int) -> bytes:
    """Return the five bytes before the payload of a record written with `schema_id`."""
    return bytes([MAGIC_BYTE]) + schema_id.to_bytes(4, "big", signed=schema_id < 0)


def identifier(key: SchemaKey) -> bytes:
    """Return the bytes that name a schema: those of `header`, or magic byte 1 and the GUID."""
    return header(key) if isinstance(key, int) else bytes([GUID_MAGIC_BYTE]) + UUID(key).bytes


def schema_key(identified: bytes) -> SchemaKey | None:
    """Return the id (signed, as Java's clients read it) or the GUID in `identified`; None: it is neither."""
    if len(identified) == HEADER_LENGTH and identified[0] == MAGIC_BYTE:
        return int.from_bytes(identified[1:], "big", signed=True)
    if len(identified) == GUID_HEADER_LENGTH and identified[0] == GUID_MAGIC_BYTE:
        return str(UUID(bytes=identified[1:]))
    return None


def frame(schema_id: int, payload: bytes) -> bytes:
    """Return `payload` (Avro's binary form of one record) as a Confluent-framed value."""
    return header(schema_id) + payload


def record_header(part: Part) -> str:
    """Return the name of the record header that may name the schema of a record's value or key."""
    return f"__{part}_schema_id"


def named_in_header(part: Part) -> Column:
    """Return what Kafka's column `headers` says of the schema of `part`, as BINARY; null if it says nothing.

    The last header of that name counts, as in Java's deserializer. No lambda: one would end code generation.
    """
    position = f"array_position(reverse(headers).key, '{record_header(part)}')"
    return F.expr(f"CASE WHEN headers IS NOT NULL THEN get(reverse(headers).value, int({position} - 1)) END")


def header_of(value: Column) -> Column:
    """Return the first five bytes of `value BINARY`, or fewer if it is shorter.

    Compared as binary: `conv(hex(…))` on each row costs a third of the throughput.
    """
    return F.substring(value, 1, HEADER_LENGTH)


def payload_of(value: Column) -> Column:
    """Return the bytes after the header of `value BINARY`."""
    return F.substring(value, HEADER_LENGTH + 1, 2**31 - 1)


def schema_id_of(identified: Column) -> Column:
    """Return the id in `identified BINARY` (see `identifier`) as INT; null if it holds no id.

    Four bytes from 0x80000000 on come out negative, as Java's clients read them.
    """
    unsigned = F.conv(F.hex(F.substring(identified, 2, 4)), 16, 10).cast("long")
    signed = F.when(unsigned > 0x7FFFFFFF, unsigned - 0x100000000).otherwise(unsigned)
    return F.when(is_id(identified), signed.cast("int"))


def is_id(identified: Column) -> Column:
    """Return whether `identified BINARY` is a whole header with magic byte 0."""
    return (F.length(identified) == HEADER_LENGTH) & (F.substring(identified, 1, 1) == F.lit(b"\0"))


def is_guid(identified: Column) -> Column:
    """Return whether `identified BINARY` is magic byte 1 and a GUID."""
    return (F.length(identified) == GUID_HEADER_LENGTH) & (F.substring(identified, 1, 1) == F.lit(b"\1"))
