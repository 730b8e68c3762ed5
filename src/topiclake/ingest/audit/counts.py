"""Counts of an audit: sets of offsets, compared in one distributed job."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topiclake.ingest.audit.report import KINDS, MAX_FINDINGS, Finding
from topiclake.local_frame import local_frame

#: Locations of an offset. In Kafka: a record, a record whose value is null, a record that a paused topic
#: waits for, a record of any transaction. Of change data: a change that a newer one of the table replaces, a
#: record that is no change. In a table: a row, a deletion, a row in quarantine, a row in quarantine that a
#: replay has claimed and not finished.
(
    RECORD,
    TOMBSTONE,
    PAUSED,
    UNCOMMITTED,
    SUPERSEDED,
    SKIPPED,
    IN_TABLE,
    DELETION,
    WAITING,
    CLAIMED,
) = range(10)

#: Offsets in a block, one bit each: an integer represents a set of offsets. So 20 million records are 312,500
#: groups instead of 20 million.
_BLOCK = 64
_SETS = {
    "records": f"location = {RECORD}",
    "tombstones": f"location = {TOMBSTONE}",
    "paused": f"location = {PAUSED}",
    "uncommitted": f"location = {UNCOMMITTED}",
    "superseded": f"location = {SUPERSEDED}",
    "no_changes": f"location = {SKIPPED}",
    "rows": f"location IN ({IN_TABLE}, {DELETION})",
    "deletions": f"location = {DELETION}",
    "waiting": f"location = {WAITING}",
    "claimed": f"location = {CLAIMED}",
    "aged": "aged",
}


@dataclass(frozen=True)
class AuditRules:
    """Rules that allow a record to be missing, or a row to have no record.

    Attributes:
        skips_tombstones: Whether records without a value may be missing.
        compacted: Whether Kafka may have removed records in the middle of the topic.
    """

    skips_tombstones: bool = False
    compacted: bool = False


def count_offsets(locations: DataFrame, policy: AuditRules) -> dict[int | None, dict[str, int]]:
    """Count the right and the wrong offsets of each partition; names as in `PartitionAudit`.

    Args:
        locations: `partition INT, offset BIGINT, location INT, aged BOOLEAN`; `aged` offsets are no longer in
            Kafka.
        policy: The rules for missing records and for rows without a record.
    """
    blocks = _counted(locations, _BLOCK, policy)
    names = [name for name in blocks.columns if name not in ("partition", "block")]
    sums = blocks.groupBy("partition").agg(*(F.sum(name).cast("bigint").alias(name) for name in names))
    return {row["partition"]: {name: row[name] for name in names} for row in sums.collect()}


def find_offsets(locations: DataFrame, policy: AuditRules, topic: str) -> list[Finding]:
    """Return the first wrong offsets, at most `MAX_FINDINGS`; arguments as in `count_offsets`."""
    is_wrong = " OR ".join(f"{kind} > 0" for kind in KINDS)
    blocks = (
        _counted(locations, _BLOCK, policy).where(is_wrong).orderBy("partition", "block").limit(MAX_FINDINGS)
    )
    # The blocks are collected, since one plan with both steps would group all rows twice.
    spark, bad = locations.sparkSession, blocks.select("partition", "block").collect()
    bad_blocks = local_frame(spark, bad, "bad_partition INT, bad_block BIGINT")
    is_bad = F.expr(f"partition <=> bad_partition AND offset div {_BLOCK} <=> bad_block")
    suspects = locations.join(F.broadcast(bad_blocks), is_bad, "left_semi")
    kinds = F.array_compact(F.array(*(F.when(F.col(kind) > 0, F.lit(kind)) for kind in KINDS)))
    counted = _counted(suspects, 1, policy).select("partition", "block", F.explode(kinds).alias("kind"))
    first = counted.orderBy("partition", "block", "kind").limit(MAX_FINDINGS).collect()
    return [Finding(topic, row["partition"], row["block"], row["kind"]) for row in first]


def _counted(locations: DataFrame, width: int, policy: AuditRules) -> DataFrame:
    """Return `partition, block` and the counts of each block; with `width` 1, `block` is the offset."""
    bit = f"shiftleft(1L, CAST(pmod(offset, {width}) AS INT))"
    sets = locations.groupBy("partition", F.expr(f"offset div {width}").alias("block")).agg(
        *(
            F.expr(f"coalesce(bit_or(CASE WHEN {condition} THEN {bit} END), 0L)").alias(name)
            for name, condition in _SETS.items()
        ),
        F.expr(f"count(CASE WHEN location >= {IN_TABLE} THEN offset END)").alias("copies"),
        # Rows without the offset of their record.
        F.expr("count_if(offset IS NULL)").alias("untraced"),
    )
    nowhere, dropped = (
        "~(rows | waiting | claimed | superseded | no_changes)",
        "(rows | waiting | claimed) & ~(records | tombstones | paused | aged)",
    )
    skipped, expected = (
        ("tombstones", "records") if policy.skips_tombstones else ("0L", "(records | tombstones)")
    )
    without_record = f"({dropped}) & ~uncommitted"
    compacted, unknown = (without_record, "0L") if policy.compacted else ("0L", without_record)
    counts = {
        "in_kafka": "bit_count(records | tombstones | paused)",
        "in_table": "bit_count(rows)",
        # A claimed row may be in the table already, which is right, too.
        "quarantined": "bit_count(waiting | (claimed & ~rows))",
        "deleted": "bit_count(deletions)",
        "superseded": "bit_count(superseded & ~rows)",
        "skipped": f"bit_count({skipped} & {nowhere}) + bit_count(no_changes)",
        "paused": f"bit_count(paused & {nowhere})",
        "compacted": f"bit_count({compacted})",
        "missing": f"bit_count({expected} & {nowhere})",
        "doubled": "copies - bit_count(rows) - bit_count(waiting | claimed)",
        "in_both": "bit_count(rows & waiting)",
        "aborted": f"bit_count({dropped} & uncommitted)",
        "unknown": f"bit_count({unknown}) + untraced",
    }
    return sets.selectExpr("partition", "block", *(f"{count} AS {name}" for name, count in counts.items()))
