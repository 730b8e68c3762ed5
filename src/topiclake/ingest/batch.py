"""A micro-batch on its way into the tables of a topic, and the commits that it makes there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession

from topiclake.delta import table as delta
from topiclake.ingest.targets import Target, report_counts
from topiclake.streaming import batch_offsets, observation
from topiclake.streaming.batch_counts import TableCount
from topiclake.streaming.checkpoint import Ranges


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    Attributes:
        target: Where to.
        writer: How Delta knows the writer of the query's batches.
        records: Kafka's records, as Kafka has them.
        number: Spark's number.
        offsets: Its offsets; empty where the checkpoint does not say.
    """

    target: Target
    writer: str
    records: DataFrame
    number: int
    offsets: Ranges

    @property
    def words(self) -> str:
        """How errors name it."""
        topic = "" if self.target.topic is None else f" of topic {self.target.topic}"
        return f"batch {self.number}{topic}"

    @property
    def spark(self) -> SparkSession:
        """The session of its records."""
        return self.records.sparkSession

    def report(self, count: TableCount) -> None:
        """Report to whoever watches the query what this batch put into a table."""
        report_counts(self.target, self.spark, self.number, count)

    def append(
        self, frame: DataFrame, path: str, suffix: str = "", commit: Mapping[str, object] | None = None
    ) -> None:
        """Append once, as this batch of this writer; `commit` is kept in the table's history."""
        metadata = self.target.origin | dict(commit or {})
        delta.append_once(frame, path, writer=self.writer + suffix, batch_id=self.number, commit=metadata)

    def has_committed(self, observed: Observation, attempt: str) -> bool:
        """Return whether `attempt` made its commit of the table, on whose rows `observed` is.

        Otherwise the table has the batch already, and Spark executed nothing.
        """
        # Transformed rows are computed before the commit, so they are counted without one.
        is_counted = self.target.transform is None and observation.has_metrics(observed)
        # To ask the table are two calls on an object store.
        return is_counted or delta.is_committed(self.spark, self.target.table, attempt)

    def commit_to_resume(self) -> Mapping[str, Any] | None:
        """Return commit 1 of an earlier attempt; None where the table's history was cleaned up since.

        Raises:
            IngestError: It holds other offsets.
        """
        commit, target = self.earlier(self.target.table), self.target
        batch_offsets.require_same(
            commit, self.offsets, table=target.table, checkpoint=target.checkpoint, batch_id=self.number
        )
        return commit

    def earlier(self, path: str, suffix: str = "") -> Mapping[str, Any] | None:
        """Return what an earlier attempt of this batch wrote into the history of the table at `path`."""
        return delta.commit_of(self.spark, path, writer=self.writer + suffix, batch_id=self.number)
