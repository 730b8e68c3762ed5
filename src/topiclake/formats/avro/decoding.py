"""Decoding Confluent-framed Avro with Spark's `from_avro`, exactly.

`from_avro` alone accepts trailing bytes and turns a corrupt record into a struct of nulls. Avro's binary
form of a record is the sequence of its fields. So each payload is wrapped: `payload || END` is decoded with
one more field, and is right exactly if that field is END. See docs/decoding.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from topiclake.formats.codec import END, END_FIELD, OWN, Codec, first_of, is_decoded, null_decoded, once
from topiclake.schema_registry.wire_format import HEADER_LENGTH, Part, SchemaKey, identifier
from topiclake.session import needs_guard


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


def framed(schema: str, *, after_prefix: bool = False) -> str:
    """Wrap an Avro schema of any type into `record {event, _topiclake_end}`.

    The outer record has no namespace, so that names inside the schema keep their meaning.

    Args:
        schema: A writer or a reader schema.
        after_prefix: For a writer schema: five bytes precede the event, and resolution skips them. To cut
            them off would copy each value once more.
    """
    frame = {
        "type": "record",
        "name": "TopiclakeFramed",
        "fields": [{"name": "event", "type": json.loads(schema)}],
    }
    return _ended(frame, after_prefix=after_prefix)


def framed_row(schema: str, *, after_prefix: bool = False) -> str:
    """Add to an Avro record what `framed` puts around it: one struct less is built for each row."""
    return _ended(json.loads(schema), after_prefix=after_prefix)


def _ended(record: dict[str, Any], *, after_prefix: bool) -> str:
    prefix = {"type": "fixed", "name": f"{OWN}Prefix", "size": HEADER_LENGTH}
    before = [{"name": f"{OWN}prefix", "type": prefix}] if after_prefix else []
    return json.dumps(record | {"fields": [*before, *record["fields"], {"name": END_FIELD, "type": "long"}]})


def framed_payload(codec: Codec, records: DataFrame, part: Part = "value") -> Column:
    """Return five bytes, the Avro and END of `part` of records that `identified` has seen.

    A separate column, not an expression in each branch of `decoded`. In a JVM without Avro's limits, it is
    null unless Python has read the record whole.
    """
    prefix = f"CASE WHEN {part}_named IS NULL THEN X'' ELSE X'{bytes(HEADER_LENGTH).hex()}' END"
    payload = F.expr(f"concat({prefix}, {part}, X'{END_BYTES.hex()}')")
    return _safe(codec, records, payload, F.col(f"{part}_schema"), part)


def _safe(codec: Codec, records: DataFrame, payload: Column, schema: Column, part: Part) -> Column:
    if not needs_guard(records.sparkSession):
        return payload
    # Its packages are optional where the JVM has the limits.
    from topiclake.formats.avro.guard import checked

    wrapped = _wrap(codec, part)
    writers = {identifier(key): wrapped(text, after_prefix=True) for key, text in codec.writers.items()}
    return checked(payload, schema, writers)


def decoded(codec: Codec, part: Part = "value") -> Column:
    """Decode `part` of a record by the schema that it names.

    Args:
        codec: The codec of the schemas.
        part: `value` or `key`, of a DataFrame that `identified` has seen, with `<part>_framed`.

    Returns:
        The struct that `Codec.decode` adds.
    """
    payload = F.col(f"{part}_framed")
    # Versions that differ in their documentation or defaults alone have the same writer.
    keys_by_writer: dict[str, list[SchemaKey]] = {}
    for key, writer in codec.writers.items():
        keys_by_writer.setdefault(writer, []).append(key)
    branches = [
        (_names_one_of(keys, part), decoded_as(codec, keys[0], payload, part))
        for keys in keys_by_writer.values()
    ]
    # A filter on `end` would decode every record twice. And a plan that decodes nothing keeps its counts.
    return once(first_of(branches) if branches else _undecoded(codec, part))


def _names_one_of(keys: Sequence[SchemaKey], part: Part) -> Column:
    identifiers = ", ".join(f"X'{identifier(key).hex()}'" for key in keys)
    return F.expr(f"{part}_schema IN ({identifiers})")


def _wrap(codec: Codec, part: Part) -> Callable[..., str]:
    """Return the function that wraps a part's schemas: `framed_row` for records of values, else `framed`."""
    return framed_row if part == "value" and codec.is_row else framed


def _undecoded(codec: Codec, part: Part) -> Column:
    """Return null of the type that `decoded` returns, for a codec without writer schemas."""
    if codec.reader is None:
        return null_decoded()
    return from_avro(F.lit(None).cast("binary"), _wrap(codec, part)(codec.reader))


def decoded_as(codec: Codec, key: SchemaKey, payload: Column, part: Part = "value") -> Column:
    """Decode five bytes, the Avro and END by the schema `key` of the codec; returns what `decoded` does."""
    wrapped = _wrap(codec, part)
    # A cluster's setting for dates before 1582 must not change a record's meaning.
    options = {
        "mode": "PERMISSIVE",
        "avroSchema": wrapped(codec.reader or '"null"'),
        "datetimeRebaseMode": "CORRECTED",
    }
    return from_avro(payload, wrapped(codec.writers[key], after_prefix=True), options)


def fits(codec: Codec, records: DataFrame, key: SchemaKey, value: Column) -> Column:
    """Return whether `value BINARY` is plain Avro of the schema `key`, from its first byte to its last."""
    payload = F.concat(F.lit(bytes(HEADER_LENGTH)), value, F.lit(END_BYTES))
    payload = _safe(codec, records, payload, F.lit(identifier(key)), "value")
    return is_decoded(decoded_as(codec, key, payload))
