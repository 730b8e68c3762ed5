"""The newest change of each key in a batch: the MERGE must not see a key twice."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType
from pyspark.sql.window import Window

from topiclake.changes.order import CDC_COLUMN, Order
from topiclake.changes.rows import CHANGE_COLUMN, DELETED, data_columns
from topiclake.changes.rules import ChangeRules
from topiclake.formats import envelope as envelopes

#: Names of the columns whose value in the table stays.
STAYS = "_stays"
_OLD, _EPOCH, _KNOWN, _CHANGES = "_old", "_epoch", "_known", "_changes"


@dataclass(frozen=True)
class Folded:
    """The changes of a batch that are newer than the table.

    Attributes:
        newest: One row for each key, with `_stays ARRAY<STRING>`.
        unresolved: Changes with an unavailable value of an unknown row; None if there can be none.
    """

    newest: DataFrame
    unresolved: DataFrame | None


def newest(changes: DataFrame, keys: tuple[str, ...], order: Order) -> DataFrame:
    """Return the newest change of each key."""
    others = [named(name) for name in changes.columns if name not in (*keys, CHANGE_COLUMN)]
    grouped = changes.groupBy(*map(named, keys)).agg(
        F.max_by(F.struct(*others), order.key()).alias("_newest")
    )
    return grouped.select(*map(named, keys), "_newest.*")


def folded(changes: DataFrame, table: DataFrame, rules: ChangeRules, order: Order) -> Folded:
    """Fold the changes of each key since its last deletion: a column has its newest known value.

    Args:
        changes: The upserts and deletions of a batch.
        table: The rows of the table.
        rules: The columns whose null keeps a value.
        order: The order of changes.
    """
    old = table.select(*map(named, rules.keys), F.struct(F.col(CDC_COLUMN).alias("cdc")).alias(_OLD))
    joined = changes.join(old, list(rules.keys), "left")
    # A row without `_cdc` is older than all changes.
    is_newer = F.col(f"{_OLD}.cdc").isNull() | (order.key() > order.key(f"{_OLD}.cdc"))
    is_deletion = F.col(f"{CDC_COLUMN}.{DELETED}")
    # An epoch begins with a deletion. The first one continues the row of the table.
    by_key = Window.partitionBy(*map(named, rules.keys))
    epoch = F.sum(is_deletion.cast("int")).over(by_key.orderBy(order.key()))
    in_epoch = Window.partitionBy(*map(named, rules.keys), _EPOCH).orderBy(order.key())
    is_whole = ~is_deletion & (F.size(f"{CHANGE_COLUMN}.unavailable") == 0)
    continues = (F.col(_EPOCH) == 0) & F.col(_OLD).isNotNull()
    continues &= ~F.coalesce(F.col(f"{_OLD}.cdc.{DELETED}"), F.lit(False))
    resolved = joined.where(is_newer).withColumn(_EPOCH, epoch)
    resolved = resolved.withColumn(_KNOWN, is_deletion | continues | F.max(is_whole).over(in_epoch))
    known = resolved.where(_KNOWN).withColumn("_last", F.max(_EPOCH).over(by_key))
    last = known.where(F.col(_EPOCH) == F.col("_last"))
    unresolved = resolved.where(~F.col(_KNOWN)).drop(_OLD, _EPOCH, _KNOWN)
    return Folded(_fold(last, rules, order), unresolved)


def _fold(changes: DataFrame, rules: ChangeRules, order: Order) -> DataFrame:
    """Return one row for each key from the changes of its last epoch."""
    names = list(data_columns(changes.drop(_OLD, _EPOCH, _KNOWN, "_last").schema, rules.keys))
    values = [
        F.max_by(F.struct(named(name)), F.when(_provides(name, rules), order.key())).alias(f"_value{index}")
        for index, name in enumerate(names)
    ]
    newest_cdc = F.max_by(CDC_COLUMN, order.key()).alias(CDC_COLUMN)
    grouped = changes.groupBy(*map(named, rules.keys)).agg(*values, newest_cdc, F.max(_EPOCH).alias(_EPOCH))
    columns = [F.col(f"_value{index}").getField(name).alias(name) for index, name in enumerate(names)]
    kept = [
        F.when((F.col(_EPOCH) == 0) & F.col(f"_value{index}").isNull(), F.lit(name))
        for index, name in enumerate(names)
        if may_stay(name, changes.schema[name].dataType, rules)
    ]
    kept_names = (
        F.filter(F.array(*kept), lambda name: name.isNotNull()) if kept else F.array().cast("array<string>")
    )
    return grouped.select(*map(named, rules.keys), *columns, CDC_COLUMN, kept_names.alias(STAYS))


def may_stay(name: str, kind: DataType, rules: ChangeRules) -> bool:
    """Return whether a change may keep the value of a column."""
    return rules.ignores_null(name) or envelopes.is_unavailable(named(name), kind) is not None


def _provides(name: str, rules: ChangeRules) -> Column:
    """Return whether a change has a value for a column; null is one unless it is ignored."""
    provides = ~F.col(f"{CDC_COLUMN}.{DELETED}")
    provides &= ~F.array_contains(f"{CHANGE_COLUMN}.unavailable", name)
    return provides & named(name).isNotNull() if rules.ignores_null(name) else provides


def named(name: str) -> Column:
    """Return a column by its name, which may have dots."""
    return F.col(f"`{name.replace('`', '``')}`")
