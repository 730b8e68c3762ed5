"""Several topics in one query, each into its own table; a failing one is paused and the others continue.

The offsets of all topics of a query advance together. So the Delta table `<checkpoint>_paused` notes the
batches and offsets that a paused topic misses. When the topic works again, those offsets are read and written
in large ranges, before newer records. The table fixes each range before it is written, with the number of its
last batch. So a crash repeats the same range, and Delta writes it once.

A topic is paused if it cannot be written, if Kafka has lost records of it, or if the pipeline no longer lists
it. Spark continues to advance its offsets in the checkpoint.

Threads write the topics of a batch side by side. The thread of a paused topic tries to resume it before.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from topiclake.config import table_name
from topiclake.config.pipeline import QUARANTINE
from topiclake.config.settings import Settings
from topiclake.errors import (
    DecodeError,
    IngestError,
    SchemaRegistryError,
    StorageError,
    SubjectNotFoundError,
)
from topiclake.ingest import change_batch, registered_batch, targets
from topiclake.ingest.paused_topics import Span, mark_resumed, next_range, note, paused, spans_of
from topiclake.ingest.targets import Target
from topiclake.kafka import client as kafka_client
from topiclake.kafka import offsets as kafka_offsets
from topiclake.kafka import source as kafka_source
from topiclake.kafka.lost_ranges import LostRange
from topiclake.session import parallel_tasks
from topiclake.storage import mount
from topiclake.streaming import checkpoint, lost_offsets
from topiclake.streaming.checkpoint import Ranges
from topiclake.streaming.failure import FAILFAST
from topiclake.streaming.row_cache import cached

#: Seconds between two attempts to resume a topic while the query runs.
RETRY_SECONDS = 60.0


#: Seconds after which a batch leaves the rest of a topic to the next batch, so that other topics do not wait.
RESUME_SECONDS = 10.0


#: The number of topics that are written side by side. A commit waits for its store, so more than one a core
#: of the driver.
MAX_THREADS = min(8, 2 * (os.cpu_count() or 1))

#: The number of records of a partition of a batch in memory, about. Each topic reads all of them.
_PARTITION_RECORDS = 100_000

#: The number of records of a topic for a task, about. The first task writes a file also without rows.
_TASK_RECORDS = 10_000

#: Texts of errors that end the batch for all topics: a bad record in mode FAILFAST, a stop of the query.
_ENDS = (FAILFAST, "SPARK_JOB_CANCELLED", "InterruptedException")
_LOG = logging.getLogger(__name__)

#: By checkpoint and topic: the start of its query, and when the topic may be tried again.
_next_try: dict[tuple[str, str], tuple[str, float]] = {}


@dataclass(frozen=True)
class Topics:
    """The targets of several topics; picklable, for Spark Connect.

    Attributes:
        template: A target whose paths and subjects hold `{topic}`.
        reader: Options of Spark's Kafka source without topics and offsets, to read a paused range again.
        ledger: Location of the Delta table of paused ranges.
        retry_seconds: Seconds between two attempts to resume a topic.
        fail_on_data_loss: Whether a topic is paused if Kafka has deleted records of it. Otherwise it
            continues with the remaining records.
        ids: By topic the id for the properties of a new table, if offsets order its changes.
        client: Settings of a confluent-kafka client.
        reads: A regular expression that matches the topics of the pipeline.
    """

    template: Target
    reader: Mapping[str, str] = field(repr=False)
    ledger: str
    client: Mapping[str, Any] = field(repr=False)
    reads: str
    retry_seconds: float = RETRY_SECONDS
    fail_on_data_loss: bool = True
    ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, settings: Settings, template: Target) -> Topics:
        """Return the topics of a configuration; the paths and subjects of `template` hold `{topic}`."""
        return cls(
            template=template,
            reader=kafka_source.range_options(settings.kafka),
            ledger=mount.resolve(settings.storage, settings.pipeline.paused_path),
            client=kafka_client.client_settings(settings.kafka),
            reads=kafka_source.pattern(settings.pipeline),
            fail_on_data_loss=settings.pipeline.fail_on_data_loss,
        )

    def target(self, topic: str) -> Target:
        """Return the target of one topic."""
        return replace(
            self.template,
            topic=topic,
            table=table_name.for_topic(self.template.table, topic),
            quarantine=table_name.for_topic(self.template.quarantine, topic),
            schemas=self.template.schemas.for_topic(topic),
            properties={**self.template.properties, **targets.topic_property(topic, self.ids)},
        )


def write(topics: Topics, records: DataFrame, batch_id: int) -> None:
    """Write one micro-batch of several topics.

    Raises:
        SchemaRegistryError: The registry cannot be used. That error pauses no topic.
        DecodeError: A record cannot be decoded, in mode FAILFAST.
    """
    spark, template = records.sparkSession, topics.template
    ranges = checkpoint.ranges(spark, template.checkpoint, batch_id, template.start)
    new = {topic: spans for topic, partitions in ranges.items() if (spans := _not_empty(partitions))}
    waiting, lost = paused(spark, topics.ledger), _losses(topics, spark, ranges)
    parts, failing = _parts(topics, new, waiting, lost, batch_id)
    ready = {part.topic: part.spans for part in parts if part.spans}
    if ready and any(_pause_reason(topics, topic, lost) for topic in failing):
        # Spark would wait for records that are deleted.
        records = kafka_source.read_range(spark, topics.reader, ready, fail_on_data_loss=False)
    elif failing:
        records = records.where(~F.col("topic").isin(*failing))
    # Each topic reads its part of the batch from memory or disk, instead of reading Kafka again.
    partitions = math.ceil(sum(part.records for part in parts) / _PARTITION_RECORDS)
    records = records.coalesce(max(parallel_tasks(spark), partitions))
    with cached(records), _side_by_side(topics, records, parts, batch_id, _owners(topics, ranges)) as written:
        for topic, reason in failing.items():
            _pause(spark, topics, topic, batch_id, new[topic], reason)
        for part, failure in written:
            if failure is not None:
                if part.topic in new:
                    _pause(spark, topics, part.topic, batch_id, new[part.topic], failure)
            elif part.spans and any(row["batch_id"] == batch_id for row in waiting.get(part.topic, [])):
                # An earlier attempt of this batch noted the range; later batches must not write it again.
                mark_resumed(spark, topics.ledger, part.topic, batch_id)


@dataclass(frozen=True)
class _TopicPart:
    """The part of a batch that has one topic.

    Attributes:
        topic: The topic.
        missed: Rows of the table of pauses, whose ranges are written first.
        spans: By partition the offsets to write; none if the ranges include them.
    """

    topic: str
    missed: list[Row]
    spans: Mapping[int, Span]

    @property
    def records(self) -> int:
        """The number of new records, at most."""
        return sum(after - first for first, after in self.spans.values())

    @property
    def size(self) -> int:
        """The number of records to write, at most."""
        return self.records + sum(int(row["last"]) + 1 - int(row["first"]) for row in self.missed)


def _parts(
    topics: Topics,
    new: Ranges,
    waiting: Mapping[str, list[Row]],
    lost: Mapping[str, LostRange],
    batch_id: int,
) -> tuple[list[_TopicPart], dict[str, str]]:
    """Return what a batch tries to write, and the reasons why other topics with new records stay paused."""
    parts, failing = [], {}
    for topic in sorted(new.keys() | waiting.keys()):
        # A start may have fixed a range that includes an earlier attempt of this batch.
        missed = [
            row
            for row in waiting.get(topic, [])
            if row["batch_id"] < batch_id or row["resumed_as"] is not None
        ]
        reason = _pause_reason(topics, topic, lost)
        if reason is None and missed and _waits(topics, topic):
            reason = missed[-1]["why"]
        is_written = any(row["batch_id"] == batch_id for row in missed)
        if reason is None:
            parts.append(_TopicPart(topic, missed, {} if is_written else new.get(topic, {})))
        elif topic in new:
            failing[topic] = reason
    return parts, failing


@contextmanager
def _side_by_side(
    topics: Topics,
    records: DataFrame,
    parts: Iterable[_TopicPart],
    batch_id: int,
    owners: Mapping[str, list[str]],
) -> Iterator[Iterator[tuple[_TopicPart, str | None]]]:
    """Write topics side by side, the largest first, and return each with the result of `_write_topic`.

    After an error, also of the caller, topics that have not begun are not written. No thread runs when the
    error is raised.
    """
    with ThreadPoolExecutor(MAX_THREADS) as threads:
        try:
            # Each call copies Spark's local properties, such as the job group. Threads cannot share them.
            running = {
                threads.submit(
                    inheritable_thread_target(records.sparkSession)(
                        partial(_write_topic, topics, records, part, batch_id, owners)
                    )
                ): part
                for part in sorted(parts, key=lambda part: -part.size)
            }
            yield ((running[done], done.result()) for done in as_completed(running))
        finally:
            threads.shutdown(cancel_futures=True)


def _write_topic(
    topics: Topics, records: DataFrame, part: _TopicPart, batch_id: int, owners: Mapping[str, list[str]]
) -> str | None:
    """Write the ranges of a topic; return the reason if the topic fails, or must still wait."""
    spark, topic, missed = records.sparkSession, part.topic, part.missed
    if missed and not _resumed(spark, topics, topic, missed, owners, RESUME_SECONDS):
        return str(missed[-1]["why"])
    if not part.spans:
        return None
    try:
        _require_own_table(topics, topic, owners)
        of_topic = records.where(F.col("topic") == topic).coalesce(math.ceil(part.records / _TASK_RECORDS))
        _write_batch(topics.target(topic), of_topic, batch_id)
    except Exception as error:
        if not _affects_one_topic(error):
            raise
        _wait(topics, topic)
        return _message(error)
    return None


def _not_empty(spans: Mapping[int, Span]) -> dict[int, Span]:
    return {partition: (first, after) for partition, (first, after) in spans.items() if first < after}


def _losses(topics: Topics, spark: SparkSession, ranges: Ranges) -> dict[str, LostRange]:
    """Return by topic the lost range of a batch; note it if the topic is not paused for it."""
    of_pipeline = {
        topic: partitions for topic, partitions in ranges.items() if re.fullmatch(topics.reads, topic)
    }
    losses = lost_offsets.batch_losses(topics.client, of_pipeline)
    pauses = topics.fail_on_data_loss
    noted = [lost for lost in losses if not pauses or not _not_empty(ranges[lost.topic])]
    lost_offsets.note_losses(spark, topics.template.pipeline, topics.template.checkpoint, noted)
    return {lost.topic: lost for lost in losses}


def _pause_reason(topics: Topics, topic: str, lost: Mapping[str, LostRange]) -> str | None:
    if re.fullmatch(topics.reads, topic) is None:
        return "the topic was removed from the list of the pipeline"
    if topic in lost and (topics.fail_on_data_loss or lost[topic].why == "deleted"):
        return f"{lost[topic]}; try: fail_on_data_loss=false, which continues with the records after them"
    return None


def resume(spark: SparkSession, topics: Topics) -> None:
    """Write the missed ranges of paused topics that work again, before the query runs.

    Otherwise they would wait for new records, without which Spark runs no micro-batch.

    Raises:
        SchemaRegistryError: The registry cannot be used.
        DecodeError: A record cannot be decoded, in mode FAILFAST.
    """
    waiting = paused(spark, topics.ledger)
    owners = _owners(topics, waiting)
    for topic, missed in waiting.items():
        if re.fullmatch(topics.reads, topic):
            _resumed(spark, topics, topic, missed, owners, math.inf)


def _owners(topics: Topics, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the topics by their table, as a catalog compares names."""
    owners: dict[str, list[str]] = {}
    for name in names:
        table = table_name.for_topic(topics.template.table, name)
        owners.setdefault(table_name.folded(table), []).append(name)
    return owners


def _require_own_table(topics: Topics, topic: str, owners: Mapping[str, list[str]]) -> None:
    """Check that no other topic has the table of a topic, as its table or as its quarantine."""
    table = table_name.for_topic(topics.template.table, topic)
    if not table_name.is_allowed(table):
        raise IngestError(
            f"the table of topic {topic} would be {table}, and no catalog allows a dot in a table's name",
            "set table_path in place of table, or a separate pipeline for this topic",
            topic=topic,
            table=table,
            reason="table_name",
        )
    for other in owners.get(table_name.folded(table), ()):
        if other != topic:
            raise IngestError(
                f"topics {topic} and {other} would have the same table: a catalog ignores the case of names",
                "set table_path in place of table, or a separate pipeline for one of them",
                topic=topic,
                table=table,
                reason="table_name",
            )
    other = topic[: -len(QUARANTINE)]
    quarantine = table_name.for_topic(topics.template.quarantine, other)
    if other and table_name.folded(table) == table_name.folded(quarantine):
        raise IngestError(
            f"the table of topic {topic} would be the quarantine of topic {other}",
            "set a table or table_path that does not end with {topic}",
            topic=topic,
            reason="quarantine_of_another",
        )


def _affects_one_topic(error: Exception) -> bool:
    """Return whether an error affects only its topic."""
    if isinstance(error, SubjectNotFoundError):
        return True
    text = str(error)
    return not (isinstance(error, (SchemaRegistryError, DecodeError)) or any(end in text for end in _ENDS))


def _message(error: Exception) -> str:
    return " ".join(str(error).split())[:1000]


def _pause(
    spark: SparkSession, topics: Topics, topic: str, batch_id: int, spans: Mapping[int, Span], reason: str
) -> None:
    """Note the offsets of `topic` in a batch, which the paused topic misses."""
    _LOG.warning("topic %s is paused at batch %s; the others continue: %s", topic, batch_id, reason)
    now = datetime.now(timezone.utc)
    rows = [
        (topic, batch_id, partition, first, after - 1, reason, now, None, None)
        for partition, (first, after) in spans.items()
    ]
    writer = f"{targets.writer_name(topics.target(topic), spark)}/paused"
    try:
        note(spark, topics.ledger, rows, writer=writer, batch_id=batch_id)
    except Exception as error:
        if not _affects_one_topic(error):
            raise
        raise StorageError(
            f"topic {topic} cannot be written ({reason}), nor can it be paused: {_message(error)}",
            f"make {topics.ledger} writable",
            topic=topic,
            ledger=topics.ledger,
        ) from None


def _wait(topics: Topics, topic: str) -> None:
    """Delay the next attempt of a topic; the next start of the query does not wait."""
    until = time.monotonic() + topics.retry_seconds
    _next_try[topics.template.checkpoint, topic] = topics.template.start, until


def _waits(topics: Topics, topic: str) -> bool:
    start, until = _next_try.get((topics.template.checkpoint, topic), ("", 0.0))
    return start == topics.template.start and until > time.monotonic()


def _resumed(
    spark: SparkSession,
    topics: Topics,
    topic: str,
    missed: list[Row],
    owners: Mapping[str, list[str]],
    seconds: float,
) -> bool:
    """Write missed ranges of a topic, oldest first, for `seconds`; return whether all are written."""
    target, end = topics.target(topic), time.monotonic() + seconds
    try:
        _require_own_table(topics, topic, owners)
        # No range is fixed while the topic fails, since it may be larger later.
        registered_batch.require_ready(target, spark)
        while missed:
            number, ranges = next_range(spark, topics.ledger, topic, missed)
            offsets = {topic: spans_of(ranges)}
            if offsets := _offsets_in_kafka(topics, offsets):
                records = kafka_source.read_range(
                    spark, topics.reader, offsets, fail_on_data_loss=topics.fail_on_data_loss
                )
                _write_batch(target, records, number, resumed_offsets=offsets)
            mark_resumed(spark, topics.ledger, topic, number)
            missed = missed[len(ranges) :]
            if missed and time.monotonic() > end:
                _LOG.warning("topic %s has got what it missed to batch %s; the rest follows", topic, number)
                return False
    except Exception as error:
        if not _affects_one_topic(error):
            raise
        _LOG.warning("topic %s is still paused: %s", topic, _message(error))
        _wait(topics, topic)
        return False
    _LOG.warning("topic %s continues", topic)
    return True


def _write_batch(
    target: Target, records: DataFrame, batch_id: int, *, resumed_offsets: Ranges | None = None
) -> None:
    """Write records of one topic: append them, or apply their changes."""
    if target.changes is None:
        registered_batch.write(target, records, batch_id, resumed_offsets=resumed_offsets)
    else:
        change_batch.write(target, target.changes, None, records, batch_id, resumed_offsets=resumed_offsets)


def _offsets_in_kafka(topics: Topics, offsets: Ranges) -> Ranges:
    """Return the offsets; unless `fail_on_data_loss` is set, without deleted topics and partitions."""
    if topics.fail_on_data_loss:
        return offsets
    broker_offsets = kafka_offsets.fetch_offsets(topics.client, offsets, with_ids=False).offsets
    in_kafka = {
        topic: {
            partition: span for partition, span in spans.items() if partition in broker_offsets.get(topic, {})
        }
        for topic, spans in offsets.items()
    }
    return {topic: spans for topic, spans in in_kafka.items() if spans}
