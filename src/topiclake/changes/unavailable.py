"""Unavailable values: Debezium does not send large values that did not change.

The table keeps such a value, so a row must exist there or earlier in the batch. After a change of a primary
key, the value is in the row of the old key.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from topiclake.changes import lookup
from topiclake.changes.newest import provides
from topiclake.changes.order import CDC_COLUMN, Order
from topiclake.changes.rows import CHANGE_COLUMN, DELETED, OLD_KEY, data_columns, named
from topiclake.changes.rules import ChangeRules
from topiclake.changes.truncates import Truncate
from topiclake.formats import envelope as envelopes

#: Whether the row of a change with an unavailable value is known.
KNOWN = "_known"
_OLD, _EPOCH, _NEW_KEY, _AT = "_old", "_epoch", "_new_key", "_at"
_UNAVAILABLE = f"{CHANGE_COLUMN}.unavailable"


def is_incomplete() -> Column:
    """Return whether a change has an unavailable value."""
    return F.size(_UNAVAILABLE) > 0


def with_known(
    changes: DataFrame, table: DataFrame, rules: ChangeRules, order: Order, truncate: Truncate | None
) -> DataFrame:
    """Return the changes that are newer than their row, with a column that says if that row is known.

    A change needs a row for its unavailable values, in the table or earlier in the batch.

    Args:
        changes: The upserts and deletions of a batch.
        table: The rows of the table.
        rules: The keys.
        order: The order of changes.
        truncate: The newest truncate.
    """
    keys = [named(key) for key in rules.keys]
    wanted = changes.where(is_incomplete()).select(*keys)
    cdc = F.struct(F.col(CDC_COLUMN).alias("cdc")).alias(_OLD)
    old = lookup.stored(table, wanted, rules.keys).select(*keys, cdc)
    joined = changes.join(old, list(rules.keys), "left")
    # A row without `_cdc` is older than all changes.
    is_newer = F.col(f"{_OLD}.cdc").isNull() | (order.key() > order.key(f"{_OLD}.cdc"))
    is_deletion = F.col(f"{CDC_COLUMN}.{DELETED}")
    # An epoch begins with a deletion. The first one continues the row of the table.
    by_key = Window.partitionBy(*keys).orderBy(order.key())
    in_epoch = Window.partitionBy(*keys, _EPOCH).orderBy(order.key())
    continues = (F.col(_EPOCH) == 0) & F.col(_OLD).isNotNull()
    continues &= ~F.coalesce(F.col(f"{_OLD}.cdc.{DELETED}"), F.lit(False))
    if truncate is not None:
        continues &= truncate.precedes(f"{_OLD}.cdc")
    is_whole = ~is_deletion & ~is_incomplete()
    found = joined.where(is_newer).withColumn(_EPOCH, F.sum(is_deletion.cast("int")).over(by_key))
    is_known = is_deletion | continues | F.max(is_whole).over(in_epoch)
    return found.select(*map(named, changes.columns), is_known.alias(KNOWN))


def moved(changes: DataFrame, table: DataFrame, rules: ChangeRules, order: Order) -> DataFrame:
    """Return the changes; those of a changed primary key have the values of the old key's row.

    Args:
        changes: The upserts and deletions of a batch.
        table: The rows of the table.
        rules: The keys.
        order: The order of changes.
    """
    keys = [named(key) for key in rules.keys]
    kinds = {name.lower(): kind for name, kind in data_columns(table.schema, rules.keys).items()}
    names = [
        name
        for name, kind in data_columns(changes.schema, rules.keys).items()
        if envelopes.is_unavailable(named(name), kind) is not None
        and kind.simpleString() == kinds.get(name.lower(), kind).simpleString()
    ]
    moves = changes.where(is_incomplete() & F.col(OLD_KEY).isNotNull()).select(
        *(F.col(OLD_KEY).getField(key).alias(key) for key in rules.keys),
        CDC_COLUMN,
        F.struct(*keys).alias(_NEW_KEY),
    )
    values = [named(name) for name in names if name.lower() in kinds]
    rows = lookup.stored(table, moves.select(*keys), rules.keys).select(*keys, *values, CDC_COLUMN)
    events = changes.select(*keys, *map(named, names), CDC_COLUMN, CHANGE_COLUMN)
    events = events.unionByName(rows, True).unionByName(moves, True)
    events = events.join(moves.select(*keys).distinct(), list(rules.keys), "left_semi")
    # Debezium deletes the old key before, with the same position in its log. That is no loss of the value.
    by_key = Window.partitionBy(*keys).orderBy(order.key())
    is_deletion = F.coalesce(F.col(f"{CDC_COLUMN}.{DELETED}"), F.lit(False))
    epoch = F.sum(is_deletion.cast("int")).over(by_key)
    is_row = ~is_deletion & F.col(_NEW_KEY).isNull()
    last = F.last(F.when(is_row, F.col(_EPOCH)), ignorenulls=True).over(by_key)
    found: dict[str, Column] = {"_last": last}
    for index, name in enumerate(names):
        has_value = is_row & (F.col(CHANGE_COLUMN).isNull() | provides(name, rules))
        value = F.when(has_value, F.struct(_EPOCH, named(name).alias("value")))
        found[f"_value{index}"] = F.last(value, ignorenulls=True).over(by_key)
    probed = events.withColumn(_EPOCH, epoch).withColumns(found).where(F.col(_NEW_KEY).isNotNull())
    answers = probed.select(
        *(F.col(_NEW_KEY).getField(key).alias(key) for key in rules.keys),
        order.key().alias(_AT),
        *(
            F.when(F.col(f"_value{index}.{_EPOCH}") == F.col("_last"), F.col(f"_value{index}")).alias(
                f"_value{index}"
            )
            for index in range(len(names))
        ),
    ).dropDuplicates([*rules.keys, _AT])
    joined = changes.withColumn(_AT, order.key()).join(answers, [*rules.keys, _AT], "left")
    is_found = {
        name: F.array_contains(_UNAVAILABLE, name) & F.col(f"_value{index}").isNotNull()
        for index, name in enumerate(names)
    }
    names_found = F.array(*(F.when(is_it, F.lit(name)) for name, is_it in is_found.items()))
    change = F.col(CHANGE_COLUMN).withField("unavailable", F.array_except(_UNAVAILABLE, names_found))
    filled = {
        name: F.when(is_found[name], F.col(f"_value{index}.value")).otherwise(named(name))
        for index, name in enumerate(names)
    }
    return joined.withColumns({**filled, CHANGE_COLUMN: change}).select(*changes.columns)
