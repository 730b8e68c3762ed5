"""One topic into one Delta table, each record in exactly one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from topiclake import avro, delta, kafka, quarantine, storage
from topiclake.schema_registry import SchemaRegistry, SubjectVersion
from topiclake.session import is_databricks
from topiclake.settings import Settings
from topiclake.wire_format import schema_id_of

#: Of a row on its way to the table: whether it belongs there.
RIGHT = "_topiclake_right"

#: Names of the writers that have written a batch in this process, by the start of their query.
_writers: dict[str, str] = {}


@dataclass(frozen=True)
class Target:
    """What a micro-batch must know; all of it can be pickled, for Spark Connect.

    Attributes:
        pipeline: The pipeline's name.
        run: Id of this run, for the tables' histories.
        subject: The subject whose versions decode the values.
        mode: PERMISSIVE or FAILFAST.
        registry: Where the versions come from.
        table: Resolved location of the table.
        quarantine: Resolved location of the quarantine table.
        checkpoint: Resolved location of the checkpoint.
        kafka_column: Whether rows carry `_kafka`.
        start: Names this start of the query.
    """

    pipeline: str
    run: str
    subject: str
    mode: str
    registry: SchemaRegistry
    table: str
    quarantine: str
    checkpoint: str
    kafka_column: bool
    start: str = field(default_factory=lambda: uuid4().hex)

    @classmethod
    def from_settings(cls, settings: Settings, dbutils: Any) -> Target:  # noqa: ANN401
        """Resolve paths and secrets of a configuration."""
        resolve = partial(storage.resolve, dbutils, databricks=is_databricks())
        pipeline = settings.pipeline
        return cls(
            pipeline=settings.name,
            run=settings.run_id,
            subject=f"{pipeline.topic}-value",
            mode=pipeline.mode,
            registry=SchemaRegistry.from_settings(settings.schema_registry),
            table=resolve(pipeline.table_path),
            quarantine=resolve(pipeline.quarantine_path),
            checkpoint=resolve(pipeline.checkpoint_path),
            kafka_column=pipeline.kafka_column,
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
        TopicNotFoundError, SubjectNotFoundError: Named with those that exist; before anything is written.
        KafkaError, SchemaRegistryError, StorageError: A service cannot be used.
        DecodeError: Inside the query, in mode FAILFAST.
    """
    target = Target.from_settings(settings, dbutils)
    kafka.require_topic(settings.kafka, settings.pipeline.topic)
    reader = target.registry.latest(target.subject)
    for location in (target.table, target.quarantine, target.checkpoint):
        storage.require_writable(location)
    with storage.refusals_named(settings.storage, target.table):
        create_table(spark, target, reader, settings.pipeline.table_properties)
    records = kafka.read_topic(spark, settings.kafka, settings.pipeline, shaded=is_databricks())
    trigger = settings.pipeline.trigger
    interval = {"availableNow": True} if trigger == "availableNow" else {"processingTime": trigger}
    return (
        records.writeStream.queryName(settings.name)
        .option("checkpointLocation", target.checkpoint)
        .trigger(**interval)
        .foreachBatch(partial(write_batch, target))
        .start()
    )


def create_table(
    spark: SparkSession, target: Target, reader: SubjectVersion, properties: Mapping[str, str]
) -> None:
    """Create the table where it is missing, so that an empty topic has one; not the quarantine."""
    judged = judge(spark.createDataFrame([], quarantine.RECORD_SCHEMA), [reader])
    rows = table_rows(judged, reader, kafka_column=target.kafka_column)
    delta.ensure_table(spark, target.table, rows.schema, properties)


def write_batch(target: Target, records: DataFrame, batch_id: int) -> None:
    """Write one micro-batch: first the rows of the table, then the quarantine.

    A batch that is repeated after a crash changes nothing: both tables know the last batch of this writer.
    """
    spark, attempt = records.sparkSession, uuid4().hex
    writer = _writers.get(target.start) or f"{target.pipeline}/{checkpoint_id(spark, target.checkpoint)}"
    versions = target.registry.versions(target.subject)
    counts, judged = Observation(), judge(records, versions)
    checked = _or_fail(judged, versions) if target.mode == "FAILFAST" else judged
    # Counted after the fields are flat: before, the whole struct would be copied for it.
    flat = _flat(checked, versions[-1], kafka_column=target.kafka_column)
    counted = flat.observe(counts, F.count_if(~F.col(RIGHT)).alias("bad"))
    append = partial(
        delta.append_once,
        writer=writer,
        batch_id=batch_id,
        commit={
            "pipeline": target.pipeline,
            "run": target.run,
            "batch_id": batch_id,
            "attempt": attempt,
            "schema_ids": [version.schema_id for version in versions],
        },
    )
    append(_right_rows(counted), target.table)
    # Only the first batch after a start can be a repeated one. That counted nothing, and its first attempt
    # may have ended before the quarantine.
    repeated = target.start not in _writers and not delta.is_committed(spark, target.table, attempt)
    if repeated or counts.get["bad"]:
        append(quarantine_rows(judged, versions, target, batch_id), target.quarantine)
    _writers[target.start] = writer


def judge(records: DataFrame, versions: list[SubjectVersion]) -> DataFrame:
    """Decode each record by its own writer schema.

    Args:
        records: Kafka's columns.
        versions: The subject's versions; the newest is the reader schema.

    Returns:
        Kafka's columns and `decoded STRUCT<event, end BIGINT>`, which is right where `avro.is_right`.
    """
    decoded = avro.decoded(F.col("value"), _schemas(versions), versions[-1].schema)
    return records.withColumn("decoded", decoded)


def table_rows(judged: DataFrame, reader: SubjectVersion, *, kafka_column: bool) -> DataFrame:
    """Return the reader schema's fields (of one that is no record: `value`), and `_kafka` if asked for."""
    return _right_rows(_flat(judged, reader, kafka_column=kafka_column))


def _flat(judged: DataFrame, reader: SubjectVersion, *, kafka_column: bool) -> DataFrame:
    """Return the table's columns and `_topiclake_right BOOLEAN`, one row a record, right or not."""
    event = "decoded.event.*" if avro.is_record(reader.schema) else "decoded.event AS value"
    origin = [f"struct(partition, offset) AS {delta.KAFKA_COLUMN}"] if kafka_column else []
    right = avro.is_right(F.col("decoded")).alias(RIGHT)
    return judged.select(right, "*").selectExpr(event, *origin, RIGHT)


def _right_rows(flat: DataFrame) -> DataFrame:
    return flat.where(RIGHT).drop(RIGHT)


def quarantine_rows(
    judged: DataFrame, versions: list[SubjectVersion], target: Target, batch_id: int
) -> DataFrame:
    """Return the records that are no rows of the table, with `quarantine.SCHEMA`."""
    reason = avro.verdict(F.col("value"), F.col("decoded"), _schemas(versions))
    bad = judged.where(~avro.is_right(F.col("decoded"))).withColumn("verdict", reason)
    return quarantine.quarantined(bad, pipeline=target.pipeline, batch_id=batch_id)


def _schemas(versions: list[SubjectVersion]) -> dict[int, str]:
    return {version.schema_id: version.schema for version in versions}


def checkpoint_id(spark: SparkSession, checkpoint: str) -> str:
    """Return the id that Spark gave the checkpoint, so that a new one never looks like an old one."""
    metadata = spark.read.json(f"{checkpoint}/metadata").select("id").collect()
    return str(metadata[0][0])


def _or_fail(judged: DataFrame, versions: list[SubjectVersion]) -> DataFrame:
    """Raise at the first record that is not right; inside the plan, so nothing of its batch is written."""
    value, decoded = F.col("value"), F.col("decoded")
    text = F.concat(
        F.lit("FAILFAST: topic "),
        F.col("topic"),
        F.lit(", partition "),
        F.col("partition").cast("string"),
        F.lit(", offset "),
        F.col("offset").cast("string"),
        F.lit(", schema id "),
        F.coalesce(schema_id_of(value).cast("string"), F.lit("none")),
        F.lit(", reason "),
        avro.verdict(value, decoded, _schemas(versions)),
        F.lit(" (end of record)"),
    )
    return judged.withColumn(
        "decoded", F.when(avro.is_right(decoded), decoded).otherwise(F.raise_error(text))
    )
