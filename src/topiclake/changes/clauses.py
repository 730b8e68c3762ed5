"""The clauses of the MERGE of a batch of changes, with the aliases `old` and `new`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from delta.tables import DeltaMergeBuilder
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from topiclake.changes.newest import STAYS, may_stay
from topiclake.changes.order import CDC_COLUMN, Order
from topiclake.changes.rows import DELETED, data_columns
from topiclake.changes.rules import ChangeRules
from topiclake.changes.truncates import Truncate
from topiclake.delta.table import quoted


def same_key(rules: ChangeRules) -> Column:
    """Return whether two rows have the same keys."""
    paths = map(quoted, rules.keys)
    return reduce(Column.__and__, (F.col(f"old.{path}") == F.col(f"new.{path}") for path in paths))


def add(
    builder: DeltaMergeBuilder,
    merged: DataFrame,
    table: DataFrame,
    rules: ChangeRules,
    order: Order,
    truncate: Truncate | None,
) -> DeltaMergeBuilder:
    """Update rows that are older than their change, and insert the others.

    Args:
        builder: The MERGE.
        merged: The newest change of each key.
        table: The rows of the table.
        rules: The keys.
        order: The order of changes.
        truncate: A truncate of the batch.
    """
    names = list(data_columns(merged.drop(STAYS).schema, rules.keys))
    cdc = _new([CDC_COLUMN])
    updates = _new(names)
    if STAYS in merged.columns:
        for name in set(names) & set(table.columns):
            if not may_stay(name, merged.schema[name].dataType, rules):
                continue
            stays = F.array_contains(f"new.{STAYS}", name)
            updates[quoted(name)] = F.when(stays, _old(name)).otherwise(F.col(f"new.{quoted(name)}"))
    # A deletion nulls columns that the changes don't have, too.
    table_names = list(data_columns(table.schema, rules.keys))
    arrived = {name.lower() for name in names}
    for name in table_names:
        if name.lower() not in arrived:
            updates[quoted(name)] = F.when(~F.col(f"new.{CDC_COLUMN}.{DELETED}"), _old(name))
    is_newer = order.key(f"new.{CDC_COLUMN}") > order.key(f"old.{CDC_COLUMN}")
    builder = builder.whenMatchedUpdate(condition=is_newer, set=updates | cdc)
    builder = builder.whenNotMatchedInsert(values=_new([*rules.keys, *names]) | cdc)
    if truncate is None:
        return builder
    # As by a deletion of each older row.
    cleared: dict[str, str | Column] = {quoted(name): F.lit(None) for name in table_names}
    is_deleted = F.coalesce(F.col(f"old.{CDC_COLUMN}.{DELETED}"), F.lit(False))
    return builder.whenNotMatchedBySourceUpdate(
        condition=~is_deleted & truncate.follows(f"old.{CDC_COLUMN}"),
        set={**cleared, CDC_COLUMN: truncate.cdc()},
    )


def _new(names: Iterable[str]) -> dict[str, str | Column]:
    return {quoted(name): F.col(f"new.{quoted(name)}") for name in names}


def _old(name: str) -> Column:
    return F.col(f"old.{quoted(name)}")
