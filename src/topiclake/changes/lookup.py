"""The rows of a table by their keys, from the files that may have them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.changes import literals
from topiclake.delta.table import quoted

#: Types of keys by which Delta skips files.
_RANGED = ("tinyint", "smallint", "int", "bigint", "date", "string")
#: Bits of the whole numbers among them.
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
#: The ends of a range of numbers have steps of about this share of its width.
_STEPS = 16
#: Most keys that each executor gets whole.
_MOST_BROADCAST = 500_000


def ends(schema: StructType, keys: Sequence[str]) -> list[Column]:
    """Return the aggregates for `within`: the least and the greatest value of each key that has a range."""
    return [
        literals.text(end(F.col(quoted(key))), schema[key].dataType)
        for key in _ranged(schema, keys)
        for end in (F.min, F.max)
    ]


def within(
    schema: StructType, keys: Sequence[str], values: Sequence[str | None], alias: str = ""
) -> list[str]:
    """Return conditions in SQL for keys in a range, by which Delta skips files.

    Args:
        schema: The types of the keys.
        keys: The columns that identify a row.
        values: The values of `ends`.
        alias: The table's alias with a dot.
    """
    conditions = []
    for key, least, greatest in zip(_ranged(schema, keys), values[::2], values[1::2], strict=True):
        if least is not None and greatest is not None:
            kind = schema[key].dataType
            least, greatest = (
                literals.literal(end, kind) for end in _rounded(least, greatest, kind.simpleString())
            )
            conditions.append(f"{alias}{quoted(key)} BETWEEN {least} AND {greatest}")
    return conditions


def stored(table: DataFrame, wanted: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the rows of a table that have one of the wanted keys; neither is shuffled if these are few.

    Args:
        table: The rows of the table.
        wanted: The keys.
        keys: Names of the columns.
    """
    distinct = wanted.distinct()
    ((number, *values),) = distinct.agg(F.count("*"), *ends(wanted.schema, keys)).collect()
    for condition in within(wanted.schema, keys, values):
        table = table.where(condition)
    few = F.broadcast(distinct) if number <= _MOST_BROADCAST else distinct
    # The table may have them in another case.
    return table.join(few, list(keys), "left_semi").withColumnsRenamed({key: key for key in keys})


def _rounded(least: str, greatest: str, kind: str) -> tuple[str, str]:
    """Return the ends of a somewhat wider range of numbers, which are the same for most batches.

    Spark would compile the MERGE again for each batch: its code has numbers as constants.
    """
    if kind not in _BITS:
        return least, greatest
    first, last = int(least), int(greatest)
    step = 1 << ((last - first) // _STEPS).bit_length()
    most = 1 << _BITS[kind] - 1
    return str(max(first // step * step, -most)), str(min(last // step * step + step, most) - 1)


def _ranged(schema: StructType, keys: Sequence[str]) -> list[str]:
    return [key for key in keys if schema[key].dataType.simpleString() in _RANGED]
