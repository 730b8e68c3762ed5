"""Checks whether a Delta table can take rows of other types, and the table properties that they need.

Source: https://docs.delta.io/delta-type-widening/ and runs against Delta 4.4 (`test_evolution`).
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructType,
    TimestampNTZType,
)

#: The types that type widening can change an existing column to, by Spark's names of types.
_WIDER = {
    "tinyint": {"smallint", "int", "bigint", "double"},
    "smallint": {"int", "bigint", "double"},
    "int": {"bigint", "double"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
}

#: Readers without this feature, such as deltalake 1.x, cannot read a table that has it.
WIDENING = {"delta.enableTypeWidening": "true"}
TIMESTAMP_NTZ = {"delta.feature.timestampNtz": "supported"}


def refusal(table: StructType, row_columns: StructType) -> str | None:
    """Return why a table with columns `table` cannot take rows with columns `row_columns`, or None if it can.

    A column may be missing on either side: new columns are added, and missing ones are null.
    """
    for path, old, new in _differing(table, row_columns):
        if not (_widens(old, new) or _widens(new, old)):
            return _change(path, old, new)
    return None


def widened(table: StructType, row_columns: StructType) -> dict[str, str]:
    """Return by column, in words, the type changes that rows with columns `row_columns` need."""
    return {
        field.name: _change(path, old, new)
        for field in table
        for path, old, new in _differing(StructType([field]), row_columns)
        if _widens(old, new)
    }


def changes(table: StructType, row_columns: StructType) -> list[str]:
    """Return in words the column changes that rows with columns `row_columns` need, new columns first."""
    compared = _compared(table, row_columns, "")
    added = [f"new: {path} {kind.simpleString()}" for path, old, kind in compared if old is None]
    return added + list(widened(table, row_columns).values())


def _change(path: str, old: DataType, new: DataType) -> str:
    return f"{path} is {old.simpleString()} in the table and would become {new.simpleString()}"


def parquet_refusal(files: StructType, row_columns: StructType) -> str | None:
    """Return why files with columns `row_columns` cannot be added to Parquet files, or None if they can.

    Readers of Parquet files add missing columns, but widen no type.
    """
    for path, old, new in _differing(files, row_columns):
        return (
            f"{path} is {old.simpleString()} in the Parquet files and would become {new.simpleString()}, "
            "which no reader of both unites"
        )
    return None


def properties(table: StructType, row_columns: StructType) -> dict[str, str]:
    """Return the table properties that must be set before rows with columns `row_columns` are appended."""
    needed: dict[str, str] = {}
    if widened(table, row_columns):
        needed |= WIDENING
    if _holds_ntz(row_columns) and not _holds_ntz(table):
        needed |= TIMESTAMP_NTZ
    return needed


def cast_to_table(rows: DataFrame, table: StructType) -> DataFrame:
    """Cast columns of `rows` to the types of the table where those are wider."""
    wider = {
        field.name: F.col(f"`{field.name}`").cast(merged.dataType)
        for field, merged in zip(rows.schema, _merged_structs(table, rows.schema), strict=True)
        if merged.dataType != field.dataType
    }
    return rows.withColumns(wider) if wider else rows


def _widens(old: DataType, new: DataType) -> bool:
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
    return new.simpleString() in _WIDER.get(old.simpleString(), ())


def _differing(old: DataType, new: DataType) -> Iterator[tuple[str, DataType, DataType]]:
    """Yield path and types of the leaf fields whose types differ between `old` and `new`."""
    for path, before, after in _compared(old, new, ""):
        if before is not None:
            yield path, before, after


def _compared(old: DataType, new: DataType, path: str) -> Iterator[tuple[str, DataType | None, DataType]]:
    """Yield path and types of the fields in which `new` differs; an added field has None as its old type."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        old_types = {field.name.lower(): field.dataType for field in old}
        for field in new:
            inner = f"{path}.{field.name}" if path else field.name
            if field.name.lower() in old_types:
                yield from _compared(old_types[field.name.lower()], field.dataType, inner)
            else:
                yield inner, None, field.dataType
    elif isinstance(old, ArrayType) and isinstance(new, ArrayType):
        yield from _compared(old.elementType, new.elementType, f"{path}.element")
    elif isinstance(old, MapType) and isinstance(new, MapType):
        yield from _compared(old.keyType, new.keyType, f"{path}.key")
        yield from _compared(old.valueType, new.valueType, f"{path}.value")
    elif old != new:
        yield path, old, new


def _merged(table: DataType, row: DataType) -> DataType:
    """Return the type of `row`, with leaf fields at least as wide as those of `table`."""
    if isinstance(table, StructType) and isinstance(row, StructType):
        return _merged_structs(table, row)
    if isinstance(table, ArrayType) and isinstance(row, ArrayType):
        return ArrayType(_merged(table.elementType, row.elementType), row.containsNull)
    if isinstance(table, MapType) and isinstance(row, MapType):
        value = _merged(table.valueType, row.valueType)
        return MapType(_merged(table.keyType, row.keyType), value, row.valueContainsNull)
    return table if _widens(row, table) else row


def _merged_structs(table: StructType, row: StructType) -> StructType:
    types = {field.name.lower(): field.dataType for field in table}
    merged = StructType()
    for field in row:
        kind = _merged(types.get(field.name.lower(), field.dataType), field.dataType)
        merged.add(field.name, kind, field.nullable)
    return merged


def _holds_ntz(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_holds_ntz(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _holds_ntz(kind.elementType)
    if isinstance(kind, MapType):
        return _holds_ntz(kind.keyType) or _holds_ntz(kind.valueType)
    return isinstance(kind, TimestampNTZType)
