"""The articles' code, with which the benchmarks compare. A test fixes this file by a hash.

The first article strips Confluent's five bytes, decodes by `from_avro` with the latest schema, and appends to
a Delta table. The second one counts JSON hits in windows. `append_json` is the first article's code for JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from topiclake.config.settings import Settings
from topiclake.schema_registry.registry import SchemaRegistry

#: Settings of the articles' session; everything else is Spark's and Delta's default.
CONF = ("spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.sql.session.timeZone")
_NOTHING: Mapping[str, str] = MappingProxyType({})


def append_avro(
    spark: SparkSession, settings: Settings, consumer: Mapping[str, str] = _NOTHING
) -> StreamingQuery:
    """Drain a topic as the first article does, with further settings of the Kafka consumer."""
    return _append(_from_avro(spark, settings, consumer), settings)


def follow_avro(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Read a topic as the first article does, as fast as it goes, until the query is stopped."""
    return _writer(_from_avro(spark, settings, _NOTHING), settings).start(_table(settings))


def append_json(
    spark: SparkSession, settings: Settings, consumer: Mapping[str, str] = _NOTHING
) -> StreamingQuery:
    """Drain a topic of JSON in the same way: whatever is no JSON becomes nulls."""
    return _append(_from_json(_records(spark, settings, consumer), settings), settings)


def count_hits(spark: SparkSession, settings: Settings) -> DataFrame:
    """Count as the second article does: no JSON is lost, and an event ahead of time closes windows."""
    hits = _from_json(_records(spark, settings, _NOTHING), settings)
    hits = hits.withColumn("zip", F.split("zipcode", "-")[0])
    window = F.window("hittime", "10 minutes", "5 minutes", "2 minutes")
    counts = hits.withWatermark("hittime", "10 minutes").groupBy(window, "zip").count()
    return counts.select("window.start", "window.end", "zip", "count")


def _records(spark: SparkSession, settings: Settings, consumer: Mapping[str, str]) -> DataFrame:
    limit = settings.pipeline.max_offsets_per_trigger
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.kafka.bootstrap_servers)
        .option("subscribe", settings.pipeline.topic)
        .option("startingOffsets", "earliest")
        .options(**({} if limit is None else {"maxOffsetsPerTrigger": str(limit)}))
        .options(**consumer)
        .load()
    )


def _from_avro(spark: SparkSession, settings: Settings, consumer: Mapping[str, str]) -> DataFrame:
    topic = settings.pipeline.topic
    schema = SchemaRegistry.from_settings(settings.schema_registry).latest(f"{topic}-value").schema
    payload = F.expr("substring(value, 6, length(value) - 5)").alias("fixedValue")
    events = _records(spark, settings, consumer).select(payload)
    rows = events.select(from_avro("fixedValue", schema, {"mode": "PERMISSIVE"}).alias("event"))
    return rows.select("event.*")


def _from_json(records: DataFrame, settings: Settings) -> DataFrame:
    value = F.from_json(F.col("value").cast("string"), str(settings.pipeline.value_schema)).alias("event")
    return records.select(value).select("event.*")


def _append(rows: DataFrame, settings: Settings) -> StreamingQuery:
    query = _writer(rows, settings).trigger(availableNow=True).start(_table(settings))
    query.awaitTermination()
    return query


def _writer(rows: DataFrame, settings: Settings) -> DataStreamWriter:
    return (
        rows.writeStream.format("delta")
        .outputMode("append")
        .option("mergeSchema", "true")
        .option("checkpointLocation", f"{settings.storage.source}/checkpoints")
    )


def _table(settings: Settings) -> str:
    return f"{settings.storage.source}/delta/gps"
