"""Streams into Kafka topics as Confluent-framed Avro, as any Avro deserializer reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from topiclake.config.settings import Settings
from topiclake.formats.avro.schema_of_columns import Timestamps
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import writer as kafka_writer
from topiclake.kafka.writer import Writer
from topiclake.sinks.avro_records import TOPIC, AvroRecords, Proposal, propose_schemas
from topiclake.sinks.start import cached
from topiclake.storage import mount
from topiclake.streaming import queries
from topiclake.streaming.sink import Sink, SinkBatch


@dataclass(frozen=True)
class AvroBatches(Sink):
    """Produces micro-batches as Avro; can be pickled, for Spark Connect.

    Attributes:
        writer: The writer to Kafka.
        records: Function that makes records of a batch's rows.
    """

    writer: Writer
    records: AvroRecords

    def destination(self) -> str | None:
        """Return the topic, or None if there are several."""
        return self.writer.topic and f"topic {self.writer.topic}"

    def write(self, rows: DataFrame, batch: SinkBatch) -> None:
        """Produce a batch, if all its rows fit."""
        with cached(rows):
            self.writer.write(self.records(rows), f"{batch.query_id}/{batch.number}")


def avro_batches(proposal: Proposal, settings: Settings, *, partitions: int = 4) -> AvroBatches:
    """Register schemas, create missing topics, and return a sink of `start_sinks`.

    Each micro-batch is produced at least once, with ids by which consumers drop duplicates. Nothing of a
    batch is produced unless all its rows fit the schema.

    Args:
        proposal: The schemas, of `propose_schemas`.
        settings: The broker and the pipeline's name.
        partitions: Number of partitions of a topic that is created.

    Raises:
        SchemaRegistryError: The registry refuses a schema, or cannot be used.
        KafkaError: The broker cannot be used.

    Example:
        >>> readings = tl.read_values(spark, settings)
        >>> proposal = tl.propose_schemas(readings, settings, topic="measured", key=["sensor"])
        >>> place = "/mnt/datalake/checkpoints/measured"
        >>> sinks = {"topic": tl.avro_batches(proposal, settings)}
        >>> query = tl.start_sinks(readings, settings, sinks, checkpoint_path=place)
        >>> tl.await_caught_up(query, "availableNow")
    """
    records = proposal.register()
    for topic in proposal.topics:
        kafka_admin.ensure_topic(settings.kafka, topic, partitions)
    return AvroBatches(Writer.from_settings(settings, proposal.only_topic, ()), records)


def start_avro_writer(
    rows: DataFrame,
    settings: Settings,
    *,
    topic: str | Sequence[str],
    checkpoint_path: str,
    schema: Mapping[str, Any] | str | None = None,
    subject: str = f"{TOPIC}-value",
    key: Sequence[str] = (),
    avro_key: bool = False,
    timestamps: Timestamps = "logical",
    schema_in: str = "prefix",
    output_mode: str = "append",
    partitions: int = 4,
) -> StreamingQuery:
    """Start producing the rows of a stream as Confluent-framed Avro, with the pipeline's trigger.

    The schemas are registered, and missing topics are created.

    Args:
        rows: As for `propose_schemas`, which explains the arguments up to `schema_in`.
        settings: The broker, the registry, the trigger and the pipeline's name.
        topic: The topic of all rows, or the topics that the column `topic` may name.
        checkpoint_path: A dedicated folder.
        schema: The schema of values; None: derived from the columns.
        subject: The subject of values.
        key: Columns that keys are made of.
        avro_key: Whether keys are Avro.
        timestamps: Form of timestamps in a derived schema.
        schema_in: How records name their schema.
        output_mode: Of an aggregation: `append`, `update` or `complete`.
        partitions: Number of partitions of a topic that is created.

    Raises:
        ConfigError: A column cannot be written as Avro, or does not fit the schema; or the mode is unknown.
        SchemaRegistryError: The registry refuses a schema, or cannot be used.
        KafkaError, StorageError: The broker or the store cannot be used.
        EncodeError: In the query, a row does not fit; nothing of its batch was sent.

    Example:
        >>> query = tl.start_avro_writer(
        ...     tl.read_values(spark, settings).select("sensor", "celsius"),
        ...     settings,
        ...     topic="readings-avro",
        ...     key=["sensor"],
        ...     checkpoint_path="/mnt/datalake/checkpoints/readings-avro",
        ... )
        >>> tl.await_caught_up(query, "availableNow")
    """
    queries.require_output_mode(output_mode)
    proposal = propose_schemas(
        rows,
        settings,
        topic=topic,
        schema=schema,
        subject=subject,
        key=key,
        avro_key=avro_key,
        timestamps=timestamps,
        schema_in=schema_in,
    )
    location = mount.resolve(settings.storage, checkpoint_path)
    mount.require_writable(location)
    sink = avro_batches(proposal, settings, partitions=partitions)
    return queries.start_sink(
        rows,
        settings,
        sink,
        name=f"{settings.name}_to_{sink.writer.topic or 'kafka'}",
        location=location,
        output_mode=output_mode,
    )


def write_avro(rows: DataFrame, settings: Settings, proposal: Proposal, *, write_id: str) -> None:
    """Register schemas and produce the rows of a batch DataFrame, if all of them fit.

    Args:
        rows: The rows that the proposal was made for.
        settings: The broker, and the pipeline's name.
        proposal: The schemas, of `propose_schemas`.
        write_id: Names this write, as for `write_topic`.

    Raises:
        EncodeError: A row does not fit; nothing was sent.
        SchemaRegistryError: The registry refuses a schema, or cannot be used.
        TopicNotFoundError, KafkaError: The broker cannot be used.

    Example:
        >>> readings = tl.create_view(spark, settings)
        >>> tl.ensure_topic(settings.kafka, "measured-again", 1)
        1
        >>> proposal = tl.propose_schemas(readings, settings, topic="measured-again")
        >>> tl.write_avro(readings, settings, proposal, write_id="2026-03-01")
    """
    records = proposal.register()
    with cached(rows):
        kafka_writer.write_topic(records(rows), settings, write_id=write_id, topic=proposal.only_topic)
