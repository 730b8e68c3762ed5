"""Decoding Confluent-framed Avro with Spark's `from_avro`, exactly.

`from_avro` alone accepts trailing bytes and turns a corrupt record into a struct of nulls. Avro's binary
form of a record is its fields one after another, so each payload is wrapped: `payload || END` is decoded
as one field more, and is right exactly when that comes out as END. docs/architecture.md, §2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

from topiclake import avro_reason, avro_schema
from topiclake.wire_format import (
    HEADER_LENGTH,
    Part,
    SchemaKey,
    header_of,
    identifier,
    is_guid,
    is_id,
    named_in_header,
)

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

#: How names of Topiclake's own begin, which no field may have.
OWN = "_topiclake_"
END_FIELD = f"{OWN}end"


def framed(schema: str, *, behind_prefix: bool = False) -> str:
    """Wrap an Avro schema of any type into `record {event, _topiclake_end}`.

    The outer record has no namespace, so that names inside the schema mean what they meant before.

    Args:
        schema: A writer or a reader schema.
        behind_prefix: For a writer schema: five bytes stand in front of the event, which resolution skips. To
            cut them off would copy each value once more.
    """
    frame = {
        "type": "record",
        "name": "TopiclakeFramed",
        "fields": [{"name": "event", "type": json.loads(schema)}],
    }
    return _ended(frame, behind_prefix=behind_prefix)


def framed_row(schema: str, *, behind_prefix: bool = False) -> str:
    """Add to an Avro record what `framed` puts around it: one struct less is built for each row."""
    return _ended(json.loads(schema), behind_prefix=behind_prefix)


def _ended(record: dict[str, Any], *, behind_prefix: bool) -> str:
    prefix = {"type": "fixed", "name": f"{OWN}Prefix", "size": HEADER_LENGTH}
    before = [{"name": f"{OWN}prefix", "type": prefix}] if behind_prefix else []
    return json.dumps(record | {"fields": [*before, *record["fields"], {"name": END_FIELD, "type": "long"}]})


class Registered(Protocol):
    """A schema as a registry holds it; `schema` is self-contained."""

    @property
    def schema_type(self) -> str: ...  # noqa: D102
    @property
    def schema(self) -> str: ...  # noqa: D102
    @property
    def references(self) -> Sequence[tuple[str, str]]: ...  # noqa: D102


@dataclass(frozen=True)
class Codec:
    """What the schemas of a batch mean, by id or GUID.

    Attributes:
        reader: The Avro schema that all records are resolved to: the union of the versions, and of what was
            kept of earlier ones; None where there is none.
        writers: How records are decoded.
        refused: Why records are not decoded: `(reason, detail)`.
        kept: The reader as it is kept with the table (`avro_kept`); None where nothing must be.
    """

    reader: str | None = None
    writers: dict[SchemaKey, str] = field(default_factory=dict)
    refused: dict[SchemaKey, tuple[str, str]] = field(default_factory=dict)
    kept: str | None = None

    #: What the registry calls such schemas.
    schema_type: ClassVar[str] = "AVRO"

    @classmethod
    def of(
        cls,
        schemas: Mapping[SchemaKey, Registered],
        accepts: Callable[[str], str | None] = lambda reader: None,
        kept: str | None = None,
    ) -> Codec:
        """Unite schemas, oldest first, with what was `kept` of earlier ones.

        `accepts` says why a reader schema is not possible, or None.
        """
        usable = {key: each.schema for key, each in schemas.items() if each.schema_type == "AVRO"}
        united = avro_schema.unite(usable, accepts, kept)
        incompatible = {key: ("incompatible_schema", why) for key, why in united.incompatible.items()}
        refused = cls.of_other_types(schemas) | incompatible
        return cls(united.reader, united.writers, refused, united.kept)

    @classmethod
    def of_other_types(cls, schemas: Mapping[SchemaKey, Registered]) -> dict[SchemaKey, tuple[str, str]]:
        """Return why records of schemas of another type are not decoded."""
        return {
            key: ("wrong_schema_type", f"schema {key} is {each.schema_type}, not {cls.schema_type}")
            for key, each in schemas.items()
            if each.schema_type != cls.schema_type
        }

    @property
    def is_row(self) -> bool:
        """Whether it decodes records, whose fields are columns."""
        return self.reader is not None and avro_schema.is_record(self.reader)

    def judge(self, records: DataFrame, part: Part = "value") -> DataFrame:
        """Add what `decoded` makes of `part` to records that `identified` has seen, under that name."""
        name = "decoded" if part == "value" else f"decoded_{part}"
        return records.withColumn(name, decoded(self, part))

    def reason(self, payload: Column, schema: Column) -> Column:
        """Say why `payload BINARY`, of the schema named `schema BINARY`, is not right; runs Python."""
        writers = {identifier(key): text for key, text in self.writers.items()}
        return avro_reason.reason(payload, schema, writers)

    @property
    def keys(self) -> list[SchemaKey]:
        """Ids and GUIDs that it knows, whatever of."""
        return [*self.writers, *self.refused]


@dataclass(frozen=True)
class Codecs:
    """What the schemas of a batch mean, and the table that its rows go to.

    Attributes:
        value: For values.
        key: For keys; None where they are not decoded.
        table: Columns that the table has so far.
        constraints: What the table demands of its rows (`constraints.of_table`).
    """

    value: Codec
    key: Codec | None = None
    table: StructType = field(default_factory=StructType)
    constraints: Mapping[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> dict[Part, Codec]:
        """What is decoded of a record, and how."""
        of_value: dict[Part, Codec] = {"value": self.value}
        return of_value if self.key is None else {**of_value, "key": self.key}

    @property
    def keys(self) -> dict[Part, list[SchemaKey]]:
        """The schemas that it decodes with, by part."""
        return {part: list(codec.writers) for part, codec in self.parts.items()}


def identified(records: DataFrame, part: Part = "value") -> DataFrame:
    """Add to Kafka's columns what names the schema of `part`, and where its Avro is.

    Returns:
        The columns of `records` and `<part>_named BINARY` (null where no header names the schema),
        `<part>_schema BINARY` (see `wire_format.identifier`; any bytes where the record is bad),
        `<part>_framed BINARY` (five bytes, the Avro, END; once here, not in each branch of `decoded`).
    """
    named, value = F.col(f"{part}_named"), F.col(part)
    behind_prefix = F.when(named.isNull(), value).otherwise(F.concat(F.lit(bytes(HEADER_LENGTH)), value))
    return records.withColumn(f"{part}_named", named_in_header(part)).withColumns(
        {
            f"{part}_schema": F.coalesce(named, header_of(value)),
            f"{part}_framed": F.concat(behind_prefix, F.lit(END_BYTES)),
        }
    )


def decoded(codec: Codec, part: Part = "value") -> Column:
    """Decode `part` of a record by the schema that it names.

    Args:
        codec: What the schemas mean.
        part: `value` or `key`, of a DataFrame that `identified` has seen.

    Returns:
        A struct of the reader schema's fields and `_topiclake_end BIGINT`, for values that are records; of
        `event`, as the reader schema says, and `_topiclake_end`, for others and for keys. Right where
        it is END. Null where the schema is not one of the codec's; never raises for a bad record.
    """
    named, payload = F.col(f"{part}_schema"), F.col(f"{part}_framed")
    branches = [
        (named == F.lit(identifier(key)), decoded_as(codec, key, payload, part)) for key in codec.writers
    ]
    cases = (
        reduce(lambda case, branch: case.when(*branch), branches, F) if branches else _nothing(codec, part)
    )
    # Not deterministic, so that the optimizer does not push a filter on `end` below this projection, which
    # would decode every record twice; nor drop a plan that decodes nothing, and what it counts. Always true.
    return F.when(F.spark_partition_id() >= 0, cases)


def _wrap(codec: Codec, part: Part) -> Callable[..., str]:
    """Return what wraps the schemas of a part: `framed_row` for records of values, else `framed`."""
    return framed_row if part == "value" and codec.is_row else framed


def _nothing(codec: Codec, part: Part) -> Column:
    """Return null of the type that `decoded` returns, for a codec without writer schemas."""
    if codec.reader is None:
        return F.lit(None).cast(f"struct<event: string, {END_FIELD}: bigint>")
    return from_avro(F.lit(None).cast("binary"), _wrap(codec, part)(codec.reader))


def decoded_as(codec: Codec, key: SchemaKey, payload: Column, part: Part = "value") -> Column:
    """Decode five bytes, the Avro and END by the schema `key` of the codec; returns what `decoded` does."""
    wrapped = _wrap(codec, part)
    # A cluster's setting for dates before 1582 must not change what a record means.
    options = {
        "mode": "PERMISSIVE",
        "avroSchema": wrapped(codec.reader or '"null"'),
        "datetimeRebaseMode": "CORRECTED",
    }
    return from_avro(payload, wrapped(codec.writers[key], behind_prefix=True), options)


def fits(codec: Codec, key: SchemaKey, value: Column) -> Column:
    """Tell whether `value BINARY` is plain Avro of the schema `key` of the codec, from first to last byte."""
    payload = F.concat(F.lit(bytes(HEADER_LENGTH)), value, F.lit(END_BYTES))
    return is_right(decoded_as(codec, key, payload))


def is_right(result: Column) -> Column:
    """Tell whether `decoded` got one whole record and nothing else; false, never null, where it did not."""
    return result[END_FIELD].eqNullSafe(END)


def is_known(codec: Codec, part: Part = "value") -> Column:
    """Tell whether a record names a schema of `codec`; null where it names none."""
    known = [identifier(key) for key in codec.keys]
    return F.col(f"{part}_schema").isin(known) if known else F.lit(False)


def names_schema(part: Part = "value") -> Column:
    """Tell whether a record names a schema at all, known or not; false, never null, where it does not."""
    schema = F.col(f"{part}_schema")
    return F.coalesce(F.col(part).isNotNull() & (is_id(schema) | is_guid(schema)), F.lit(False))


def verdict(result: Column, codec: Codec, part: Part = "value") -> Column:
    """Name what became of a record: `ok`, or why it is not (docs/architecture.md, §3).

    Args:
        result: What `decoded` made of it.
        codec: What `decoded` knew.
        part: `value` or `key`.
    """
    schema = F.col(f"{part}_schema")
    refused = reduce(
        lambda case, key: case.when(schema == F.lit(identifier(key)), codec.refused[key][0]),
        codec.refused,
        F.when(is_right(result), "ok")
        .when(F.col(part).isNull(), "tombstone")
        .when(F.col(f"{part}_named").isNull() & (F.length(part) < HEADER_LENGTH), "too_short")
        .when(~names_schema(part), "bad_magic"),
    )
    return refused.when(~is_known(codec, part), "unknown_schema_id").otherwise("undecodable")
