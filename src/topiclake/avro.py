"""Decoding Confluent-framed Avro with Spark's `from_avro`, exactly.

`from_avro` alone accepts trailing bytes and turns a corrupt record into a struct of nulls. Avro's binary
form of a record is its fields one after another, so each payload is wrapped: `payload || END` is decoded
as `record {event, end}`, and is right exactly when `end` comes out as END. docs/architecture.md, §2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from topiclake.wire_format import HEADER_LENGTH, header, header_of, is_framed, payload_of

#: Any long would do that random bytes rarely hold; a long is cheaper to decode than a fixed(8).
END = 0x5A17_E5C0_DE5E_A1ED


def zigzag(number: int) -> bytes:
    """Return Avro's binary form of a long (https://avro.apache.org/docs/1.12.0/specification/#binary)."""
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


END_BYTES = zigzag(END)


def framed(schema: str) -> str:
    """Wrap an Avro schema of any type into `record {event, end}`.

    The outer record has no namespace, so that names inside the schema mean what they meant before.
    """
    fields = [{"name": "event", "type": json.loads(schema)}, {"name": "end", "type": "long"}]
    return json.dumps({"type": "record", "name": "TopiclakeFramed", "fields": fields})


def is_record(schema: str) -> bool:
    """Tell whether an Avro schema is a record, whose fields become columns."""
    parsed = json.loads(schema)
    return isinstance(parsed, dict) and parsed.get("type") == "record"


def decoded(value: Column, writer_schemas: Mapping[int, str], reader_schema: str) -> Column:
    """Decode `value BINARY` by the schema that its own header names.

    Args:
        value: A Confluent-framed value.
        writer_schemas: Avro schemas by id.
        reader_schema: The Avro schema that every record is resolved to.

    Returns:
        `STRUCT<event: <reader schema>, end: BIGINT>`; right where `end` is END. Null where the header is
        not of a known id; never raises for a bad record.
    """
    payload = F.concat(payload_of(value), F.lit(END_BYTES))
    options = {"mode": "PERMISSIVE", "avroSchema": framed(reader_schema)}
    branches = [
        (header_of(value) == F.lit(header(schema_id)), from_avro(payload, framed(schema), options))
        for schema_id, schema in writer_schemas.items()
    ]
    first = F.when(*branches[0])
    cases = reduce(lambda case, branch: case.when(*branch), branches[1:], first)
    # Not deterministic, so that the optimizer does not push a filter on `end` below this projection, which
    # would decode every record twice. Always true.
    return F.when(F.spark_partition_id() >= 0, cases)


def is_right(result: Column) -> Column:
    """Tell whether `decoded` got one whole record and nothing else; false, never null, where it did not."""
    return result["end"].eqNullSafe(END)


def verdict(value: Column, result: Column, schema_ids: Mapping[int, str]) -> Column:
    """Name what became of a record: `ok`, or why it is not (docs/architecture.md, §3).

    Args:
        value: The Confluent-framed value.
        result: What `decoded` made of it.
        schema_ids: The ids that `decoded` knew.
    """
    is_known = header_of(value).isin([header(schema_id) for schema_id in schema_ids])
    return (
        F.when(is_right(result), "ok")
        .when(value.isNull(), "tombstone")
        .when(F.length(value) < HEADER_LENGTH, "too_short")
        .when(~is_framed(value), "bad_magic")
        .when(~is_known, "unknown_schema_id")
        .otherwise("undecodable")
    )
