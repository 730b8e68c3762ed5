"""The writes of one topic of several, whose failure affects only this topic.

First come the ranges that the topic missed while it was paused. The table of pauses fixes each of them, with
the number of its last batch, before it is written. So a crash repeats the same range, and Delta writes it
once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from topiclake.errors import DecodeError, SchemaRegistryError, SubjectNotFoundError
from topiclake.ingest import change_batch, registered_batch
from topiclake.ingest.paused_topics import (
    Span,
    mark_resumed,
    next_range,
    number_of_records,
    paused,
    spans_of,
)
from topiclake.ingest.targets import Target
from topiclake.ingest.topic_targets import Topics, owners_of, require_own_table
from topiclake.kafka import offsets as kafka_offsets
from topiclake.kafka import source as kafka_source
from topiclake.streaming.checkpoint import Ranges
from topiclake.streaming.failure import FAILFAST

#: Seconds after which a batch leaves the rest of a topic to the next batch, so that other topics do not wait.
RESUME_SECONDS = 10.0

#: The number of records of a topic for a task, about. The first task writes a file also without rows.
_TASK_RECORDS = 10_000

#: Texts of errors that end the batch for all topics: a bad record in mode FAILFAST, a stop of the query.
_ENDS = (FAILFAST, "SPARK_JOB_CANCELLED", "InterruptedException")
_LOG = logging.getLogger(__name__)

#: By checkpoint and topic: the start of its query, and when the topic may be tried again.
_next_try: dict[tuple[str, str], tuple[str, float]] = {}


@dataclass(frozen=True)
class TopicPart:
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
        return self.records + number_of_records(self.missed)


def write(
    topics: Topics, records: DataFrame, part: TopicPart, batch_id: int, owners: Mapping[str, list[str]]
) -> str | None:
    """Write what a topic has missed, then its part of a batch; return the reason if the topic must wait.

    Raises:
        SchemaRegistryError: The registry cannot be used.
        DecodeError: A record cannot be decoded, in mode FAILFAST.
    """

    def write_part() -> str | None:
        reason = _write_missed(records.sparkSession, topics, part.topic, part.missed, RESUME_SECONDS)
        if reason is None and part.spans:
            tasks = math.ceil(part.records / _TASK_RECORDS)
            of_topic = records.where(F.col("topic") == part.topic).coalesce(tasks)
            _write_batch(topics.target(part.topic), of_topic, batch_id)
        return reason

    return _try(topics, part.topic, owners, write_part)


def resume(spark: SparkSession, topics: Topics) -> None:
    """Write the missed ranges of paused topics that work again, before the query runs.

    Otherwise they would wait for new records, without which Spark runs no micro-batch.

    Raises:
        SchemaRegistryError: The registry cannot be used.
        DecodeError: A record cannot be decoded, in mode FAILFAST.
    """
    waiting = paused(spark, topics.ledger)
    owners = owners_of(topics, waiting)
    for topic, missed in waiting.items():
        if topics.has(topic):
            _try(topics, topic, owners, partial(_write_missed, spark, topics, topic, missed, math.inf))


def waits(topics: Topics, topic: str) -> bool:
    """Return whether a topic failed in this query, less than `retry_seconds` ago."""
    start, until = _next_try.get((topics.template.checkpoint, topic), ("", 0.0))
    return start == topics.template.start and until > time.monotonic()


def affects_one_topic(error: Exception) -> bool:
    """Return whether an error affects only its topic."""
    if isinstance(error, SubjectNotFoundError):
        return True
    text = str(error)
    return not (isinstance(error, (SchemaRegistryError, DecodeError)) or any(end in text for end in _ENDS))


def message(error: Exception) -> str:
    """Return the text of an error in one line, for the table of pauses."""
    return " ".join(str(error).split())[:1000]


def _try(
    topics: Topics, topic: str, owners: Mapping[str, list[str]], write: Callable[[], str | None]
) -> str | None:
    """Write a topic, and return the reason if it must wait.

    An error delays the next attempt. The next start of the query does not wait.
    """
    try:
        require_own_table(topics, topic, owners)
        return write()
    except Exception as error:
        if not affects_one_topic(error):
            raise
        reason = message(error)
        _LOG.warning("topic %s cannot be written: %s", topic, reason)
        until = time.monotonic() + topics.retry_seconds
        _next_try[topics.template.checkpoint, topic] = (topics.template.start, until)
        return reason


def _write_missed(
    spark: SparkSession, topics: Topics, topic: str, missed: list[Row], seconds: float
) -> str | None:
    """Write missed ranges of a topic, oldest first, for `seconds`; return the reason if some must wait."""
    if not missed:
        return None
    target, end = topics.target(topic), time.monotonic() + seconds
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
            return str(missed[-1]["why"])
    _LOG.warning("topic %s continues", topic)
    return None


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
