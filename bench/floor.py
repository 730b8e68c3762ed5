"""Spark and Delta alone, without a check: `from_avro` of one schema, and appends with a transaction id."""

from __future__ import annotations

import json
from collections.abc import Callable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.streaming import StreamingQuery

from topiclake.config.settings import Settings
from topiclake.kafka import source as kafka_source
from topiclake_examples.gps import tracks as gps_tracks

FLOOR = "floor"


def start(
    spark: SparkSession,
    settings: Settings,
    append_batch: Callable[[DataFrame, int], None],
    checkpoint: str,
    *,
    trigger: str | None = None,
) -> StreamingQuery:
    """Start a query that appends batches of Kafka's records; without a trigger, it ends with the topic."""
    options = kafka_source.reader_options(settings.kafka, settings.pipeline)
    records = spark.readStream.format("kafka").options(**options).load()
    writer = records.writeStream.foreachBatch(append_batch).option("checkpointLocation", checkpoint)
    timed = writer.trigger(processingTime=trigger) if trigger else writer.trigger(availableNow=True)
    return timed.start()


def start_gps(spark: SparkSession, settings: Settings, *, trigger: str | None = None) -> StreamingQuery:
    """Start a query from a topic of GPS records into the table that the article's code has, too."""
    folder = settings.storage.source

    def append_batch(records: DataFrame, batch_id: int) -> None:
        rows = records.select(gps_event(), kafka_column()).select("event.*", "_kafka")
        append(rows, f"{folder}/delta/gps", "gps", batch_id)

    return start(spark, settings, append_batch, f"{folder}/checkpoints", trigger=trigger)


def gps_event() -> Column:
    """Return the column `event` of a record of GPS, which `from_avro` alone decodes."""
    payload = F.expr("substring(value, 6, length(value) - 5)")
    return from_avro(payload, json.dumps(gps_tracks.GPS_SCHEMA), {"mode": "PERMISSIVE"}).alias("event")


def kafka_column() -> Column:
    """Return the column `_kafka` of Kafka's records."""
    return F.struct("partition", "offset").alias("_kafka")


def append(rows: DataFrame, table: str, app_id: str | None, batch_id: int) -> None:
    """Append the rows of a batch; without an id, a repeated batch would double them."""
    ids = {} if app_id is None else {"txnAppId": app_id, "txnVersion": str(batch_id)}
    rows.write.format("delta").mode("append").options(**ids).save(table)
