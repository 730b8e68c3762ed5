"""The order of changes: the columns of the source, then the position in Kafka.

Texts such as `binlog.000003:123` and `0/16B3748` are compared part by part, as numbers. `_cdc` has them in a
form whose order as text is this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    IntegerType,
    LongType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from topiclake.changes import literals
from topiclake.delta.table import quoted, struct
from topiclake.errors import ConfigError

CDC_COLUMN = "_cdc"
#: The fields of `_cdc` that order the changes of a key after its columns.
PARTITION, OFFSET = "partition", "offset"

#: Types whose values have an order, and whose text is the same value again.
_ORDERED = (NumericType, DateType, TimestampType, TimestampNTZType, StringType)
#: Hexadecimal numbers with separators: log sequence numbers of PostgreSQL and SQL Server, UUIDs.
_HEXADECIMAL = r"^[0-9A-Fa-f]+([/:-][0-9A-Fa-f]+)+$"
_HEX_PARTS, _DECIMAL_PARTS = "([0-9A-F]+|[^0-9A-F]+)", "([0-9]+|[^0-9]+)"


@dataclass(frozen=True)
class Order:
    """The total order of the changes of a key.

    Attributes:
        fields: The columns of the source: path in the rows, name and type.
        position: Names of the columns with partition and offset in Kafka; None if the rows have none.
    """

    fields: tuple[tuple[str, str, DataType], ...]
    position: tuple[str, str] | None

    @classmethod
    def of(cls, schema: StructType, sequence_by: Sequence[str], kafka_column: str) -> Order:
        """Return the order of rows.

        Raises:
            ConfigError: A column does not exist or has no order, or there is no order at all.
        """
        kinds = [(path, path.replace(".", "_"), _type_of(schema, path)) for path in sequence_by]
        position = _position(schema, kafka_column)
        if not kinds and position is None:
            raise ConfigError(
                f"the rows have neither {kafka_column} nor Kafka's columns partition and offset, which order "
                "the changes of a key",
                "sequence_by='<column>'",
                parameter="sequence_by",
                reason="unordered",
            )
        return cls(tuple(kinds), position)

    @property
    def columns(self) -> StructType:
        """The fields of `_cdc` that order the changes of a key, the most important first.

        A MERGE copies each row of its files, and a struct within `_cdc` costs it a tenth of its time.
        """
        columns = [StructField(_field(name), kind) for _, name, kind in self.fields]
        if self.position:
            columns += [StructField(PARTITION, IntegerType()), StructField(OFFSET, LongType())]
        return StructType(columns)

    def values(self) -> list[Column]:
        """Return the fields of `columns` for a row of the stream."""
        values = [_sortable(F.col(path), kind).alias(_field(name)) for path, name, kind in self.fields]
        if self.position:
            partition, offset = map(F.col, self.position)
            values += [partition.cast("int").alias(PARTITION), offset.cast("bigint").alias(OFFSET)]
        return values

    def is_missing(self) -> Column:
        """Return whether a row of the stream has no complete order."""
        paths = [*(path for path, _, _ in self.fields), *(self.position or ())]
        names = (".".join(map(quoted, path.split("."))) for path in paths)
        return F.expr(" OR ".join(f"{name} IS NULL" for name in names))

    def key(self, cdc: str = CDC_COLUMN) -> Column:
        """Return a value of each row that has the order of the changes.

        Args:
            cdc: The column `_cdc`, with the alias of its rows.
        """
        return F.expr(self.sql(cdc))

    def sql(self, cdc: str = CDC_COLUMN) -> str:
        """Return `key` in SQL."""
        return struct({field.name: f"{cdc}.{quoted(field.name)}" for field in self.columns})

    def texts(self, cdc: Column) -> list[Column]:
        """Return the fields of an order as texts, for `literals`."""
        return [literals.text(cdc.getField(field.name), field.dataType) for field in self.columns]

    def literals(self, texts: Sequence[str]) -> dict[str, str]:
        """Return the fields of `key` as constants in SQL."""
        return {
            field.name: literals.literal(text, field.dataType)
            for text, field in zip(texts, self.columns, strict=True)
        }

    def literal(self, texts: Sequence[str]) -> str:
        """Return a constant in SQL that compares with `sql`."""
        return struct(self.literals(texts))


def _field(name: str) -> str:
    """Return the field of `_cdc` for a column; `_cdc` has fields with other names, too."""
    return f"order_{name}"


def _position(schema: StructType, kafka_column: str) -> tuple[str, str] | None:
    kafka = schema[kafka_column].dataType if kafka_column in schema.fieldNames() else schema
    if not (isinstance(kafka, StructType) and {PARTITION, OFFSET} <= set(kafka.fieldNames())):
        return None
    within = "" if kafka is schema else f"{kafka_column}."
    return f"{within}{PARTITION}", f"{within}{OFFSET}"


def _type_of(schema: StructType, path: str) -> DataType:
    kind: DataType = schema
    for name in path.split("."):
        if not isinstance(kind, StructType) or name not in kind.fieldNames():
            raise ConfigError(
                f"sequence_by names {path}, which the rows don't have",
                f"name one of {', '.join(schema.fieldNames())}, or a field of a struct",
                parameter="sequence_by",
                column=path,
            )
        kind = kind[name].dataType
    if not isinstance(kind, _ORDERED):
        raise ConfigError(
            f"sequence_by names {path}, whose type {kind.simpleString()} has no order",
            "name a number, a date, a time or a text",
            parameter="sequence_by",
            column=path,
            found=kind.simpleString(),
        )
    return kind


def _sortable(column: Column, kind: DataType) -> Column:
    """Return a value in a form that has the order of its numbers; only texts change."""
    if not isinstance(kind, StringType):
        return column
    is_hexadecimal = column.rlike(_HEXADECIMAL)
    numbers = _with_lengths(F.upper(column), _HEX_PARTS, "^[0-9A-F]")
    return F.when(is_hexadecimal, numbers).otherwise(_with_lengths(column, _DECIMAL_PARTS, "^[0-9]"))


def _with_lengths(text: Column, parts: str, number: str) -> Column:
    """Put the number of digits before each number, so that a number with fewer digits comes first."""

    def sortable(part: Column) -> Column:
        digits = F.ltrim(part, F.lit("0"))
        return F.when(
            part.rlike(number), F.concat(F.lpad(F.length(digits).cast("string"), 3, "0"), digits)
        ).otherwise(part)

    return F.array_join(F.transform(F.regexp_extract_all(text, F.lit(parts)), sortable), "")
