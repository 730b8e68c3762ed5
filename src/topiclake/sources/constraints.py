"""The constraints of a Delta table; a record whose row breaks one goes to quarantine.

Delta aborts a commit at the first such row, and a query that repeats its batch fails there again.
Source: https://docs.delta.io/delta-constraints/ and runs against Delta 4.4 (`test_constraints`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, CharType, DataType, MapType, StructField, StructType, VarcharType

from topiclake.delta.table import quoted
from topiclake.formats.codec import OWN

#: The column of rows before they are written: the record that they were made of.
RECORD = f"{OWN}record"
_IS_ROW = f"{OWN}is_row"
_CHECK = "delta.constraints."
#: First words of a constraint of `of_table`.
NOT_NULL = "NOT NULL "
#: Keys of the metadata in which Spark keeps a column's declared default, and its declared CHAR or VARCHAR.
_DEFAULT = "CURRENT_DEFAULT"
_DECLARED = "__CHAR_VARCHAR_TYPE_STRING"

#: The column of a decoded record with the constraint that it breaks: `STRING`, null if it breaks none. The
#: column exists only if the table has constraints.
REFUSED = f"{OWN}refused"


def of_table(columns: StructType, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the constraints of a table.

    Args:
        columns: Its columns.
        properties: Its table properties.

    Returns:
        Conditions in SQL of the table's columns, by their words, such as `CHECK positive` or `NOT NULL id`.
        A row breaks a condition that is false or null.
    """
    checks = {
        f"CHECK {name[len(_CHECK) :]}": condition
        for name, condition in properties.items()
        if name.lower().startswith(_CHECK)
    }
    required = {
        f"{NOT_NULL}{'.'.join(path)}": f"{'.'.join(map(quoted, path))} IS NOT NULL"
        for path in _required(columns)
    }
    lengths = {}
    for field in columns:
        declared = field.metadata.get(_DECLARED)
        if declared is not None:
            conditions = _lengths(quoted(field.name), DataType.fromDDL(declared))
            lengths[f"{declared} {field.name}"] = " AND ".join(conditions)
    return checks | required | lengths


def refusal(constraints: Mapping[str, str], changes: Mapping[str, str]) -> str | None:
    """Return why columns cannot change: Delta does not change the type of a column that a CHECK names.

    Args:
        constraints: Those of the table.
        changes: In words, by column.
    """
    for name, change in changes.items():
        for description, condition in constraints.items():
            if description.startswith("CHECK ") and re.search(
                rf"\b{re.escape(name)}\b", condition, re.IGNORECASE
            ):
                return f"{change}, and {description} of the table names it"
    return None


def with_refused(
    records: DataFrame,
    is_row: Column,
    as_rows: Callable[[DataFrame], DataFrame],
    columns: StructType,
    constraints: Mapping[str, str],
) -> DataFrame:
    """Add to decoded records the constraint that their rows break (`REFUSED`).

    Args:
        records: Decoded records.
        is_row: Whether a record is a row but for the constraints.
        as_rows: Makes rows of `records`, and keeps the column `RECORD`.
        columns: Those of the table.
        constraints: Those of the table (`of_table`).
    """
    # The record is one column meanwhile, since a field may have the name of a column of Kafka's.
    record = F.struct(is_row.alias(_IS_ROW), *records.columns).alias(RECORD)
    rows = as_rows(records.select(record, "*"))
    refused = F.when(F.col(RECORD)[_IS_ROW], F.col(REFUSED)).alias(REFUSED)
    return with_broken(rows, columns, constraints, REFUSED).select(f"{RECORD}.*", refused).drop(_IS_ROW)


def with_broken(rows: DataFrame, columns: StructType, constraints: Mapping[str, str], name: str) -> DataFrame:
    """Add the columns of a table that `rows` lack, and `name STRING`: the constraint that a row breaks.

    It is the first that is broken, in words; null if the row breaks no constraint. A column that a row lacks
    has the value that Delta would write: the column's default, or null.
    """
    checks = [
        F.when(~F.coalesce(F.expr(condition), F.lit(False)), description)
        for description, condition in constraints.items()
    ]
    return _completed(rows, columns).withColumn(name, F.coalesce(*checks))


def with_required(rows: DataFrame, columns: StructType) -> DataFrame:
    """Add the columns without which Delta refuses a commit, even of no rows: what must not be null, as null.

    Delta checks lengths within a struct by the positions of fields, so such a struct must be whole.
    """
    return _completed(rows, StructType([each for each in columns if _is_required(each)]))


def _is_required(field: StructField) -> bool:
    return any(_required(StructType([field]))) or "struct<" in field.metadata.get(_DECLARED, "")


def _required(columns: StructType) -> Iterator[tuple[str, ...]]:
    """Yield the paths of what must not be null; Delta asks for none within arrays and maps."""
    for field in columns:
        if not field.nullable:
            yield (field.name,)
        if isinstance(field.dataType, StructType):
            yield from ((field.name, *path) for path in _required(field.dataType))


def _lengths(value: str, kind: DataType, depth: int = 0) -> list[str]:
    """Return what must be true of a `value`, so that each of its texts is as short as declared."""
    if isinstance(kind, (CharType, VarcharType)):
        return [f"({value} IS NULL OR length({value}) <= {kind.length})"]
    if isinstance(kind, StructType):
        return [
            each
            for field in kind
            for each in _lengths(f"{value}.{quoted(field.name)}", field.dataType, depth)
        ]
    if isinstance(kind, ArrayType):
        return _items(value, value, kind.elementType, depth)
    if isinstance(kind, MapType):
        return [
            *_items(value, f"map_keys({value})", kind.keyType, depth),
            *_items(value, f"map_values({value})", kind.valueType, depth),
        ]
    return []


def _items(value: str, items: str, kind: DataType, depth: int) -> list[str]:
    item = f"item{depth}"
    conditions = _lengths(item, kind, depth + 1)
    return [f"({value} IS NULL OR forall({items}, {item} -> {each}))" for each in conditions]


def _completed(rows: DataFrame, columns: StructType) -> DataFrame:
    """Add to `rows` what they lack of `columns`, at any depth."""
    by_name = {field.name.lower(): field for field in rows.schema}
    added = {}
    for field in columns:
        column = by_name.get(field.name.lower())
        if column is None:
            default = F.expr(field.metadata.get(_DEFAULT, "NULL"))
            added[field.name] = default.cast(field.dataType)
        elif _lacks(column.dataType, field.dataType):
            added[column.name] = _filled(F.col(quoted(column.name)), column.dataType, field.dataType)
    return rows.withColumns(added) if added else rows


def _filled(value: Column, actual: DataType, expected: DataType) -> Column:
    """Add to a value the fields that it lacks, as nulls."""
    if not _lacks(actual, expected):
        return value
    if isinstance(actual, StructType) and isinstance(expected, StructType):
        remaining = {field.name.lower(): field for field in actual}
        fields = []
        for field in expected:
            column = remaining.pop(field.name.lower(), None)
            if column is None:
                inner = F.lit(None).cast(field.dataType)
            else:
                inner = _filled(value[column.name], column.dataType, field.dataType)
            fields.append(inner.alias(field.name))
        fields += [value[field.name].alias(field.name) for field in remaining.values()]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(actual, ArrayType) and isinstance(expected, ArrayType):
        return F.transform(value, lambda item: _filled(item, actual.elementType, expected.elementType))
    if isinstance(actual, MapType) and isinstance(expected, MapType):
        return F.transform_values(value, lambda _, item: _filled(item, actual.valueType, expected.valueType))
    return value


def _lacks(actual: DataType, expected: DataType) -> bool:
    """Return whether a value has not all the fields that are wanted of it."""
    if isinstance(actual, StructType) and isinstance(expected, StructType):
        kinds = {field.name.lower(): field.dataType for field in actual}
        return any(
            field.name.lower() not in kinds or _lacks(kinds[field.name.lower()], field.dataType)
            for field in expected
        )
    if isinstance(actual, ArrayType) and isinstance(expected, ArrayType):
        return _lacks(actual.elementType, expected.elementType)
    if isinstance(actual, MapType) and isinstance(expected, MapType):
        return _lacks(actual.valueType, expected.valueType)
    return False


def refusal_detail() -> Column:
    """Return the detail of a record that the table refuses; null for another one."""
    return F.concat(F.lit("the table demands "), F.col(REFUSED))
