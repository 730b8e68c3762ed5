"""The rows that a display fetches: few, and cut in Spark, so that no row is too big for the driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.display.table import MAX_CELL_CHARACTERS, MAX_ROWS, Columns, Redaction, Rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

#: Approximate maximum of one fetch: with many wide columns each value is cut shorter.
MAX_FETCHED_CHARACTERS = 16_000_000
#: Where a value is cut; longer than a cell, since the secrets in it become shorter.
MAX_VALUE_CHARACTERS = 4_096
_POSITION = "_position"
#: Types that `to_json` cannot write, or writes as a Java object's address.
_NO_JSON = re.compile(r"\btime\(|map<binary")
#: `monotonically_increasing_id` has the partition above these bits, the place within it below.
_WITHIN_PARTITION = (1 << 33) - 1


@dataclass(frozen=True)
class Fetched:
    """Rows that came from Spark.

    Attributes:
        columns: Names and types.
        rows: At most `MAX_ROWS` + 1.
        characters: Where Spark cut each value.
    """

    columns: Columns
    rows: Sequence[Sequence[object]]
    characters: int

    def cells(self, redaction: Redaction) -> Rows:
        """Return the rows as text without secrets."""
        return [[redaction.cell(value, self.characters) for value in row] for row in self.rows]


def columns_of(frame: DataFrame) -> Columns:
    """Return names and types."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]


def fetch_first(frame: DataFrame) -> Fetched:
    """Fetch the first rows of a DataFrame."""
    characters = _value_characters(frame)
    rows = _cut_values(frame.limit(MAX_ROWS + 1), characters).collect()
    return Fetched(columns_of(frame), rows, characters)


def fetch_batch(batch: DataFrame, *, newest: bool) -> Fetched:
    """Fetch rows of a micro-batch, in one job that reads all of it.

    A second job would count the records twice in the query's progress. A job that stops early would count too
    few records, and would not commit the state of an aggregation.

    Args:
        batch: The DataFrame that `foreachBatch` passes.
        newest: The last rows of each partition, the last one first; otherwise the first rows in their order.
    """
    from pyspark.sql import functions as F

    characters = _value_characters(batch)
    position = F.col(_POSITION)
    order = [position.bitwiseAND(_WITHIN_PARTITION).desc(), position.desc()] if newest else [position.asc()]
    numbered = _cut_values(batch, characters).withColumn(_POSITION, F.monotonically_increasing_id())
    rows = numbered.orderBy(*order).limit(MAX_ROWS + 1).collect()
    return Fetched(columns_of(batch), [tuple(row)[:-1] for row in rows], characters)


def _value_characters(frame: DataFrame) -> int:
    wide = sum(_kind(field.dataType) != "narrow" for field in frame.schema.fields)
    share = MAX_FETCHED_CHARACTERS // ((MAX_ROWS + 1) * max(wide, 1))
    return max(MAX_CELL_CHARACTERS + 1, min(MAX_VALUE_CHARACTERS, share))


def _cut_values(frame: DataFrame, characters: int) -> DataFrame:
    from pyspark.sql import functions as F

    kinds = [field.dataType for field in frame.schema.fields]
    # By number: two columns of a join may have one name.
    names = [f"_{number}" for number in range(len(kinds))]
    columns = (_cut(F.col(name), kind, characters) for name, kind in zip(names, kinds, strict=True))
    return frame.toDF(*names).select(
        *(column.alias(name) for column, name in zip(columns, names, strict=True))
    )


def _cut(value: Column, kind: DataType, characters: int) -> Column:
    from pyspark.sql import functions as F

    match _kind(kind):
        case "text":
            return F.substring(value, 1, characters)
        case "nested":
            return F.substring(F.to_json(value, {"ignoreNullFields": "false"}), 1, characters)
        case "foreign":
            return F.substring(value.cast("string"), 1, characters)
    return value


def _kind(kind: DataType) -> str:
    from pyspark.sql import types as T

    if isinstance(kind, T.StringType | T.CharType | T.VarcharType | T.BinaryType):
        return "text"
    if isinstance(kind, T.YearMonthIntervalType | T.CalendarIntervalType):
        return "foreign"
    if isinstance(kind, T.ArrayType | T.MapType | T.StructType | T.VariantType):
        return "foreign" if _NO_JSON.search(kind.simpleString()) else "nested"
    return "narrow"
