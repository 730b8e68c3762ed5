"""Offsets that Kafka lost before they were read: reported exactly, and noted if the query continues.

Spark only reports that data may have been lost. It reports nothing if a topic was deleted, created again and
has grown past the checkpoint. So the next offsets of the checkpoint are compared with those that Kafka holds.
That happens at each start, after a failure, and before each micro-batch of a query that continues after a
loss. The folder `topiclake/` of the checkpoint keeps as JSON the ids of the topics and the lost ranges.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from confluent_kafka import KafkaException
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from topiclake.config.pipeline import PipelineSettings
from topiclake.config.settings import Settings
from topiclake.errors import KafkaError, OffsetsLostError
from topiclake.kafka import offsets as kafka_offsets
from topiclake.kafka.lost_ranges import LostRange, compare, joined
from topiclake.kafka.offsets import BrokerOffsets
from topiclake.local_frame import local_frame
from topiclake.storage import mount
from topiclake.storage.failures import storage_errors
from topiclake.streaming import checkpoint, checkpoint_notes
from topiclake.streaming.checkpoint import Offsets, Ranges

_LOST = (
    "topic STRING, partition INT, first BIGINT, after BIGINT, why STRING, topic_id STRING, found_at TIMESTAMP"
)
_IDS = "topic STRING, topic_id STRING, found_at TIMESTAMP"
#: Reasons of a loss that pause one of several topics. A topic that was created again is not among them.
PAUSE = ("aged_out", "deleted")
#: Number of ranges in an error, at most; `lost_offsets` returns all.
_MAX_RANGES = 10
_NEW_TABLE = "a new checkpoint_path and table_path, which begin with the records that Kafka still holds"
_CONTINUE = (
    "fail_on_data_loss=false, which continues after them (topiclake.lost_offsets lists them), "
    f"or {_NEW_TABLE}"
)
#: Causes after which new records have lower offsets than earlier ones.
_LOWER = ("recreated", "truncated", "deleted")

#: Topic → topic id.
NewIds = Mapping[str, str]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LossCheck:
    """Arguments with which a micro-batch finds its lost offsets; picklable, for Spark Connect.

    Attributes:
        pipeline: The pipeline's name.
        checkpoint: Resolved location of the checkpoint.
        start: Id of this start of the query.
        client: Settings of a confluent-kafka client.
    """

    pipeline: str
    checkpoint: str
    start: str
    client: Mapping[str, Any] = field(repr=False)


def lost_offsets(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the offsets that Kafka lost before the pipeline read them.

    Args:
        spark: The session.
        settings: The configuration of the ingest.

    Returns:
        A DataFrame `topic STRING, partition INT, first BIGINT, after BIGINT, records BIGINT, why STRING`, one
        row for each range. It has the ranges that queries with `fail_on_data_loss=false` skipped, and those
        that the next start would find. The offset `after` is exclusive, and null if unknown. The number
        `records` may be too high, because compaction and transactions leave gaps. Reasons (`why`) are those
        of `LostRange`.

    Raises:
        TopicNotFoundError, KafkaError, StorageError: The broker or the storage cannot be used.

    Example:
        >>> tl.lost_offsets(spark, settings).count()
        0
    """
    path = mount.resolve(settings.storage, settings.pipeline.checkpoint_path)
    with storage_errors(settings.storage, path):
        noted = [
            LostRange(row["topic"], row["partition"], row["first"], row["after"], row["why"], row["topic_id"])
            for row in checkpoint_notes.read(spark, path, "lost", _LOST)
        ]
        losses = find(spark, settings, path)
    rows = [
        (lost.topic, lost.partition, lost.first, lost.after, lost.records, lost.why)
        for lost in joined([*noted, *losses])
    ]
    columns = "topic STRING, partition INT, first BIGINT, after BIGINT, records BIGINT, why STRING"
    return local_frame(spark, rows, columns)


def check_lost_offsets(
    settings: Settings, path: str, position: Offsets | None, ids: Mapping[str, str]
) -> tuple[list[LostRange], NewIds]:
    """Look for lost offsets before a query starts; nothing is written.

    Args:
        settings: The configuration.
        path: Resolved location of the checkpoint.
        position: The next offsets of the checkpoint; None before the first start.
        ids: The `topic_ids` of the checkpoint.

    Returns:
        The losses without which the query continues, for `note_losses`. And the ids of topics that the
        checkpoint does not know, or knows by another id. The caller passes them to `save_topic_ids` once all
        other checks of the start have passed. If it fails before, the next start finds the same losses.

    Raises:
        OffsetsLostError: Offsets are lost; the error names each range. With `fail_on_data_loss=false` it is
            raised only if offsets order changes and begin again. In a query of several topics, the next batch
            pauses a topic that is deleted or has lost old records.
        ConfigError: `assign`, or the offsets by partition, name other partitions than the topic has.
    """
    losses, broker_offsets = _find(settings, position, ids)
    if settings.pipeline.has_table_for_each:
        losses = [lost for lost in losses if settings.pipeline.reads(lost.topic) and lost.why not in PAUSE]
    if settings.pipeline.orders_changes_by_offset and any(lost.why in _LOWER for lost in losses):
        # The rows would look newer than each change of the new topic.
        raise _error(settings, path, losses, _NEW_TABLE)
    if losses and settings.pipeline.fail_on_data_loss:
        raise _error(settings, path, losses)
    new_ids = {topic: its_id for topic, its_id in broker_offsets.ids.items() if ids.get(topic) != its_id}
    return losses, new_ids


def save_topic_ids(spark: SparkSession, new: NewIds, path: str) -> None:
    """Note the ids from `check_lost_offsets` in the checkpoint, unless a concurrent start has noted them."""
    now = _now()
    try:
        ids = [(topic, topic_id, now) for topic, topic_id in new.items()]
        checkpoint_notes.append(spark, path, "topics", ids, _IDS)
    except (PySparkException, Py4JError):
        # Hadoop's committers share a folder, and the first one to end removes it. Spark's files in the
        # checkpoint decide which of the starts continues.
        stored_ids = topic_ids(spark, path)
        if any(stored_ids.get(topic) != topic_id for topic, topic_id in new.items()):
            raise


def topic_ids(spark: SparkSession, path: str) -> dict[str, str]:
    """Return by topic its id at the last start with it, as the checkpoint at `path` has noted it."""
    rows = checkpoint_notes.read(spark, path, "topics", _IDS)
    return {row["topic"]: row["topic_id"] for row in sorted(rows, key=lambda row: row["found_at"])}


def describe_loss(spark: SparkSession, settings: Settings, path: str) -> OffsetsLostError | None:
    """Return the error for the offsets that a failed query has lost, or None if none are lost."""
    losses, _ = _find(settings, checkpoint.position(spark, path), topic_ids(spark, path))
    return _error(settings, path, losses) if losses else None


def require_configured(settings: Settings, broker_offsets: BrokerOffsets) -> None:
    """Raise an OffsetsLostError if Kafka no longer holds the first offsets of a batch read."""
    losses = compare(_configured(settings.pipeline), broker_offsets, ids=broker_offsets.ids)
    if losses and settings.pipeline.fail_on_data_loss:
        raise OffsetsLostError(
            f"Kafka does not hold the offsets to begin with: {_message(losses)}",
            "set other starting_offsets, or fail_on_data_loss=false, which reads the records that exist",
            ranges=_ranges(losses),
        )


@contextmanager
def data_loss_errors(subject: str, remedy: str) -> Iterator[None]:
    """Read a range of Kafka; if its records are deleted, raise an OffsetsLostError that names `subject`."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if not re.search("KAFKA_DATA_LOSS|Some data may have been lost", str(error)):
            raise
        raise OffsetsLostError(f"Kafka deleted {subject}", remedy, reason="deleted") from None


def write_checked(
    check: LossCheck, write: Callable[[DataFrame, int], None], records: DataFrame, batch_id: int
) -> None:
    """Note the lost offsets of a micro-batch, then write the batch.

    Records that Kafka deletes later, while Spark reads the batch, are not reported.
    """
    spark = records.sparkSession
    ranges = checkpoint.ranges(spark, check.checkpoint, batch_id, check.start)
    note_losses(spark, check.pipeline, check.checkpoint, batch_losses(check.client, ranges))
    write(records, batch_id)


def batch_losses(client: Mapping[str, Any], ranges: Ranges) -> list[LostRange]:
    """Return the ranges of a batch that Kafka has lost.

    Args:
        client: Settings of a confluent-kafka client.
        ranges: The offsets of the batch.

    Raises:
        KafkaError: The broker cannot be reached, or refuses the request.
    """
    begin = {
        topic: {partition: first for partition, (first, _) in spans.items()}
        for topic, spans in ranges.items()
    }
    end = {
        topic: {partition: after for partition, (_, after) in spans.items()}
        for topic, spans in ranges.items()
    }
    try:
        # The topic ids cost one more request for each batch, so they are read only if offsets are lost.
        for with_ids in (False, True):
            losses = compare(begin, kafka_offsets.fetch_offsets(client, begin, with_ids=with_ids), ends=end)
            if not losses:
                break
    except KafkaException as error:
        raise KafkaError(
            f"Kafka does not return its offsets: {error.args[0].str()}",
            "check the broker, and start again",
            detail=error.args[0].str(),
        ) from None
    return losses


def find(spark: SparkSession, settings: Settings, path: str) -> list[LostRange]:
    """Return the ranges that the next start would not find in Kafka."""
    return _find(settings, checkpoint.position(spark, path), topic_ids(spark, path))[0]


def _find(
    settings: Settings, position: Offsets | None, ids: Mapping[str, str]
) -> tuple[list[LostRange], BrokerOffsets]:
    """Return the ranges that a query at `position` would not find, and the offsets that Kafka holds."""
    pipeline = settings.pipeline
    broker_offsets = kafka_offsets.pipeline_offsets(settings.kafka, pipeline, position or [])
    if position is None:
        kafka_offsets.require_partitions(pipeline, broker_offsets)
        return compare(_configured(pipeline), broker_offsets, ids=broker_offsets.ids), broker_offsets
    return compare(_with_new(position, pipeline, broker_offsets), broker_offsets, ids=ids), broker_offsets


def _configured(pipeline: PipelineSettings) -> Offsets:
    """Return the configured offsets that a new checkpoint begins with, if they are numbers."""
    if not isinstance(pipeline.starting_offsets, dict):
        return {}
    return {
        topic: {int(partition): at for partition, at in offsets.items() if isinstance(at, int) and at >= 0}
        for topic, offsets in pipeline.starting_offsets.items()
    }


def _with_new(position: Offsets, pipeline: PipelineSettings, broker_offsets: BrokerOffsets) -> Offsets:
    """Add the partitions that the checkpoint does not know yet, which Spark reads from offset 0 on."""
    pattern_topics = set(position) - set(pipeline.topics)
    expected = {topic: dict(offsets) for topic, offsets in position.items()}
    for topic, partitions in broker_offsets.offsets.items():
        if pipeline.assign is None and (pipeline.topic_pattern or topic not in pattern_topics):
            expected[topic] = dict.fromkeys(partitions, 0) | expected.get(topic, {})
    return expected


def _error(
    settings: Settings, path: str, losses: list[LostRange], change: str = _CONTINUE
) -> OffsetsLostError:
    return OffsetsLostError(
        f"pipeline {settings.name} cannot continue: its checkpoint at {path} has not read what Kafka lost: "
        f"{_message(losses)}",
        f"set {change}",
        pipeline=settings.name,
        checkpoint=path,
        ranges=_ranges(losses),
    )


def _ranges(losses: list[LostRange]) -> tuple[tuple[object, ...], ...]:
    """Return topic, partition, first offset, the offset after the last one, and the reason of each range."""
    return tuple((lost.topic, lost.partition, lost.first, lost.after, lost.why) for lost in losses)


def _message(losses: list[LostRange]) -> str:
    more = f"; and {len(losses) - _MAX_RANGES} ranges more" if len(losses) > _MAX_RANGES else ""
    return "; ".join(map(str, losses[:_MAX_RANGES])) + more


def note_losses(spark: SparkSession, name: str, path: str, losses: Sequence[LostRange]) -> None:
    """Note lost ranges, without which the pipeline `name` continues, in its checkpoint and in the log."""
    for lost in losses:
        _LOG.warning("pipeline %s continues without records that Kafka lost: %s", name, lost)
    now = _now()
    rows = [
        (lost.topic, lost.partition, lost.first, lost.after, lost.why, lost.topic_id, now) for lost in losses
    ]
    checkpoint_notes.append(spark, path, "lost", rows, _LOST)


def _now() -> datetime:
    return datetime.now(timezone.utc)
