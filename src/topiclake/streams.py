"""Topics as streaming DataFrames, for windows, joins and sinks of one's own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from topiclake import (
    declared_rows,
    kafka_admin,
    kafka_source,
    platform_check,
    queries,
    registered_values,
    targets,
    value_batch,
    wire_format,
)
from topiclake.config.pipeline import PipelineSettings
from topiclake.config.settings import Settings
from topiclake.errors import ConfigError
from topiclake.json_values import Values
from topiclake.layout import Layout
from topiclake.registered_values import FixedSchemas
from topiclake.schema_registry import SchemaRegistry
from topiclake.storage import mount
from topiclake.storage.failures import refusals_named
from topiclake.storage.renewal import WriteBatch
from topiclake.value_formats import format_of
from topiclake.wire_format import Part

#: What is added to a checkpoint's path for that of `start_quarantine`.
_QUARANTINE = "_quarantine"


def read_records(spark: SparkSession, settings: Settings) -> DataFrame:
    """Read a topic as a stream of what Kafka holds, with nothing decoded.

    Returns:
        A streaming DataFrame: the columns of Kafka's source, `headers` among them; what a value in
        Confluent's format begins with, `magicByte BINARY, valueSchemaId INT` (null where it names none); and
        what follows, `fixedValue BINARY`.

    Raises:
        TopicNotFoundError: The broker does not hold the topic; names three that are like it.
        KafkaError: The broker cannot be used.
    """
    value = F.col("value")
    return _records(spark, settings).withColumns(
        {
            "magicByte": F.substring(value, 1, 1),
            "valueSchemaId": wire_format.schema_id_of(wire_format.header_of(value)),
            "fixedValue": wire_format.payload_of(value),
        }
    )


def read_values(spark: SparkSession, settings: Settings) -> DataFrame:
    """Read a topic as a stream.

    Args:
        spark: The session.
        settings: The configuration. In mode FAILFAST a record that is not right ends whatever query reads it;
            in mode PERMISSIVE it is left out, and `start_quarantine` keeps it.

    Returns:
        A streaming DataFrame: the columns of `value_schema`, or of the versions that the registry lists now,
        or `value STRING`; then
        `_kafka STRUCT<partition INT, offset BIGINT>`, or what `kafka_fields` says.

    Raises:
        ConfigError: Values are plain Avro, which does not name its schema, or the schema cannot be used.
        TopicNotFoundError: The broker does not hold the topic; names three that are like it.
        KafkaError, SchemaRegistryError: A service cannot be used.
        NewSchemaError: In the query, at a record whose schema the registry did not list at the start, and of
            which `start_quarantine` has decided nothing; `start_restarted` starts it again.
    """
    _require_named(settings.pipeline)
    return decode_values(_records(spark, settings), settings)


def decode_values(records: DataFrame, settings: Settings) -> DataFrame:
    """Decode records of a topic: those of `read_batch`, or of a stream that was filtered before.

    Args:
        records: Kafka's columns, `headers` among them.
        settings: As for `read_values`.

    Returns:
        The columns of `read_values`; raises as it does.
    """
    pipeline, layout = settings.pipeline, Layout.from_settings(settings.pipeline)
    _require_named(pipeline)
    if pipeline.is_registered:
        platform_check.require_avro_limits(records.sparkSession)
        fixed = _schemas(records.sparkSession, settings)
        return registered_values.right(records, fixed, layout, pipeline.mode)
    return declared_rows.read(records, Values.from_settings(pipeline), layout, mode=pipeline.mode)


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
    _require_named(settings.pipeline)
    to = targets.target(settings, dbutils)
    records = _records(spark, settings)
    platform_check.require_log_store(spark, to.quarantine)
    checkpoint_path = f"{to.checkpoint.rstrip('/')}{_QUARANTINE}"
    for location in (to.quarantine, checkpoint_path):
        mount.require_writable(location)
    write_batch: WriteBatch
    if settings.pipeline.is_registered:
        platform_check.require_avro_limits(spark)
        fixed = _schemas(spark, settings)
        patient = replace(to, registry=to.registry.waiting(settings.schema_registry))
        write_batch = partial(registered_values.write_left, patient, fixed, checkpoint_path)
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
    kafka_admin.require_topics(settings.kafka, settings.pipeline, waits=settings.pipeline.wait_for_topic)
    return kafka_source.read_topic(spark, settings.kafka, settings.pipeline)


def _require_named(pipeline: PipelineSettings) -> None:
    if pipeline.avro_form == "plain":
        raise ConfigError(
            f"values of topic {pipeline.topic} are plain Avro, which does not name its schema",
            "start_ingest or start_archive, and a stream of the table",
            topic=pipeline.topic,
            reason="plain_avro",
        )


def _schemas(spark: SparkSession, settings: Settings) -> FixedSchemas:
    pipeline = settings.pipeline
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    parts: list[Part] = ["value", "key"] if pipeline.decode_key else ["value"]
    subjects = {part: pipeline.subjects(part, topic=pipeline.topic) for part in parts}
    table = mount.resolve(None, settings.storage, pipeline.schemas_path)
    with refusals_named(settings.storage, table):
        return registered_values.schemas_of_today(
            spark, registry, subjects, Layout.from_settings(pipeline), format_of(pipeline), table
        )
