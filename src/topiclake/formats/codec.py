"""Codecs for the schemas of a batch: the contract of each format of the registry.

A value is right if its decoder got one whole record and nothing else. Each format then sets the field
`_topiclake_end` of the decoded value to END.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.reasons import (
    BAD_MAGIC,
    INCOMPATIBLE_SCHEMA,
    OK,
    TOMBSTONE,
    TOO_SHORT,
    UNDECODABLE,
    UNKNOWN_SCHEMA_ID,
    WRONG_SCHEMA_TYPE,
)
from topiclake.schema_registry.wire_format import (
    HEADER_LENGTH,
    Part,
    SchemaKey,
    identifier,
    is_guid,
    is_id,
    named_in_header,
)

if TYPE_CHECKING:
    from typing_extensions import Self

#: Any long would do that random bytes rarely hold; a long is cheaper to decode than a fixed(8).
END = 0x5A17_E5C0_DE5E_A1ED

#: The prefix of Topiclake's names, which no field may have.
OWN = "_topiclake_"

END_FIELD = f"{OWN}end"


class SchemaVersion(Protocol):
    """A schema as a registry holds it; `references` are name and text of each that it refers to."""

    @property
    def schema_type(self) -> str: ...  # noqa: D102
    @property
    def schema(self) -> str: ...  # noqa: D102
    @property
    def references(self) -> Sequence[tuple[str, str]]: ...  # noqa: D102


@dataclass(frozen=True)
class Codec(ABC):
    """Decoders for the schemas of a batch, by id or GUID; a format of the registry is a subclass.

    Attributes:
        reader: The schema that all records are resolved to: the union of the usable versions and of the
            stored reader. None if there is neither.
        writers: How records are decoded.
        refused: Why records are not decoded: `(reason, detail)`.
        reader_text: The reader as the table stores it (`stored_reader`); None if the table needs none.
        comment: The newest schema's documentation of its records, or "".
        comments: Its documentation of their fields, by name.
    """

    reader: str | None = None
    writers: dict[SchemaKey, str] = field(default_factory=dict)
    refused: dict[SchemaKey, tuple[str, str]] = field(default_factory=dict)
    reader_text: str | None = None
    comment: str = ""
    comments: Mapping[str, str] = field(default_factory=dict)

    #: The registry's name for the type of such schemas.
    schema_type: ClassVar[str]

    @classmethod
    def of_other_types(cls, schemas: Mapping[SchemaKey, SchemaVersion]) -> dict[SchemaKey, tuple[str, str]]:
        """Return why records of schemas of another type are not decoded."""
        return {
            key: (WRONG_SCHEMA_TYPE, f"schema {key} is {each.schema_type}, not {cls.schema_type}")
            for key, each in schemas.items()
            if each.schema_type != cls.schema_type
        }

    @classmethod
    def unite(
        cls,
        schemas: Mapping[SchemaKey, SchemaVersion],
        extended: Callable[[Any, SchemaVersion], tuple[Any, Any]],
        accepts: Callable[[str], str | None],
    ) -> Self:
        """Unite schemas, oldest first; a schema that cannot be united is refused.

        Args:
            schemas: Schemas of the registry.
            extended: Returns the reader (None before the first schema) with the fields of a schema, and
                the writer that decodes its records, both as JSON data. ValueError: it cannot.
            accepts: Returns why a reader is not possible, or None.
        """
        reader: Any = None
        writers: dict[SchemaKey, str] = {}
        refused = cls.of_other_types(schemas)
        for key in (key for key in schemas if key not in refused):
            try:
                candidate, writer = extended(reader, schemas[key])
                refusal = accepts(json.dumps(candidate))
            except (ValueError, RecursionError) as error:
                refusal = str(error)
            if refusal:
                refused[key] = INCOMPATIBLE_SCHEMA, refusal
            else:
                reader, writers[key] = candidate, json.dumps(writer)
        return cls(reader and json.dumps(reader), writers, refused)

    @property
    def is_row(self) -> bool:
        """Whether it decodes values whose fields are columns; else it is one column `value`."""
        return self.reader is not None

    @abstractmethod
    def decode(self, records: DataFrame, part: Part = "value") -> DataFrame:
        """Decode `part` of records that `identified` has seen.

        Returns:
            The columns of `records`, and the struct `decoded`, or `decoded_key`. For values whose fields are
            columns, it has the reader schema's fields and `_topiclake_end BIGINT`. For other values and for
            keys, it has `event`, of the reader schema's type, and `_topiclake_end`. The record is right if
            `_topiclake_end` is END. The struct is null if the codec lacks the schema; a bad record never
            raises.
        """

    @abstractmethod
    def reason(self, payload: Column, schema: Column, part: Part = "value") -> Column:
        """Say why `payload BINARY` of a part, of the schema named `schema BINARY`, is wrong; runs Python."""

    def mismatch(self, records: DataFrame, *, tries: bool = True) -> Column:
        """Say which form a value has, if it was read as the other form; else "".

        Args:
            records: The records.
            tries: Whether each schema of the codec is tried on a value without a header. Otherwise, the form
                without a header is not noticed. The plan of a micro-batch should decode only once.

        Returns:
            STRING, for records that `identified` has seen and that are not right.
        """
        return F.lit("")

    @property
    def keys(self) -> list[SchemaKey]:
        """The ids and GUIDs that it knows, of usable and refused schemas."""
        return [*self.writers, *self.refused]


class KeyFormat(Protocol):
    """The format of keys that name no schema."""

    def decode_key(self, records: DataFrame) -> DataFrame:
        """Add `decoded_key`, a struct as `Codec.decode` adds it."""

    def key_detail(self) -> Column:
        """Say what is wrong with the key of a record that `is_decoded_key` refuses; may run Python."""


@dataclass(frozen=True)
class Codecs:
    """The codecs of a batch, and the table that its rows go to.

    Attributes:
        value: For values.
        key: For keys; None if they name no schema.
        declared_key: For keys that name no schema; None if they are not decoded.
        comments: Comments of columns that a table does not have yet, by name.
        table: Columns that the table has so far.
        constraints: The conditions that the table's rows must meet (`constraints.of_table`).
    """

    value: Codec
    key: Codec | None = None
    table: StructType = field(default_factory=StructType)
    constraints: Mapping[str, str] = field(default_factory=dict)
    declared_key: KeyFormat | None = None
    comments: Mapping[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> dict[Part, Codec]:
        """The parts of a record that are decoded, each with its codec."""
        of_value: dict[Part, Codec] = {"value": self.value}
        return of_value if self.key is None else {**of_value, "key": self.key}

    @property
    def keys(self) -> dict[Part, list[SchemaKey]]:
        """The schemas that it decodes with, by part."""
        return {part: list(codec.writers) for part, codec in self.parts.items()}


def identified(records: DataFrame, part: Part = "value") -> DataFrame:
    """Add the columns that name the schema of `part` to Kafka's columns.

    Returns:
        The columns of `records` and `<part>_named BINARY` (null where no header names the schema),
        `<part>_schema BINARY` (see `wire_format.identifier`; any bytes where the record is bad).
    """
    schema = F.expr(f"coalesce({part}_named, substring({part}, 1, {HEADER_LENGTH}))")
    return records.withColumn(f"{part}_named", named_in_header(part)).withColumn(f"{part}_schema", schema)


def null_decoded() -> Column:
    """Return the result of `Codec.decode` without any schema: null."""
    return F.lit(None).cast(f"struct<event: string, {END_FIELD}: bigint>")


def decoded_name(part: Part) -> str:
    """Return the name of the column that `Codec.decode` adds."""
    return "decoded" if part == "value" else f"decoded_{part}"


def decoded_row(fields: Sequence[Column], is_complete: Column, part: Part = "value") -> Column:
    """Return the struct that `Codec.decode` returns of a value whose fields are columns, or of such a key."""
    if part == "key":
        fields = [F.when(F.col(part).isNotNull(), F.struct(*fields)).alias("event")]
    return F.struct(*fields, F.when(is_complete, F.lit(END)).alias(END_FIELD))


def first_of(branches: Sequence[tuple[Column, Column]]) -> Column:
    """Return the value of the first branch whose condition is true, or null."""
    (condition, value), *more = branches
    return reduce(lambda case, branch: case.when(*branch), more, F.when(condition, value))


def once(column: Column) -> Column:
    """Return a column that Spark computes once a row, however often a later one or a filter refers to it.

    It is not deterministic, so Spark does not put its expression in place of a reference.
    """
    return F.when(F.spark_partition_id() >= 0, column)


def is_decoded(result: Column) -> Column:
    """Return whether `decoded` got one whole record and nothing else; never null."""
    return result[END_FIELD].eqNullSafe(END)


def is_decoded_key() -> Column:
    """Return whether a record has no key, or one that was decoded; never null."""
    return F.col("key").isNull() | is_decoded(F.col("decoded_key"))


def is_known_schema(codec: Codec, part: Part = "value") -> Column:
    """Return whether a record names a schema of `codec`; null if it names no schema."""
    identifiers = [identifier(key) for key in codec.keys]
    return F.col(f"{part}_schema").isin(identifiers) if identifiers else F.lit(False)


def names_schema(part: Part = "value") -> Column:
    """Return whether a record names a schema at all, known or not; never null."""
    schema = F.col(f"{part}_schema")
    return F.coalesce(F.col(part).isNotNull() & (is_id(schema) | is_guid(schema)), F.lit(False))


def decode_status(result: Column, codec: Codec, part: Part = "value") -> Column:
    """Return the status of a record: `ok`, or the reason why not (docs/exactly-once.md).

    Args:
        result: The result of `decoded`.
        codec: The codec that decoded it.
        part: `value` or `key`.
    """
    schema = F.col(f"{part}_schema")
    refused = reduce(
        lambda case, key: case.when(schema == F.lit(identifier(key)), codec.refused[key][0]),
        codec.refused,
        F.when(is_decoded(result), OK)
        .when(F.col(part).isNull(), TOMBSTONE)
        .when(F.col(f"{part}_named").isNull() & (F.length(part) < HEADER_LENGTH), TOO_SHORT)
        .when(~names_schema(part), BAD_MAGIC),
    )
    return refused.when(~is_known_schema(codec, part), UNKNOWN_SCHEMA_ID).otherwise(UNDECODABLE)


class ImpossibleSchemaError(ValueError):
    """Spark, its JVM or a Delta table cannot have a reader schema; says why."""
