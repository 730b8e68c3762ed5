"""A micro-batch, and its commits in the tables of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession

from topiclake.delta import table as delta
from topiclake.ingest.targets import Target, report_counts
from topiclake.streaming import batch_offsets, checkpoint, observation
from topiclake.streaming.batch_counts import TableCount
from topiclake.streaming.checkpoint import Ranges


def offsets_of(target: Target, spark: SparkSession, batch_id: int, resumed_offsets: Ranges | None) -> Ranges:
    """Return the offsets of a batch of a topic.

    Args:
        target: The tables of the topic.
        spark: The session of the query.
        batch_id: Spark's number of the batch.
        resumed_offsets: The offsets of an older batch; None for a batch of the running query.
    """
    if resumed_offsets is not None:
        return resumed_offsets
    ranges = checkpoint.ranges(spark, target.checkpoint, batch_id, target.start)
    return batch_offsets.of_topic(ranges, target.topic)


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    Attributes:
        target: The tables of the topic.
        writer: Delta's name of the writer of the query's batches.
        records: Kafka's records, without changes.
        number: Spark's number of the batch.
        offsets: Its offsets; empty if the checkpoint does not have them.
    """

    target: Target
    writer: str
    records: DataFrame
    number: int
    offsets: Ranges

    @property
    def label(self) -> str:
        """Name of the batch in errors."""
        topic = "" if self.target.topic is None else f" of topic {self.target.topic}"
        return f"batch {self.number}{topic}"

    @property
    def spark(self) -> SparkSession:
        """The session of its records."""
        return self.records.sparkSession

    def report(self, count: TableCount) -> None:
        """Report the rows that this batch wrote into a table to subscribers of the query."""
        report_counts(self.target, self.spark, self.number, count)

    def append(
        self, frame: DataFrame, path: str, suffix: str = "", commit: Mapping[str, object] | None = None
    ) -> None:
        """Append once, as this batch of this writer; the table's history keeps `commit`."""
        metadata = self.target.origin | dict(commit or {})
        delta.append_once(frame, path, writer=self.writer + suffix, batch_id=self.number, commit=metadata)

    def has_committed(self, observed: Observation, attempt: str) -> bool:
        """Return whether `attempt` committed to the table; `observed` observes the rows of that commit.

        Otherwise the table already has the batch, and Spark executed nothing.
        """
        # Transformed rows are computed before the commit, so metrics exist also without a commit.
        is_counted = self.target.transform is None and observation.has_metrics(observed)
        # Reading the history of the table costs two calls of an object store.
        return is_counted or delta.is_committed(self.spark, self.target.table, attempt)

    def commit_to_resume(self) -> Mapping[str, Any] | None:
        """Return commit 1 of an earlier attempt, or None if Delta has cleaned up the table's history since.

        Raises:
            IngestError: The commit holds other offsets.
        """
        commit, target = self.earlier(self.target.table), self.target
        batch_offsets.require_same(
            commit, self.offsets, table=target.table, checkpoint=target.checkpoint, batch_id=self.number
        )
        return commit

    def earlier(self, path: str, suffix: str = "") -> Mapping[str, Any] | None:
        """Return the metadata of an earlier attempt of this batch in the history of the table at `path`."""
        return delta.commit_of(self.spark, path, writer=self.writer + suffix, batch_id=self.number)
