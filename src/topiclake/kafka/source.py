"""Spark's Kafka source: its options, and topics as streams and as batches of offsets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession

from topiclake.config.kafka import KafkaSettings
from topiclake.config.pipeline import PipelineSettings
from topiclake.config.source import Offsets, SourceSettings
from topiclake.kafka.client import spark_client_options

#: topic → partition → any value; only the keys are used.
Known = Mapping[str, Mapping[int, object]]

_SECONDS = {"second": 1, "minute": 60, "hour": 3600}

#: A record as it comes from Kafka.
RECORD_SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key STRING, value BINARY>>"
)
RECORD_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def read_topic(
    spark: SparkSession,
    kafka: KafkaSettings,
    pipeline: PipelineSettings,
    *,
    known: Known = MappingProxyType({}),
) -> DataFrame:
    """Read a topic as a stream.

    Args:
        spark: The session.
        kafka: How to reach the broker.
        pipeline: Topic, starting offsets and rate limit.
        known: See `of_stream`.

    Returns:
        A streaming DataFrame `key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT,
        timestamp TIMESTAMP, timestampType INT, headers ARRAY<STRUCT<key STRING, value BINARY>>`.
    """
    options = reader_options(kafka, pipeline, known=known)
    return spark.readStream.format("kafka").options(**options).load()


def read_range(
    spark: SparkSession,
    options: Mapping[str, str],
    ranges: Mapping[str, Mapping[int, tuple[int, int]]],
    *,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """Read offsets of topics as a batch.

    Args:
        spark: The session.
        options: Of `reader_options`, without topics and offsets.
        ranges: By topic and partition the first offset, and the one after the last.
        fail_on_data_loss: Whether the read fails if Kafka has deleted the beginning of a range. If not, it
            returns the remaining records.

    Returns:
        A DataFrame with the columns of `read_topic`; `headers` where the options ask for them.
    """
    ends = {
        name: json.dumps(
            {
                topic: {str(partition): span[end] for partition, span in spans.items()}
                for topic, spans in ranges.items()
            }
        )
        for end, name in enumerate(("startingOffsets", "endingOffsets"))
    }
    assigned = {"assign": json.dumps({topic: sorted(spans) for topic, spans in ranges.items()})}
    losses = {"failOnDataLoss": "true" if fail_on_data_loss else "false"}
    return spark.read.format("kafka").options(**{**options, **assigned, **losses, **ends}).load()


def reader_options(
    kafka: KafkaSettings,
    pipeline: PipelineSettings,
    *,
    known: Known = MappingProxyType({}),
) -> dict[str, str]:
    """Return the options of Spark's Kafka source, for a stream; arguments as in `read_topic`."""
    return of_stream(pipeline, known) | range_options(kafka)


def range_options(kafka: KafkaSettings) -> dict[str, str]:
    """Return the options of Spark's Kafka source but for topics and offsets, as `read_range` wants them."""
    return {"includeHeaders": "true"} | _jvm_consumer(kafka)


def _jvm_consumer(kafka: KafkaSettings) -> dict[str, str]:
    # Spark asks only for records that exist. But after the last of them, the consumer asks for more, and the
    # broker waits for new ones. Spark's next request waits on the same connection: 500 ms a task, by default.
    defaults = {"fetch.max.wait.ms": "10", "isolation.level": kafka.isolation_level}
    consumer = defaults | {key: str(value) for key, value in kafka.consumer.items()}
    options = spark_client_options(kafka, consumer)
    if kafka.group_id_prefix is not None:
        options["groupIdPrefix"] = kafka.group_id_prefix
    return options


def of_stream(pipeline: PipelineSettings, known: Known = MappingProxyType({})) -> dict[str, str]:
    """Return the options of a stream.

    Args:
        pipeline: Topics, starting offsets and limits.
        known: The partitions that the checkpoint of a pipeline of several topics knows, by topic. The stream
            also reads those whose topic was removed from the list, so that Spark keeps their offsets.
    """
    more = {topic: sorted(partitions) for topic, partitions in known.items() if not pipeline.reads(topic)}
    options = _of_both(pipeline) | _limits(pipeline)
    if pipeline.has_table_for_each:
        # One topic that is deleted or lost records is paused; Spark would end the query.
        options["failOnDataLoss"] = "false"
    if pipeline.assign:
        options["assign"] = json.dumps(pipeline.assign | more)
    elif pipeline.has_table_for_each or pipeline.wait_for_topic:
        # Where a topic of a list does not exist, Spark ends the query.
        options.pop("subscribe", None)
        options["subscribePattern"] = pattern(pipeline, more)
    return options


def pattern(source: SourceSettings, more: Iterable[str] = ()) -> str:
    """Return a regular expression that matches the topics, and `more`."""
    own = [f"(?:{source.topic_pattern})"] if source.topic_pattern else map(re.escape, source.topics)
    return "|".join([*own, *map(re.escape, more)])


def of_batch(pipeline: PipelineSettings) -> dict[str, str]:
    """Return the options of a batch read, which has an end and no rate."""
    return _of_both(pipeline) | _bound("ending", pipeline.ending_offsets)


def _of_both(source: SourceSettings) -> dict[str, str]:
    options = _topics(source) | _bound("starting", source.starting_offsets)
    if any(name for name in options if "Timestamp" in name):
        strategy = source.starting_offsets_by_timestamp_strategy
        options["startingOffsetsByTimestampStrategy"] = strategy
    options["failOnDataLoss"] = "true" if source.fail_on_data_loss else "false"
    if source.min_partitions is not None:
        options["minPartitions"] = str(source.min_partitions)
    return options


def _topics(source: SourceSettings) -> dict[str, str]:
    if source.assign:
        return {"assign": json.dumps(source.assign)}
    if source.topic_pattern:
        return {"subscribePattern": source.topic_pattern}
    return {"subscribe": source.topic}


def _bound(end: str, offsets: Offsets) -> dict[str, str]:
    """Return where all partitions, or each of them, begin or end (`starting`, `ending`)."""
    if isinstance(offsets, str):
        return {f"{end}Offsets": offsets}
    if isinstance(offsets, datetime):
        return {f"{end}Timestamp": str(_millis(offsets))}
    in_millis = {
        topic: {
            partition: _millis(at) if isinstance(at, datetime) else at for partition, at in partitions.items()
        }
        for topic, partitions in offsets.items()
    }
    is_time = any(isinstance(at, datetime) for partitions in offsets.values() for at in partitions.values())
    return {f"{end}OffsetsByTimestamp" if is_time else f"{end}Offsets": json.dumps(in_millis)}


def _millis(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _limits(pipeline: PipelineSettings) -> dict[str, str]:
    options = {}
    if pipeline.max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(pipeline.max_offsets_per_trigger)
    # With availableNow nothing more is waited for: Spark would end, and leave the last records unread.
    if pipeline.min_offsets_per_trigger is not None and pipeline.trigger != "availableNow":
        options["minOffsetsPerTrigger"] = str(pipeline.min_offsets_per_trigger)
        if pipeline.max_trigger_delay is not None:
            number, unit = pipeline.max_trigger_delay.split()
            options["maxTriggerDelay"] = f"{int(number) * _SECONDS[unit.removesuffix('s')]}s"
    return options
