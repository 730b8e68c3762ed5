"""Topics of text, JSON or Protobuf as streaming DataFrames, for windows, joins and sinks of one's own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from topiclake import ingest, kafka, platform_check, queries, registered_values, storage, value_batch
from topiclake.avro import Codecs
from topiclake.json_values import Values
from topiclake.schema_registry import SchemaRegistry
from topiclake.session import is_databricks
from topiclake.settings import Settings
from topiclake.storage_renewal import WriteBatch
from topiclake.value_formats import format_of

#: What is added to a checkpoint's path for that of `start_quarantine`.
_QUARANTINE = "_quarantine"


def read_values(spark: SparkSession, settings: Settings) -> DataFrame:
    """Read a topic of text, JSON or Protobuf as a stream.

    Args:
        spark: The session.
        settings: The configuration. In mode FAILFAST a record that is not right ends whatever query reads it;
            in mode PERMISSIVE it is left out, and `start_quarantine` keeps it.

    Returns:
        A streaming DataFrame: the columns of `value_schema`, or of the versions that the registry lists now,
        or `value STRING`; then
        `_kafka STRUCT<partition INT, offset BIGINT>`, or what `kafka_fields` says.

    Raises:
        ConfigError: Values are Avro, or the schema cannot be used.
        TopicNotFoundError: The broker does not hold the topic; lists those that it holds.
        KafkaError, SchemaRegistryError: A service cannot be used.
        IngestError: In the query, at a record whose schema the registry did not list at the start.
    """
    pipeline, layout = settings.pipeline, ingest.layout(settings.pipeline)
    if _is_registered(settings):
        codecs = _codecs(spark, settings)
        return registered_values.right(_records(spark, settings), codecs, layout, pipeline.mode)
    values = Values.from_settings(pipeline)
    return value_batch.read(_records(spark, settings), values, layout, mode=pipeline.mode)


def start_quarantine(spark: SparkSession, settings: Settings, dbutils: Any) -> StreamingQuery:  # noqa: ANN401
    """Start the stream of what `read_values` leaves out, into the quarantine table.

    A query of its own beside those that take what is right: what a value means is fixed, so each record is in
    exactly one of both.

    Args:
        spark: The session.
        settings: The configuration; its checkpoint is `checkpoint_path` with `_quarantine` behind.
        dbutils: The platform's, for mount points.

    Returns:
        The running query; `await_caught_up` waits for it.

    Raises:
        ConfigError, KafkaError, StorageError: Something cannot be used.
    """
    to = ingest.target(settings, dbutils)
    records = _records(spark, settings)
    platform_check.require_log_store(spark, to.quarantine)
    checkpoint_path = f"{to.checkpoint.rstrip('/')}{_QUARANTINE}"
    for location in (to.quarantine, checkpoint_path):
        storage.require_writable(location)
    write_batch: WriteBatch
    if _is_registered(settings):
        codecs = _codecs(spark, settings)
        patient = replace(to, registry=to.registry.patient(settings.schema_registry.retry_seconds))
        write_batch = partial(registered_values.write_left, patient, codecs, checkpoint_path)
    else:
        values = Values.from_settings(settings.pipeline)
        write_batch = partial(value_batch.write_left_alone, to, values, checkpoint_path)
    return queries.start_batches(
        records,
        settings,
        dbutils,
        write_batch,
        name=f"{settings.name}{_QUARANTINE}",
        location=checkpoint_path,
    )


def _records(spark: SparkSession, settings: Settings) -> DataFrame:
    kafka.require_topics(settings.kafka, settings.pipeline)
    return kafka.read_topic(spark, settings.kafka, settings.pipeline, shaded=is_databricks())


def _is_registered(settings: Settings) -> bool:
    """Tell whether values name schemas of the registry; Avro's go into tables and files, not into streams."""
    return settings.pipeline.is_registered and settings.pipeline.value_format != "avro"


def _codecs(spark: SparkSession, settings: Settings) -> Codecs:
    pipeline = settings.pipeline
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    subjects = pipeline.subjects("value", topic=pipeline.topic)
    return registered_values.codecs_of_today(
        spark, registry, subjects, ingest.layout(pipeline), format_of(pipeline)
    )
