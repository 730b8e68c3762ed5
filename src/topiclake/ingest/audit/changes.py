"""The changes of a topic, compared with the rows of their table: where each record went.

The comparison reads Kafka again. It uses the code that decodes records and finds their key, order and
operation, and none of the code that merges batches. For each change, the table must have a row of its key
that is as new as the change. So each lost change is found, without the history of the table. A table of all
versions (SCD type 2) must have each change itself.
"""

from __future__ import annotations

import json
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.changes.order import CDC_COLUMN, OFFSET, PARTITION, Order
from topiclake.changes.pipeline import RowChanges
from topiclake.changes.rows import DELETED, END, OPERATION_FIELD, REASON_FIELD, ChangeRows, named
from topiclake.changes.rules import PROPERTY
from topiclake.changes.truncates import Truncate
from topiclake.delta import table as delta
from topiclake.errors import IngestError
from topiclake.formats.envelope import DELETE, SKIP, TRUNCATE
from topiclake.ingest.audit.counts import DELETION, IN_TABLE, SKIPPED, SUPERSEDED

_OPERATION, _OLD, _DELETION, _OLDEST = "_operation", "_old", "_deletion", "_oldest"


def row_locations(spark: SparkSession, path: str) -> DataFrame:
    """Return the offsets of the changes that the rows of a table have.

    A truncate deletes many rows, and its offset is returned once. If a key has rows of several changes, the
    newest offset is returned once more, except in a table of all versions.

    Returns:
        `partition INT, offset BIGINT, location INT`.

    Raises:
        IngestError: It is no table of changes.
    """
    rules = delta.properties(spark, path).get(PROPERTY)
    if rules is None:
        raise IngestError(
            f"the table {path} has no rows of changes: nothing can be audited",
            "set the table of the ingest, or run the ingest first",
            table=path,
            reason="no_changes",
        )
    table, keys = delta.read(spark, path), json.loads(rules)["keys"]
    position = F.struct(*(f"{CDC_COLUMN}.{name}" for name in (PARTITION, OFFSET))).alias("position")
    changed = table.where(F.col(CDC_COLUMN).isNotNull())
    is_deleted = F.col(f"{CDC_COLUMN}.{DELETED}")
    if END in table.columns:
        location = F.when(is_deleted, DELETION).otherwise(IN_TABLE).alias("location")
        return changed.select(position, location).select("position.*", "location")
    live, deleted = changed.where(~is_deleted).select(position), changed.where(is_deleted).select(position)
    has_key = reduce(Column.__or__, (named(key).isNotNull() for key in keys))
    by_key = changed.where(has_key).groupBy(*map(named, keys))
    several = by_key.agg(F.count_distinct(position).alias("changes"), F.max(position).alias("position"))
    found = [
        rows.select("position.*", F.lit(location).alias("location"))
        for rows, location in (
            (live, IN_TABLE),
            (deleted.distinct(), DELETION),
            (several.where("changes > 1").select("position"), IN_TABLE),
        )
    ]
    return reduce(DataFrame.unionAll, found)


def change_locations(decoded: DataFrame, table: DataFrame, changes: RowChanges) -> DataFrame:
    """Return the offsets of records that the table need not have: superseded changes, and no changes.

    Args:
        decoded: The decoded records that are not in quarantine.
        table: The rows of the table.
        changes: The rules of the changes.

    Returns:
        `partition INT, offset BIGINT, location INT`.
    """
    rules = changes.rules(decoded.schema)
    rows = ChangeRows.of(decoded, rules)
    order, keys = rows.order, list(rules.keys)
    prepared = rows.prepare(decoded)
    position = [f"{CDC_COLUMN}.{name}" for name in (PARTITION, OFFSET)]
    if rules.has_versions:
        return prepared.where(F.col(OPERATION_FIELD) == SKIP).select(
            *position, F.lit(SKIPPED).alias("location")
        )
    last = Truncate.newest(prepared, table, rules.keys, order) if rules.truncates else None
    records = prepared.where(F.col(REASON_FIELD).isNull()).select(
        *map(named, keys), CDC_COLUMN, F.col(OPERATION_FIELD).alias(_OPERATION)
    )
    old = (
        table.where(F.col(CDC_COLUMN).isNotNull())
        .groupBy(*map(named, keys))
        .agg(F.max(order.key()).alias(_OLD))
    )
    # The deletion of a row may be purged since. Then the row of its key does not exist.
    is_deletion = F.col(_OPERATION) == DELETE
    deletions = records.where(is_deletion).groupBy(*map(named, keys)).agg(F.max(order.key()).alias(_DELETION))
    joined = records.join(old, keys, "left").join(deletions, keys, "left")
    # A truncate has worked if no row is older.
    live = table.where(~F.col(f"{CDC_COLUMN}.{DELETED}")).agg(F.min(order.key()).alias(_OLDEST))
    joined = joined.crossJoin(F.broadcast(live))
    location = F.when(F.col(_OPERATION) == SKIP, SKIPPED).when(_is_superseded(order, last), SUPERSEDED)
    return joined.select(*position, location.alias("location")).where("location IS NOT NULL")


def _is_superseded(order: Order, last: Truncate | None) -> Column:
    change, old = order.key(), F.col(_OLD)
    is_purged = old.isNull() & (change <= F.col(_DELETION))
    superseded = (change < old) | is_purged
    if last is not None:
        # The key may have an older row, which was deleted before. The truncate itself is looked for, too.
        superseded |= ~last.precedes()
    is_truncate = F.col(_OPERATION) == TRUNCATE
    has_worked = F.col(_OLDEST).isNull() | (change < F.col(_OLDEST))
    return F.when(is_truncate, has_worked).otherwise(superseded)
