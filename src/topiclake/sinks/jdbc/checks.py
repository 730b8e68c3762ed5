"""Checks whether rows can be upserted into the user's own table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, inspect
from sqlalchemy.engine.interfaces import ReflectedColumn

from topiclake.errors import ConfigError
from topiclake.sinks.jdbc.tables import TableSchema


def require_fitting(connection: Connection, shape: TableSchema) -> None:
    """Check that an existing table fits the rows.

    Raises:
        ConfigError: The table lacks a column, or has another column that needs a value. Or it has no unique
            index over exactly the keys; in MariaDB and MySQL also: it has another one, or no transactions.
    """
    normalize = str if shape.kind == "postgresql" else _normalize_mysql_name
    inspector = inspect(connection)
    _require_columns(inspector.get_columns(shape.table), shape, normalize)
    unique = [{normalize(name) for name in columns} for columns in _unique(inspector, shape.table)]
    keys, names = {normalize(key) for key in shape.keys}, {normalize(name) for name, _ in shape.columns}
    if keys not in unique:
        raise ConfigError(
            f"table {shape.table} has no primary key or unique index over {', '.join(shape.keys)} alone, by "
            "which rows are updated",
            "run CREATE UNIQUE INDEX over exactly these, or use other keys",
            table=shape.table,
            keys=tuple(shape.keys),
            reason="no_index",
        )
    if shape.kind == "postgresql":
        return
    # MariaDB and MySQL would update a row that they find by any unique index.
    if indexes := [columns for columns in unique if columns & names and not keys <= columns]:
        raise ConfigError(
            f"table {shape.table} has another unique index, over {', '.join(sorted(indexes[0]))}, by which "
            f"{shape.kind} would update another row",
            "use the keys of that index, or drop it",
            table=shape.table,
            columns=tuple(sorted(indexes[0])),
            reason="another_index",
        )
    options = inspector.get_table_options(shape.table)
    engine = str(options.get(f"{shape.kind}_engine") or options.get("mysql_engine"))
    if engine.lower() != "innodb":
        raise ConfigError(
            f"table {shape.table} has engine {engine}, without transactions",
            "ALTER TABLE … ENGINE=InnoDB",
            table=shape.table,
            engine=engine,
            reason="engine",
        )


def _require_columns(
    columns: Sequence[ReflectedColumn], shape: TableSchema, normalize: Callable[[str], str]
) -> None:
    by_name = {normalize(column["name"]): column for column in columns}
    names = {normalize(name) for name, _ in shape.columns}
    if missing := [name for name, _ in shape.columns if normalize(name) not in by_name]:
        raise ConfigError(
            f"table {shape.table} has no column {missing[0]}",
            "add it with ALTER TABLE … ADD, or drop it from the rows",
            table=shape.table,
            column=missing[0],
            reason="missing",
        )
    if needed := [
        column["name"] for name, column in by_name.items() if name not in names and _needs_value(column)
    ]:
        raise ConfigError(
            f"table {shape.table} needs a value for {needed[0]}, which the rows don't have",
            "set a default for it, or add the column to the rows",
            table=shape.table,
            column=needed[0],
            reason="no_default",
        )


def _normalize_mysql_name(name: str) -> str:
    """Return a name for comparison: case does not matter, and SQLAlchemy returns each ` doubled."""
    return name.replace("``", "`").lower()


def _needs_value(column: ReflectedColumn) -> bool:
    is_generated = column.get("computed") or column.get("identity") or column.get("autoincrement") is True
    return not column["nullable"] and column["default"] is None and not is_generated


def _unique(inspector: Any, table: str) -> list[list[str]]:  # noqa: ANN401 (SQLAlchemy's Inspector)
    """Return the columns of each unique key, but not of partial, prefix and expression indexes."""
    keys = [inspector.get_pk_constraint(table)["constrained_columns"]]
    for key in inspector.get_indexes(table):
        limits = ("postgresql_where", "mysql_length", "mariadb_length")
        limited = any(key.get("dialect_options", {}).get(name) for name in limits)
        if key["unique"] and not limited and "expressions" not in key:
            keys.append(key["column_names"])
    return [key for key in keys if key]
