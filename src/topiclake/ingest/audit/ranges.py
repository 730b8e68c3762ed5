"""The offsets that an audit compares: the committed ones of a checkpoint that Kafka still holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource
from pyspark.sql import DataFrame, SparkSession

from topiclake.config.kafka import KafkaSettings
from topiclake.config.pipeline import PipelineSettings
from topiclake.errors import IngestError, OffsetsLostError
from topiclake.ingest import paused_topics
from topiclake.kafka import client as kafka_client
from topiclake.kafka import source as kafka_source
from topiclake.kafka.client import TIMEOUT_SECONDS
from topiclake.streaming import checkpoint, resumptions


@dataclass(frozen=True)
class Range:
    """The offsets of one partition that are compared; each end is exclusive.

    Attributes:
        first: First offset of the query.
        committed: End of its last committed batch.
        planned: End of the next batch if that has begun, otherwise the same as `committed`.
        earliest: First offset in Kafka, between `first` and `committed`.
        paused: First and last offset that a paused topic has missed and still has to get, both inclusive.
    """

    first: int = 0
    committed: int = 0
    planned: int = 0
    earliest: int = 0
    paused: tuple[int | None, int | None] = (None, None)


def read_ranges(spark: SparkSession, path: str) -> dict[str, dict[int, Range]]:
    """Return the progress of a query for each topic and partition, from its checkpoint.

    The file `commits/N` exists if batch N has ended, `offsets/N` has its end offsets, and `sources/0/0` the
    first offsets of batch 0. Spark keeps the last 100 of the first two. Topics and partitions that were added
    later begin at 0. A query that was resumed from its table begins where the first query of the table began.

    Raises:
        IngestError: The checkpoint does not exist, or a file of it is missing.
    """
    first = checkpoint.read_offsets(spark, f"{path}/sources/0/0")
    if first is None:
        raise IngestError(
            f"there is no checkpoint at {path}",
            "run an ingest with this checkpoint_path: python -m workbench ingest <pipeline>",
            checkpoint=path,
            reason="missing",
        )
    last = checkpoint.last_committed(spark, path)
    committed = first if last == checkpoint.NONE else checkpoint.read_offsets(spark, f"{path}/offsets/{last}")
    if committed is None:
        raise IngestError(
            f"the checkpoint at {path} is damaged: batch {last} has ended, offsets/{last} does not say where",
            "restore the checkpoint from a backup",
            checkpoint=path,
            batch_id=last,
            file=f"offsets/{last}",
            reason="damaged",
        )
    planned = checkpoint.read_offsets(spark, f"{path}/offsets/{last + 1}") or committed
    before = resumptions.read_firsts(spark, path, first)
    return {
        topic: {
            partition: Range(
                *_ends(partition, end, first.get(topic, {}), committed.get(topic, {}), before.get(topic, {}))
            )
            for partition, end in sorted(planned[topic].items())
        }
        for topic in sorted(planned)
    }


def _ends(
    partition: int,
    planned: int,
    first: Mapping[int, int],
    committed: Mapping[int, int],
    before: Mapping[int, int],
) -> tuple[int, int, int]:
    begin = first.get(partition, 0)
    return before.get(partition, begin), committed.get(partition, begin), planned


def within_kafka(range_: Range, broker_range: tuple[int, int], *, topic: str, partition: int) -> Range:
    """Return the range with its first offset in Kafka, from `broker_range`: the first and the end offset.

    Raises:
        OffsetsLostError: The end offset in Kafka is before the last committed offset.
    """
    earliest, end = broker_range
    if end < range_.committed:
        raise OffsetsLostError(
            f"topic {topic}, partition {partition} ends at offset {end}, before offset {range_.committed} of "
            "the checkpoint: it is another topic, or lost records",
            "check the missing records, then set a new checkpoint_path and table_path",
            topic=topic,
            partition=partition,
            offset=end,
            committed=range_.committed,
        )
    begin = min(max(earliest, range_.first), range_.committed)
    return Range(range_.first, range_.committed, range_.planned, begin, range_.paused)


def is_compacted(settings: KafkaSettings, topic: str) -> bool:
    """Return whether `topic` is compacted; False if the broker does not allow reading its configuration."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    client = AdminClient(kafka_client.client_settings(settings))
    futures = client.describe_configs([resource], request_timeout=TIMEOUT_SECONDS)
    try:
        return "compact" in (futures[resource].result()["cleanup.policy"].value or "")
    except KafkaException:  # some logins may read a topic, but not its configuration
        return False


def read_records(
    spark: SparkSession,
    settings: KafkaSettings,
    pipeline: PipelineSettings,
    ranges: Mapping[int, Range],
    *,
    uncommitted: bool = False,
    headers: bool = False,
) -> DataFrame:
    """Read the ranges of one topic from Kafka, with the consumer settings of the stream.

    Args:
        spark: The session.
        settings: The broker.
        pipeline: The pipeline of the topic.
        ranges: The ranges by partition.
        uncommitted: Whether records of open and aborted transactions are read, too.
        headers: Whether headers are read, which takes time.

    Returns:
        A DataFrame with the columns of `kafka.source.read_topic`. Reading it fails if Kafka has deleted the
        first records of a range meanwhile. Gaps from compaction and transactions are allowed.
    """
    options = kafka_source.range_options(settings)
    client = {key: value for key, value in options.items() if headers or key != "includeHeaders"}
    if uncommitted:
        client["kafka.isolation.level"] = "read_uncommitted"
    in_kafka = {partition: (part.earliest, part.committed) for partition, part in ranges.items()}
    return kafka_source.read_range(spark, client, {pipeline.topic: in_kafka})


def paused_ranges(spark: SparkSession, ledger: str, topic: str) -> dict[int, tuple[int, int]]:
    """Return by partition the first and the last offset that a paused topic waits for.

    Args:
        spark: The session.
        ledger: Resolved location of the table of paused ranges, which may not exist.
        topic: The topic.
    """
    spans = paused_topics.spans_of(paused_topics.paused(spark, ledger).get(topic, []))
    return {partition: (first, after - 1) for partition, (first, after) in spans.items()}
