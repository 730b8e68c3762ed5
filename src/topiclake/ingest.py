"""Topics into Delta tables, each record in exactly one place."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from topiclake import checkpoint, delta, kafka, micro_batch, platform_check, progress, storage, topics
from topiclake.errors import IngestError
from topiclake.micro_batch import Target
from topiclake.rows import Layout
from topiclake.schema_registry import SchemaRegistry
from topiclake.session import is_databricks
from topiclake.settings import PipelineSettings, Settings
from topiclake.topics import TOPIC, Topics
from topiclake.wire_format import Part

#: What the NullPointerException says.
KAFKA_METRICS_BUG = re.compile(
    r'Cannot invoke .*because the return value of "scala\.Option\.get\(\)" is null'
)


def target(settings: Settings, dbutils: Any) -> Target:  # noqa: ANN401 (the platform's own)
    """Resolve paths and secrets of a configuration into what a micro-batch must know."""
    resolve = partial(storage.resolve, dbutils, databricks=is_databricks())
    pipeline = settings.pipeline
    name = TOPIC if pipeline.has_several_topics else pipeline.topic
    parts: list[Part] = ["value", "key"] if pipeline.decode_key else ["value"]
    return Target(
        pipeline=settings.name,
        run=settings.run_id,
        subjects={part: pipeline.subjects(part, topic=name) for part in parts},
        mode=pipeline.mode,
        registry=SchemaRegistry.from_settings(settings.schema_registry),
        table=resolve(pipeline.table_path),
        quarantine=resolve(pipeline.quarantine_path),
        checkpoint=resolve(pipeline.checkpoint_path),
        layout=layout(pipeline),
        properties=pipeline.table_properties,
        # Each topic has some of the records that are listed for all.
        needs_one_subject=pipeline.subject_strategy == "topic_record_name",
    )


def layout(pipeline: PipelineSettings) -> Layout:
    """Return which columns rows have beside those of their schema."""
    return Layout(
        kafka=pipeline.kafka_fields if pipeline.kafka_column else (),
        key=pipeline.decode_key,
        headers=pipeline.headers_column,
        skips_tombstones=pipeline.tombstones == "skip",
    )


def start_ingest(spark: SparkSession, settings: Settings, dbutils: Any) -> StreamingQuery:  # noqa: ANN401
    """Start the stream from the pipeline's topic into its Delta table.

    Args:
        spark: The session.
        settings: The configuration.
        dbutils: The platform's, for mount points.

    Returns:
        The running query; `progress.await_caught_up` waits for it.

    Raises:
        TopicNotFoundError, SubjectNotFoundError: Named with those that exist; before anything is written. Of
            several topics, only a listed one that is missing, or a pattern that none matches.
        KafkaError, SchemaRegistryError, StorageError: A service cannot be used.
        DecodeError: Inside the query, in mode FAILFAST.
    """
    to = target(settings, dbutils)
    kafka.require_topics(settings.kafka, settings.pipeline)
    platform_check.require_avro_limits(spark)
    several = settings.pipeline.has_several_topics
    for location in (to.checkpoint,) if several else (to.table, to.quarantine, to.checkpoint):
        storage.require_writable(location)
    # A micro-batch waits for a registry that is away; the start of a query, where a person waits, does not.
    patient = to.registry.patient(settings.schema_registry.retry_seconds)
    if several:
        many = _topics(settings, dbutils, to)
        topics.resume(spark, many)
        # Another start: what this one has learnt would ask the registry with little patience.
        template = replace(to, registry=patient, start=uuid4().hex)
        write_batch = partial(topics.write, replace(many, template=template))
    else:
        is_new = _prepare(spark, settings, to)
        write_batch = partial(micro_batch.write, replace(to, registry=patient, is_new=is_new))
    records = kafka.read_topic(spark, settings.kafka, settings.pipeline, shaded=is_databricks())
    stream = (
        records.writeStream.queryName(settings.name)
        .option("checkpointLocation", to.checkpoint)
        .foreachBatch(write_batch)
    )
    if checkpoint.is_interrupted(spark, to.checkpoint):
        _finish_interrupted(stream)
    trigger = settings.pipeline.trigger
    if trigger == "availableNow":
        return stream.trigger(availableNow=True).start()
    return stream.trigger(processingTime=trigger).start()


def _finish_interrupted(stream: DataStreamWriter) -> None:
    """Finish the batch that an earlier run began, in a query of its own.

    Spark 4.1's Kafka source ends with a NullPointerException after such a batch is done (SPARK-55271): it
    reports how far behind it is before it has asked. The batch is committed then; the next start goes on.
    """
    query = stream.trigger(availableNow=True).start()
    try:
        progress.await_caught_up(query, "availableNow")
    except IngestError as error:
        if not KAFKA_METRICS_BUG.search(str(error)):
            raise


def _prepare(spark: SparkSession, settings: Settings, to: Target) -> bool:
    """Make the table where it is missing, so that an empty topic has one too; tell whether it was."""
    with storage.refusals_named(settings.storage, to.table):
        is_new = not delta.is_table(spark, to.table)
        schemas = to.schemas()
        schemas.require_usable(schemas.current(spark))
    return is_new


def _topics(settings: Settings, dbutils: Any, template: Target) -> Topics:  # noqa: ANN401
    options = kafka.reader_options(settings.kafka, settings.pipeline, shaded=is_databricks())
    of_stream = ("subscribe", "subscribePattern", "startingOffsets", "maxOffsetsPerTrigger")
    return Topics(
        template=template,
        reader={key: value for key, value in options.items() if key not in of_stream},
        ledger=storage.resolve(dbutils, settings.pipeline.paused_path, databricks=is_databricks()),
    )
