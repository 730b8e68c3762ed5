"""All versions of rows (SCD type 2). The table keeps each change, so that a late one can split an interval.

A visible row is a version: the last of a series of equal changes. It begins with the first of them, and ends
with the next version or deletion. The other changes of a series and the deletions are hidden.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType
from pyspark.sql.window import Window, WindowSpec

from topiclake.changes.order import CDC_COLUMN, Order
from topiclake.changes.rows import (
    CHANGE_COLUMN,
    DELETED,
    END,
    HIDDEN,
    KEPT,
    OWN_START,
    START,
    data_columns,
    named,
)
from topiclake.changes.rules import ChangeRules

#: Whether the batch has brought a row.
NEW = "_new"
_TECHNICAL = ("_repeated", "_stored", "_epoch", "_known", "_series", "_begins")
_REPEATED, _STORED, _EPOCH, _KNOWN, _SERIES, _BEGINS = _TECHNICAL
_UNAVAILABLE = f"{CHANGE_COLUMN}.unavailable"


def versions(
    changes: DataFrame, stored: DataFrame, rules: ChangeRules, order: Order
) -> tuple[DataFrame, DataFrame]:
    """Return the rows that a batch adds to the table or changes in it, and the changes of unknown rows.

    Args:
        changes: The upserts and deletions of a batch. Without them, the result is the rows that need a
            correction.
        stored: All rows of the table with their keys.
        rules: The keys, and the columns whose change begins a version.
        order: The order of changes.
    """
    keys = [named(key) for key in rules.keys]
    by_key = Window.partitionBy(*keys).orderBy(order.key(), NEW)
    end = F.lit(None).cast(stored.schema[END].dataType)
    events = stored.withColumn(NEW, F.lit(False))
    events = events.unionByName(_kept(changes, rules).withColumns({END: end, NEW: F.lit(True)}), True)
    kinds = data_columns(events.drop(NEW).schema, rules.keys)
    # A change that the table has already is no change.
    is_repeated = order.key().eqNullSafe(F.lag(order.key()).over(by_key))
    events = events.withColumns({_REPEATED: is_repeated, _STORED: _content(kinds)})
    filled = _filled(events.where(~F.col(_REPEATED)), kinds, rules, by_key)
    timed = _timed(filled.where(_KNOWN), kinds, rules, by_key)
    is_changed = F.col(NEW) | ~F.col(_STORED).eqNullSafe(_content(kinds))
    unknown = filled.where(~F.col(_KNOWN)).select(*map(named, changes.columns))
    return timed.where(is_changed).drop(*_TECHNICAL, CHANGE_COLUMN), unknown


def _kept(changes: DataFrame, rules: ChangeRules) -> DataFrame:
    """Set the columns that each change keeps from the one before."""
    kinds = data_columns(changes.schema, rules.keys)
    ignored = [
        F.when(~F.col(f"{CDC_COLUMN}.{DELETED}") & named(name).isNull(), F.lit(name))
        for name in kinds
        if rules.ignores_null(name)
    ]
    names = (
        F.array_union(_UNAVAILABLE, F.array_compact(F.array(*ignored))) if ignored else F.col(_UNAVAILABLE)
    )
    return changes.withColumn(CDC_COLUMN, F.col(CDC_COLUMN).withField(KEPT, names))


def _filled(
    events: DataFrame, kinds: dict[str, DataType], rules: ChangeRules, by_key: WindowSpec
) -> DataFrame:
    """Fill columns that a change keeps from the change before it; find changes without one."""
    deleted, kept = F.col(f"{CDC_COLUMN}.{DELETED}"), F.col(f"{CDC_COLUMN}.{KEPT}")
    in_epoch = by_key.partitionBy(*map(named, rules.keys), _EPOCH)
    is_whole = ~deleted & ~(F.coalesce(F.size(_UNAVAILABLE), F.lit(0)) > 0)
    rows = events.withColumn(_EPOCH, F.sum(deleted.cast("int")).over(by_key))
    rows = rows.withColumn(_KNOWN, ~F.col(NEW) | deleted | F.max(is_whole).over(in_epoch))
    values = {}
    for name in kinds:
        given = F.when(~deleted & ~F.array_contains(kept, name), F.struct(named(name).alias("value")))
        last = F.last(given, ignorenulls=True).over(in_epoch)
        value = F.when(~F.array_contains(kept, name), named(name))
        value = value.when(last.isNotNull(), last.getField("value"))
        # An ignored null is null without a change before. An unavailable value is known by now.
        values[name] = value if rules.ignores_null(name) else value.otherwise(named(name))
    return rows.withColumns(values)


def _timed(
    events: DataFrame, kinds: dict[str, DataType], rules: ChangeRules, by_key: WindowSpec
) -> DataFrame:
    """Set start, end and visibility of each change by its neighbors."""
    deleted, own_start = F.col(f"{CDC_COLUMN}.{DELETED}"), F.col(f"{CDC_COLUMN}.{OWN_START}")
    compared = [_comparable(named(name), kind) for name, kind in kinds.items() if rules.tracks(name)]
    content = F.struct(deleted, *compared)
    # A deletion begins a series, so the version after it begins another one.
    begins = deleted | ~F.coalesce(content.eqNullSafe(F.lag(content).over(by_key)), F.lit(False))
    rows = events.withColumn(_BEGINS, begins)
    rows = rows.withColumn(_SERIES, F.sum(F.col(_BEGINS).cast("int")).over(by_key))
    in_series = by_key.partitionBy(*map(named, rules.keys), _SERIES)
    is_last = F.coalesce(F.lead(_BEGINS).over(by_key), F.lit(True))
    return rows.withColumns(
        {
            START: F.first(own_start).over(in_series),
            END: F.when(is_last & ~deleted, F.lead(own_start).over(by_key)),
            CDC_COLUMN: F.col(CDC_COLUMN).withField(HIDDEN, ~is_last & ~deleted),
        }
    )


def _content(kinds: dict[str, DataType]) -> Column:
    """Return the part of a stored row that a batch may change."""
    values = [_comparable(named(name), kind) for name, kind in kinds.items()]
    return F.struct(START, END, f"{CDC_COLUMN}.{HIDDEN}", *values)


def _comparable(column: Column, kind: DataType) -> Column:
    """Return a value that compares with another one, since maps don't."""
    if isinstance(kind, MapType) and not (_has_map(kind.keyType) or _has_map(kind.valueType)):
        return F.array_sort(F.map_entries(column))
    return F.to_json(F.struct(column)) if _has_map(kind) else column


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, MapType)
