"""The content of a topic's tables before a query starts, and what the history says of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.changes.order import CDC_COLUMN, OFFSET, PARTITION
from topiclake.delta import table as delta
from topiclake.delta import table_commits
from topiclake.delta.table_commits import Commit, Commits
from topiclake.errors import ConfigError
from topiclake.ingest.paused_topics import Span
from topiclake.ingest.quarantine import replay_claims
from topiclake.ingest.targets import Target
from topiclake.local_frame import local_frame
from topiclake.sources.layout import KAFKA_COLUMN
from topiclake.streaming.batch_offsets import OFFSETS


@dataclass(frozen=True)
class TableContent:
    """The content of the tables of one topic.

    Attributes:
        topic: The topic.
        target: The tables of the topic.
        table_version: Version of the table, or None if it does not exist.
        quarantine_version: Version of the quarantine, or None if it does not exist.
        commits: Batches of the topic in the table's history, newest first.
        paused: By partition the ranges that the paused topic waits for.
        is_shared: Whether the history has batches of other topics.
        explains_rows: Whether the history shows which topics the rows are from. It does not if Delta has
            deleted commits, the table is a copy, or another version of Topiclake wrote it.
    """

    topic: str
    target: Target
    table_version: int | None
    quarantine_version: int | None
    commits: tuple[Commit, ...]
    paused: Mapping[int, Sequence[Span]]
    is_shared: bool
    explains_rows: bool

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the offsets of the rows of the topic.

        Returns:
            `is_quarantined BOOLEAN, partition INT, offset BIGINT, is_replayed BOOLEAN`, of these versions of
            the tables; a replayed record is in the table, too.
        """
        columns = "is_quarantined BOOLEAN, partition INT, offset BIGINT, is_replayed BOOLEAN"
        offsets = local_frame(spark, [], columns)
        if self.table_version is not None:
            rows = delta.read(spark, self.target.table, self.table_version)
            origin = KAFKA_COLUMN
            if "topic" in rows.select(f"{origin}.*").columns:
                rows = rows.where(F.coalesce(f"{origin}.topic", F.lit(self.topic)) == self.topic)
            kafka_offset = F.col(f"{origin}.partition"), F.col(f"{origin}.offset")
            offsets = offsets.unionAll(rows.select(F.lit(False), *kafka_offset, F.lit(False)))
        if self.quarantine_version is not None:
            rows = replay_claims.read(spark, self.target.quarantine, self.quarantine_version)
            of_topic = rows.where(F.col("topic") == self.topic)
            is_replayed = F.col("replayed_at").isNotNull()
            offsets = offsets.unionAll(of_topic.select(F.lit(True), "partition", "offset", is_replayed))
        return offsets.where("partition IS NOT NULL AND offset IS NOT NULL")

    def ends_of_changes(self, spark: SparkSession) -> dict[int, int]:
        """Return by partition the offset after the last change in a table."""
        if self.table_version is None or not {PARTITION, OFFSET} <= self._fields(spark, CDC_COLUMN):
            # Not yet a table of changes, or one without offsets, which its own check refuses.
            return {}
        partition, offset = F.col(f"{CDC_COLUMN}.{PARTITION}"), F.col(f"{CDC_COLUMN}.{OFFSET}")
        rows = delta.read(spark, self.target.table, self.table_version).where(partition.isNotNull())
        return dict(map(tuple, rows.groupBy(partition).agg(F.max(offset) + 1).collect()))

    def _fields(self, spark: SparkSession, column: str) -> set[str]:
        """Return the fields of a struct in the table; empty if the table has no such column."""
        columns = delta.columns(spark, self.target.table)
        if columns is None or column not in columns.names:
            return set()
        return set(getattr(columns[column].dataType, "names", ()))

    def is_traced(self, spark: SparkSession) -> bool:
        """Return whether each row of a table has the partition and offset of its record."""
        return self.table_version is None or {"partition", "offset"} <= self._fields(spark, KAFKA_COLUMN)

    def require_traced(self, spark: SparkSession) -> None:
        """Check that each row of a table says which record it is.

        Raises:
            ConfigError: It does not.
        """
        needed = {"partition", "offset", "topic"} if self.is_shared else {"partition", "offset"}
        if self.table_version is None or needed <= self._fields(spark, KAFKA_COLUMN):
            return
        table = self.target.table
        raise ConfigError(
            f"resume=table needs rows that say which record each is; those of {table} have no column "
            f"{KAFKA_COLUMN} with {', '.join(sorted(needed))}",
            "set resume=restart with starting_offsets for each partition",
            parameter="resume",
            table=table,
            topic=self.topic,
            expected=tuple(sorted(needed)),
            reason="no_kafka_column",
        )


def spans_of(commits: Iterable[Commit], topic: str) -> dict[int, list[Span]]:
    """Return the ranges of offsets of a topic in commits, by partition."""
    ranges: dict[int, list[Span]] = {}
    for commit in commits:
        for partition, (first, after) in commit.metadata.get(OFFSETS, {}).get(topic, {}).items():
            ranges.setdefault(int(partition), []).append((first, after))
    return ranges


def read(
    spark: SparkSession, topic: str, target: Target, missed: Mapping[int, Sequence[Span]]
) -> TableContent:
    """Return the content of the tables of a topic; `missed` has the ranges that a paused one waits for."""
    if not delta.is_table(spark, target.table):
        return TableContent(topic, target, None, None, (), missed, is_shared=False, explains_rows=False)
    # The version is read before the history, so the history includes all of its commits.
    version = delta.latest_version(spark, target.table)
    commits = table_commits.read(spark, target.table)
    quarantine = None
    if delta.is_table(spark, target.quarantine):
        quarantine = delta.latest_version(spark, target.quarantine)
    topics = {name for commit in commits.valid for name in commit.metadata.get(OFFSETS, {})}
    return TableContent(
        topic,
        target,
        version,
        quarantine,
        tuple(commit for commit in commits.valid if topic in commit.metadata.get(OFFSETS, {})),
        missed,
        is_shared=bool(topics - {topic}),
        explains_rows=_explains_rows(commits),
    )


def _explains_rows(commits: Commits) -> bool:
    has_offsets = [OFFSETS in commit.metadata for commit in commits.valid]
    return commits.is_complete and bool(has_offsets) and all(has_offsets)
