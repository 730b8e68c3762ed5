"""Several topics in one query, each into its own table; a sick one is paused and the others go on.

The offsets of a query advance together. So what a paused topic misses is written down, in the Delta table
`<checkpoint>_paused`: which batch, which offsets. When the topic is well again those offsets are read once
more and written as the batches that they were, before anything newer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from topiclake import delta, kafka, micro_batch
from topiclake.errors import (
    DecodeError,
    IngestError,
    SchemaRegistryError,
    StorageError,
    SubjectNotFoundError,
)
from topiclake.micro_batch import Target
from topiclake.rows import FAILFAST
from topiclake.settings import QUARANTINE, TOPIC

LEDGER_SCHEMA = (
    "topic STRING, batch_id BIGINT, partition INT, first BIGINT, last BIGINT, why STRING, "
    "paused_at TIMESTAMP, resumed_at TIMESTAMP"
)
#: Seconds between two tries to resume a topic while the query runs.
RETRY_SECONDS = 60.0

_LOG = logging.getLogger(__name__)

#: By checkpoint and topic: the start of its query, and when the topic may be tried again.
_next_try: dict[tuple[str, str], tuple[str, float]] = {}


@dataclass(frozen=True)
class Topics:
    """Where the records of several topics go; can be pickled, for Spark Connect.

    Attributes:
        template: A target whose paths and subjects hold `{topic}`.
        reader: Options of Spark's Kafka source without topics and offsets, to read a paused range again.
        ledger: Location of the Delta table of what is paused.
        retry_seconds: Seconds between two tries to resume a topic.
    """

    template: Target
    reader: Mapping[str, str] = field(repr=False)
    ledger: str
    retry_seconds: float = RETRY_SECONDS

    def target(self, topic: str) -> Target:
        """Return the target of one topic."""
        return replace(
            self.template,
            topic=topic,
            table=self.template.table.replace(TOPIC, topic),
            quarantine=self.template.quarantine.replace(TOPIC, topic),
            subjects={
                part: tuple(subject.replace(TOPIC, topic) for subject in subjects)
                for part, subjects in self.template.subjects.items()
            },
        )


def write(topics: Topics, records: DataFrame, batch_id: int) -> None:
    """Write one micro-batch of several topics.

    Raises:
        SchemaRegistryError: The registry cannot be used, which is no topic's fault; nothing was decided.
        DecodeError: A record is not right, in mode FAILFAST.
    """
    spark = records.sparkSession
    # Every topic reads its part of the batch: from memory or disk, not from Kafka again.
    records = records.persist()
    try:
        ledger = paused(spark, topics.ledger)
        there = {row["topic"] for row in records.select("topic").distinct().collect()}
        for topic in sorted(there | set(ledger)):
            behind = [row for row in ledger.get(topic, []) if row["batch_id"] < batch_id]
            if behind and not _resumed(spark, topics, topic, behind):
                if topic in there:
                    _pause(topics, records, topic, batch_id, behind[-1]["why"])
            elif topic in there:
                _write_or_pause(topics, records, topic, batch_id)
    finally:
        records.unpersist()


def resume(spark: SparkSession, topics: Topics) -> None:
    """Write what paused topics have missed, where they are well again; before the query runs.

    Spark runs no micro-batch while nothing is new.

    Raises:
        SchemaRegistryError: The registry cannot be used.
        DecodeError: A record is not right, in mode FAILFAST.
    """
    for topic, behind in paused(spark, topics.ledger).items():
        _resumed(spark, topics, topic, behind)


def waiting(spark: SparkSession, ledger: str) -> DataFrame | None:
    """Return the ranges that wait, columns as `LEDGER_SCHEMA`; None: nothing was ever paused."""
    if not delta.is_table(spark, ledger):
        return None
    return delta.read(spark, ledger).where("resumed_at IS NULL")


def paused(spark: SparkSession, ledger: str) -> dict[str, list[Row]]:
    """Return the ranges that wait, by topic, in the order of their batches."""
    rows = waiting(spark, ledger)
    if rows is None:
        return {}
    found: dict[str, list[Row]] = {}
    for row in rows.orderBy("topic", "batch_id", "partition").collect():
        found.setdefault(row["topic"], []).append(row)
    return found


def _write_or_pause(topics: Topics, records: DataFrame, topic: str, batch_id: int) -> None:
    try:
        _require_own_table(topics, topic)
        micro_batch.write(topics.target(topic), records.where(F.col("topic") == topic), batch_id)
    except Exception as error:
        if not _is_topics_own(error):
            raise
        _pause(topics, records, topic, batch_id, _told(error))


def _require_own_table(topics: Topics, topic: str) -> None:
    if topics.template.table.endswith(TOPIC) and topic.endswith(QUARANTINE):
        raise IngestError(
            f"the table of topic {topic} would be the quarantine of topic {topic.removesuffix(QUARANTINE)}",
            "a table_path that goes on behind {topic}",
            topic=topic,
            reason="quarantine_of_another",
        )


def _is_topics_own(error: Exception) -> bool:
    """Tell whether other topics are not touched by an error."""
    if isinstance(error, SubjectNotFoundError):
        return True
    return not (isinstance(error, (SchemaRegistryError, DecodeError)) or FAILFAST in str(error))


def _told(error: Exception) -> str:
    return " ".join(str(error).split())[:1000]


def _pause(topics: Topics, records: DataFrame, topic: str, batch_id: int, why: str) -> None:
    """Write down which offsets of `topic` this batch holds."""
    _LOG.warning("topic %s is paused at batch %s; the others go on: %s", topic, batch_id, why)
    _wait(topics, topic)
    ranges = (
        records.where(F.col("topic") == topic)
        .groupBy("topic", F.lit(batch_id).cast("bigint").alias("batch_id"), "partition")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
        .select(
            "*",
            F.lit(why).alias("why"),
            F.current_timestamp().alias("paused_at"),
            F.lit(None).cast("timestamp").alias("resumed_at"),
        )
    )
    writer = micro_batch.writer_name(topics.target(topic), records.sparkSession)
    try:
        delta.append_once(ranges, topics.ledger, writer=f"{writer}/paused", batch_id=batch_id, commit={})
    except Exception as error:  # noqa: BLE001 (whatever the storage raises)
        raise StorageError(
            f"topic {topic} cannot be written ({why}), nor can it be paused: {_told(error)}",
            f"make {topics.ledger} writable",
            topic=topic,
            ledger=topics.ledger,
        ) from None


def _wait(topics: Topics, topic: str) -> None:
    """Try a topic again later; the next start of the query tries it at once."""
    until = time.monotonic() + topics.retry_seconds
    _next_try[topics.template.checkpoint, topic] = topics.template.start, until


def _waits(topics: Topics, topic: str) -> bool:
    start, until = _next_try.get((topics.template.checkpoint, topic), ("", 0.0))
    return start == topics.template.start and until > time.monotonic()


def _resumed(spark: SparkSession, topics: Topics, topic: str, behind: list[Row]) -> bool:
    """Try to write what a topic missed, oldest batch first; tell whether all of it is written."""
    if _waits(topics, topic):
        return False
    target = topics.target(topic)
    try:
        _require_own_table(topics, topic)
        for batch_id in sorted({row["batch_id"] for row in behind}):
            ranges = [row for row in behind if row["batch_id"] == batch_id]
            records = _read_again(spark, topics, topic, ranges)
            micro_batch.write(target, records, batch_id, is_read_again=True)
            _mark_resumed(spark, topics.ledger, topic, batch_id)
    except Exception as error:
        if not _is_topics_own(error):
            raise
        _LOG.warning("topic %s is still paused: %s", topic, _told(error))
        _wait(topics, topic)
        return False
    _LOG.warning("topic %s goes on", topic)
    return True


def _mark_resumed(spark: SparkSession, ledger: str, topic: str, batch_id: int) -> None:
    batch = (F.col("topic") == topic) & (F.col("batch_id") == batch_id)
    DeltaTable.forPath(spark, ledger).update(batch, {"resumed_at": F.current_timestamp()})


def _read_again(spark: SparkSession, topics: Topics, topic: str, ranges: list[Row]) -> DataFrame:
    first = {row["partition"]: row["first"] for row in ranges}
    after = {row["partition"]: row["last"] + 1 for row in ranges}
    return kafka.read_range(spark, topics.reader, topic, first, after)
