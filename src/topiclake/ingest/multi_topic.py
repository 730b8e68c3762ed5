"""Several topics in one query, each into its own table; a failing one is paused and the others continue.

The offsets of all topics of a query advance together. So the Delta table `<checkpoint>_paused` notes the
batches and offsets that a paused topic misses. When the topic works again, those offsets are read and written
in large ranges, before newer records (`isolated_topic`).

A topic is paused if it cannot be written, if Kafka has lost records of it, or if the pipeline no longer lists
it. Spark continues to advance its offsets in the checkpoint.

Threads write the topics of a batch side by side. The thread of a paused topic tries to resume it before.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from topiclake.errors import StorageError
from topiclake.ingest import isolated_topic, targets
from topiclake.ingest.isolated_topic import TopicPart
from topiclake.ingest.paused_topics import Span, combine, mark_resumed, note, paused
from topiclake.ingest.topic_targets import Topics, owners_of
from topiclake.kafka import source as kafka_source
from topiclake.kafka.lost_ranges import LostRange
from topiclake.session import parallel_tasks
from topiclake.streaming import checkpoint, lost_offsets
from topiclake.streaming.checkpoint import Ranges
from topiclake.streaming.row_cache import cached

#: The number of topics that are written side by side. A commit waits for its store, so more than one a core
#: of the driver.
MAX_THREADS = min(8, 2 * (os.cpu_count() or 1))

#: The number of records of a partition of a batch in memory, about. Each topic reads all of them.
_PARTITION_RECORDS = 100_000

_LOG = logging.getLogger(__name__)


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
    reasons = _pause_reasons(topics, new.keys() | waiting.keys(), lost)
    parts, failing = _parts(topics, new, waiting, reasons, batch_id)
    ready = {part.topic: part.spans for part in parts if part.spans}
    if ready and reasons.keys() & failing.keys():
        # Spark would wait for records that are deleted.
        records = kafka_source.read_range(spark, topics.reader, ready, fail_on_data_loss=False)
    elif failing:
        records = records.where(~F.col("topic").isin(*failing))
    # Each topic reads its part of the batch from memory or disk, instead of reading Kafka again.
    partitions = math.ceil(sum(part.records for part in parts) / _PARTITION_RECORDS)
    records = records.coalesce(max(parallel_tasks(spark), partitions))
    owners = owners_of(topics, ranges)
    with cached(records), _side_by_side(topics, records, parts, batch_id, owners) as written:
        for topic, reason in failing.items():
            _pause(spark, topics, topic, batch_id, new[topic], reason)
        for part, failure in written:
            if failure is not None:
                if part.topic in new:
                    _pause(spark, topics, part.topic, batch_id, new[part.topic], failure)
            elif part.spans and any(row["batch_id"] == batch_id for row in waiting.get(part.topic, [])):
                # An earlier attempt of this batch noted the range; later batches must not write it again.
                mark_resumed(spark, topics.ledger, part.topic, batch_id)
    combine(spark, topics.ledger, waiting, batch_id)


def _parts(
    topics: Topics,
    new: Ranges,
    waiting: Mapping[str, list[Row]],
    reasons: Mapping[str, str],
    batch_id: int,
) -> tuple[list[TopicPart], dict[str, str]]:
    """Return what a batch tries to write, and the reasons why other topics with new records stay paused."""
    parts, failing = [], {}
    for topic in sorted(new.keys() | waiting.keys()):
        # A start may have fixed a range that includes an earlier attempt of this batch.
        missed = [
            row
            for row in waiting.get(topic, [])
            if row["batch_id"] < batch_id or row["resumed_as"] is not None
        ]
        reason = reasons.get(topic)
        if reason is None and missed and isolated_topic.waits(topics, topic):
            reason = missed[-1]["why"]
        is_written = any(row["batch_id"] == batch_id for row in missed)
        if reason is None:
            parts.append(TopicPart(topic, missed, {} if is_written else new.get(topic, {})))
        elif topic in new:
            failing[topic] = reason
    return parts, failing


@contextmanager
def _side_by_side(
    topics: Topics,
    records: DataFrame,
    parts: Iterable[TopicPart],
    batch_id: int,
    owners: Mapping[str, list[str]],
) -> Iterator[Iterator[tuple[TopicPart, str | None]]]:
    """Write topics side by side, the largest first, and return each with the reason if it must wait.

    After an error, also of the caller, topics that have not begun are not written. No thread runs when the
    error is raised.
    """
    with ThreadPoolExecutor(MAX_THREADS) as threads:
        try:
            # Each call copies Spark's local properties, such as the job group. Threads cannot share them.
            running = {
                threads.submit(
                    inheritable_thread_target(records.sparkSession)(
                        partial(isolated_topic.write, topics, records, part, batch_id, owners)
                    )
                ): part
                for part in sorted(parts, key=lambda part: -part.size)
            }
            yield ((running[done], done.result()) for done in as_completed(running))
        finally:
            threads.shutdown(cancel_futures=True)


def _not_empty(spans: Mapping[int, Span]) -> dict[int, Span]:
    return {partition: (first, after) for partition, (first, after) in spans.items() if first < after}


def _losses(topics: Topics, spark: SparkSession, ranges: Ranges) -> dict[str, LostRange]:
    """Return by topic the lost range of a batch; note it if the topic is not paused for it."""
    of_pipeline = {topic: partitions for topic, partitions in ranges.items() if topics.has(topic)}
    losses = lost_offsets.batch_losses(topics.client, of_pipeline)
    pauses = topics.fail_on_data_loss
    noted = [lost for lost in losses if not pauses or not _not_empty(ranges[lost.topic])]
    lost_offsets.note_losses(spark, topics.template.pipeline, topics.template.checkpoint, noted)
    return {lost.topic: lost for lost in losses}


def _pause_reasons(topics: Topics, names: Iterable[str], lost: Mapping[str, LostRange]) -> dict[str, str]:
    """Return the reasons why topics are paused before a batch tries to write them."""
    reasons = {}
    for topic in names:
        if not topics.has(topic):
            reasons[topic] = "the topic was removed from the list of the pipeline"
        elif topic in lost and (topics.fail_on_data_loss or lost[topic].why == "deleted"):
            reasons[topic] = (
                f"{lost[topic]}; try: fail_on_data_loss=false, which continues with the records after them"
            )
    return reasons


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
        if not isolated_topic.affects_one_topic(error):
            raise
        raise StorageError(
            f"topic {topic} cannot be written ({reason}), nor can it be paused: "
            f"{isolated_topic.message(error)}",
            f"make {topics.ledger} writable",
            topic=topic,
            ledger=topics.ledger,
        ) from None
