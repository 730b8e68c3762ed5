"""The newest change of each key in a batch: the MERGE must not see a key twice."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from topiclake.changes.order import CDC_COLUMN, Order
from topiclake.changes.rows import CHANGE_COLUMN, DELETED, data_columns, named
from topiclake.changes.rules import ChangeRules
from topiclake.delta.table import quoted
from topiclake.formats import envelope as envelopes

#: The order of the newest deletion or truncate of the batch: an older row keeps no value.
CLEARED = "_cleared"
#: By column that may keep its value: the order of the change that has the new value. The MERGE compares it
#: with the row, so it needs no row before.
SINCE = "_since"


def newest(
    changes: DataFrame, rules: ChangeRules, order: Order, *, truncated: str | None, has_unavailable: bool
) -> DataFrame:
    """Return one row for each key, in which a column has its newest value since the last deletion.

    Args:
        changes: The upserts and deletions of a batch, newer than `truncated`.
        rules: The keys, and the columns whose null keeps a value.
        order: The order of changes.
        truncated: The order of the truncate, in SQL.
        has_unavailable: Whether a change may have an unavailable value.
    """
    kinds = data_columns(changes.schema, rules.keys)
    partial = [name for name, kind in kinds.items() if _may_stay(name, kind, rules, has_unavailable)]
    others = [named(name) for name in (*kinds, CDC_COLUMN) if name not in partial]
    is_deletion = F.col(f"{CDC_COLUMN}.{DELETED}")
    values = [
        F.max_by(
            F.struct(order.key().alias("at"), named(name).alias("value")),
            F.when(provides(name, rules), order.key()),
        ).alias(f"_value{index}")
        for index, name in enumerate(partial)
    ]
    grouped = changes.groupBy(*map(named, rules.keys)).agg(
        F.max_by(F.struct(*others), order.key()).alias("_newest"),
        F.max(F.when(is_deletion, order.key())).alias(CLEARED),
        *values,
    )
    since = {
        name: F.when(
            F.col(CLEARED).isNull() | (F.col(f"_value{index}.at") > F.col(CLEARED)), F.col(f"_value{index}")
        )
        for index, name in enumerate(partial)
    }
    cleared = F.col(CLEARED) if truncated is None else F.greatest(CLEARED, F.expr(truncated))
    columns = [
        *map(named, rules.keys),
        *(since[name].getField("value").alias(name) if name in since else _of_newest(name) for name in kinds),
        _of_newest(CDC_COLUMN),
        cleared.alias(CLEARED),
    ]
    if partial:
        columns.append(F.struct(*(since[name].getField("at").alias(name) for name in partial)).alias(SINCE))
    return grouped.select(*columns)


def _of_newest(name: str) -> Column:
    return F.col(f"_newest.{quoted(name)}").alias(name)


def _may_stay(name: str, kind: DataType, rules: ChangeRules, has_unavailable: bool) -> bool:
    """Return whether a change may keep the value of a column."""
    return rules.ignores_null(name) or (
        has_unavailable and envelopes.is_unavailable(named(name), kind) is not None
    )


def provides(name: str, rules: ChangeRules) -> Column:
    """Return whether a change has a value for a column; null is one unless it is ignored."""
    found = ~F.col(f"{CDC_COLUMN}.{DELETED}")
    found &= ~F.array_contains(f"{CHANGE_COLUMN}.unavailable", name)
    return found & named(name).isNotNull() if rules.ignores_null(name) else found
