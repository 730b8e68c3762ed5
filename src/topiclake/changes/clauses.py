"""The clauses of the MERGE of a batch of changes in SQL, with the aliases `old` and `new`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from topiclake.changes.history import NEW
from topiclake.changes.newest import CLEARED, SINCE
from topiclake.changes.order import CDC_COLUMN, Order
from topiclake.changes.rows import DELETED, END, START, data_columns
from topiclake.changes.rules import ChangeRules
from topiclake.changes.truncates import Truncate
from topiclake.delta.table import quoted, struct


def same_row(rules: ChangeRules, order: Order) -> list[str]:
    """Return the conditions that two rows are one: by their keys, and versions also by their order."""
    columns = [quoted(key) for key in rules.keys]
    if rules.has_versions:
        columns += [f"{CDC_COLUMN}.{quoted(field.name)}" for field in order.columns]
    return [f"old.{column} = new.{column}" for column in columns]


def versions(merged: DataFrame, rules: ChangeRules) -> list[str]:
    """Update or insert changes of SCD type 2; a row that was deleted since it was read does not come back."""
    merged = merged.drop(NEW)
    updates = _new([*data_columns(merged.schema, rules.keys), START, END, CDC_COLUMN])
    inserted = _inserted(merged.columns, f" AND new.{NEW}")
    return [f"WHEN MATCHED THEN UPDATE SET {_assigned(updates)}", inserted]


def newest(
    merged: DataFrame, table: DataFrame, rules: ChangeRules, order: Order, truncate: Truncate | None
) -> list[str]:
    """Update rows of SCD type 1 that are older than their change, and insert the others.

    Args:
        merged: The newest change of each key.
        table: The rows of the table.
        rules: The keys.
        order: The order of changes.
        truncate: A truncate that the table does not have yet.
    """
    kinds = data_columns(merged.drop(CLEARED, SINCE).schema, rules.keys)
    stored = {name.lower(): (name, kind) for name, kind in data_columns(table.schema, rules.keys).items()}
    old = order.sql(f"old.{CDC_COLUMN}")
    updates = _new([*kinds, CDC_COLUMN])
    is_cleared = f"WHEN new.{CLEARED} > {old} THEN NULL"
    since = merged.select(f"{SINCE}.*").columns if SINCE in merged.columns else []
    for name in since:
        if name.lower() in stored:
            old_name, old_kind = stored[name.lower()]
            kind = _united(old_kind, kinds[name])
            updates[quoted(name)] = (
                f"CASE WHEN new.{SINCE}.{quoted(name)} > {old} "
                f"THEN {_conformed(f'new.{quoted(name)}', kinds[name], kind)} {is_cleared} "
                f"ELSE {_conformed(f'old.{quoted(old_name)}', old_kind, kind)} END"
            )
    for name in stored.keys() - {name.lower() for name in kinds}:
        column = quoted(stored[name][0])
        updates[column] = f"CASE {is_cleared} ELSE old.{column} END"
    # Delta evaluates the condition for each row of the files that it rewrites. Most of them have no change.
    is_newer = f"new.{CDC_COLUMN} IS NOT NULL AND {order.sql(f'new.{CDC_COLUMN}')} > {old}"
    clauses = [
        f"WHEN MATCHED AND {is_newer} THEN UPDATE SET {_assigned(updates)}",
        _inserted([*rules.keys, *kinds, CDC_COLUMN]),
    ]
    if truncate is not None:
        # As by a deletion of each older row.
        cleared = {quoted(name): "NULL" for name, _ in stored.values()} | {CDC_COLUMN: truncate.cdc()}
        is_deleted = f"coalesce(old.{CDC_COLUMN}.{DELETED}, false)"
        clauses.append(
            f"WHEN NOT MATCHED BY SOURCE AND NOT {is_deleted} AND {old} < {truncate.literal} "
            f"THEN UPDATE SET {_assigned(cleared)}"
        )
    return clauses


def _inserted(names: Iterable[str], condition: str = "") -> str:
    values = _new(names)
    columns, given = ", ".join(values), ", ".join(values.values())
    return f"WHEN NOT MATCHED{condition} THEN INSERT ({columns}) VALUES ({given})"  # noqa: S608 (quoted)


def _assigned(values: Mapping[str, str]) -> str:
    return ", ".join(f"{column} = {value}" for column, value in values.items())


def _new(names: Iterable[str]) -> dict[str, str]:
    return {quoted(name): f"new.{quoted(name)}" for name in names}


def _united(old: DataType, new: DataType) -> DataType:
    """Return the type with the fields of both; fields of the table come first."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        added = {field.name.lower(): field for field in new}
        united = StructType()
        for field in old:
            other = added.pop(field.name.lower(), field)
            united.add(field.name, _united(field.dataType, other.dataType))
        for field in added.values():
            united.add(field)
        return united
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return ArrayType(_united(old.elementType, new.elementType))
    if isinstance(old, MapType) and isinstance(new, MapType):
        return MapType(old.keyType, _united(old.valueType, new.valueType))
    return old


def _conformed(value: str, kind: DataType, united: DataType, depth: int = 0) -> str:
    """Return a value in SQL with the fields of a type of `_united`."""
    if kind.simpleString() == united.simpleString():
        return value
    if isinstance(kind, StructType) and isinstance(united, StructType):
        own = {field.name.lower(): field for field in kind}
        fields = dict.fromkeys(united.fieldNames(), "NULL")
        for field in united:
            found = own.get(field.name.lower())
            if found is not None:
                inner = f"{value}.{quoted(found.name)}"
                fields[field.name] = _conformed(inner, found.dataType, field.dataType, depth)
        return f"IF({value} IS NULL, NULL, {struct(fields)})"
    if isinstance(kind, ArrayType) and isinstance(united, ArrayType):
        element = _conformed(f"e{depth}", kind.elementType, united.elementType, depth + 1)
        return f"transform({value}, e{depth} -> {element})"
    if isinstance(kind, MapType) and isinstance(united, MapType):
        element = _conformed(f"v{depth}", kind.valueType, united.valueType, depth + 1)
        return f"transform_values({value}, (k{depth}, v{depth}) -> {element})"
    return value
