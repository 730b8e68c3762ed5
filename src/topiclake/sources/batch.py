"""A bounded range of a topic, or the newest record of each of its keys, as a DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.config.settings import Settings
from topiclake.config.source import LATEST
from topiclake.errors import ConfigError
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import offsets as kafka_offsets
from topiclake.kafka import source as kafka_source
from topiclake.session import require_redaction
from topiclake.streaming import lost_offsets


def read_batch(spark: SparkSession, settings: Settings) -> DataFrame:
    """Read the pipeline's topics from `starting_offsets` to `ending_offsets`, as a batch.

    Args:
        spark: The session.
        settings: The configuration; rate limits and the trigger don't matter.

    Returns:
        A DataFrame `key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT,
        timestamp TIMESTAMP, timestampType INT, headers ARRAY<STRUCT<key STRING, value BINARY>>`. Spark
        determines the end when the DataFrame is used, again for each use if `ending_offsets` is `latest`.

    Raises:
        ConfigError: It begins at `latest`, or names partitions that the topic does not have.
        OffsetsLostError: Kafka no longer holds the offsets to begin with, and `fail_on_data_loss` is set.
        TopicNotFoundError, KafkaError: The topic or the broker cannot be reached.
        PlatformError: Spark would show the login of the broker; names the settings.

    Example:
        >>> tl.read_batch(spark, settings).select("partition", "offset").count()
        5
    """
    pipeline = settings.pipeline
    starts = pipeline.starting_offsets
    if starts == "latest" or (
        isinstance(starts, dict) and any(LATEST in offsets.values() for offsets in starts.values())
    ):
        raise ConfigError(
            "a batch read that starts at latest holds nothing",
            "set starting_offsets to earliest, offsets or a time",
            parameter="starting_offsets",
        )
    # The plan has the broker's login.
    require_redaction(spark)
    kafka_admin.require_topics(settings.kafka, pipeline)
    broker_offsets = kafka_offsets.pipeline_offsets(settings.kafka, pipeline, [])
    kafka_offsets.require_partitions(pipeline, broker_offsets)
    lost_offsets.require_configured(settings, broker_offsets)
    options = kafka_source.of_batch(pipeline) | kafka_source.range_options(settings.kafka)
    return spark.read.format("kafka").options(**options).load()


def read_compacted(spark: SparkSession, settings: Settings, *, topic: str) -> DataFrame:
    """Read the newest record of each key of a topic, as Kafka's compaction would leave it, as a batch.

    Kafka compacts some time later, and never the newest segment: until then a topic holds older records of a
    key as well. A key whose newest record has no value is deleted, so it is omitted. Records without a key
    are omitted, too.

    Args:
        spark: The session.
        settings: How to reach the broker.
        topic: The topic; it is read from its beginning to its end.

    Returns:
        A DataFrame `key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT,
        timestamp TIMESTAMP, timestampType INT, headers ARRAY<STRUCT<key STRING, value BINARY>>`.

    Raises:
        TopicNotFoundError, KafkaError: The topic or the broker cannot be reached.

    Example:
        >>> tl.ensure_topic(settings.kafka, "sensor-names", 1, compacted=True)
        1
        >>> tl.read_compacted(spark, settings, topic="sensor-names").count()
        0
    """
    full_range = {"starting_offsets": "earliest", "ending_offsets": "latest"}
    of_topic = settings.for_topic(topic)
    pipeline = of_topic.pipeline.model_copy(update=full_range | {"assign": None})
    records = read_batch(spark, of_topic.model_copy(update={"pipeline": pipeline}))
    record = F.struct("*").alias("record")
    # A key is in one partition, unless a topic was given more of them: then the later time decides.
    of_partition = (
        records.where("key IS NOT NULL")
        .groupBy("key", "partition")
        .agg(F.max_by(record, "offset").alias("record"))
    )
    newest = of_partition.groupBy("key").agg(F.max_by("record", "record.timestamp").alias("record"))
    return newest.select("record.*").where("value IS NOT NULL")
