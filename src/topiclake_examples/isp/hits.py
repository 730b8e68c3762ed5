"""Hits of an internet provider's customers: generated from a seed, published as JSON, counted by zip code."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import topiclake as tl
from topiclake_examples.exit_value import ExitValue
from topiclake_examples.parameters import moment, whole_number
from topiclake_examples.sample_rows import hash_random

#: City, state, zip code; made-up hits come from these.
_PLACES = (
    ("San Francisco", "CA", "94103"),
    ("Daly City", "CA", "94016-1021"),
    ("New York", "NY", "10001"),
    ("Brooklyn", "NY", "11201"),
    ("Boston", "MA", "02108-1518"),
    ("Chicago", "IL", "60601"),
    ("Austin", "TX", "78701"),
    ("Seattle", "WA", "98101"),
    ("Holtsville", "NY", "00501"),
)
_PROVIDERS = ("Northern Fiber", "Bay Cable", "Prairie Wireless", "Harbor DSL")
_AGENTS = ("Firefox/142.0", "Chrome/139.0", "Safari/18.5")
#: On average, one of this number of hits has status 503; the others have 200.
_ERRORS = 50


@dataclass(frozen=True)
class PublishedHits(ExitValue):
    """The result of a publishing run, whose records the broker acknowledged.

    Attributes:
        topic: The topic.
        partitions: Number of the topic's partitions.
        records: Number of hits, damaged ones among them.
        damaged: Number of hits that are cut off, for the quarantine.
    """

    topic: str
    partitions: int
    records: int
    damaged: int


def make_hits(spark: SparkSession, hits: int, *, seed: int = 1, start: str, minutes: int = 60) -> DataFrame:
    """Generate hits within Spark, the same each time for the same seed.

    Args:
        spark: The session.
        hits: Number of hits.
        seed: Another seed generates other hits.
        start: The earliest time, in ISO 8601 with its zone.
        minutes: Length of the period of the hits.

    Returns:
        `ip STRING, isp STRING, city STRING, state STRING, zipcode STRING, hittime TIMESTAMP, url STRING,
        status INT, bytes BIGINT, agent STRING`; the zip code has five digits, or nine with a hyphen.
    """
    return _numbered(spark, hits, seed, start, minutes).drop("id")


def _numbered(spark: SparkSession, hits: int, seed: int, start: str, minutes: int) -> DataFrame:
    place = _one_of(
        _PLACES, hash_random("place", seed, len(_PLACES)), "city STRING, state STRING, zipcode STRING"
    )
    delay = hash_random("time", seed, minutes * 60_000_000)
    # Networks that RFC 5737 keeps for documentation.
    network = F.element_at(F.split(F.lit("192.0.2.,198.51.100.,203.0.113."), ","), _nth("network", seed, 3))
    rows = spark.range(hits).select("id", place.alias("place"))
    return rows.select(
        "id",
        F.concat(network, hash_random("host", seed, 256)).alias("ip"),
        _text_of(_PROVIDERS, "isp", seed),
        "place.*",
        F.timestamp_micros(F.unix_micros(F.lit(start).cast("timestamp")) + delay).alias("hittime"),
        F.concat(F.lit("/page/"), hash_random("url", seed, 200)).alias("url"),
        F.when(hash_random("status", seed, _ERRORS) == 0, 503).otherwise(200).alias("status"),
        (hash_random("bytes", seed, 100_000) + 200).alias("bytes"),
        _text_of(_AGENTS, "agent", seed),
    )


def publish_hits(
    spark: SparkSession,
    settings: tl.Settings,
    *,
    hits: int | str = 10_000,
    seed: int | str = 1,
    start: str = "2026-01-02T03:00:00Z",
    minutes: int | str = 60,
    damaged: int | str = 0,
    partitions: int = 4,
) -> PublishedHits:
    """Create the topic if it does not exist, and send generated hits as JSON, keyed by zip code.

    Args:
        spark: The session.
        settings: Broker and topic.
        hits: Number of hits; may be text, as widgets hold it.
        seed: See `make_hits`.
        start: See `make_hits`.
        minutes: See `make_hits`.
        damaged: Number of the hits that are cut off.
        partitions: Number of the topic's partitions, if it is created.

    Raises:
        ConfigError: A number or the time is not valid. Nothing was sent.
        KafkaError: The broker cannot be used, or does not accept all hits.
    """
    amount, seeded, spread, cut = (
        whole_number(name, value)
        for name, value in (("hits", hits), ("seed", seed), ("minutes", minutes), ("damaged", damaged))
    )
    moment("start", start)
    topic = settings.pipeline.topic
    partition_count = tl.ensure_topic(settings.kafka, topic, partitions)
    rows = _numbered(spark, amount, seeded, start, max(spread, 1))
    fields = [name for name in rows.columns if name != "id"]
    text = F.to_json(F.struct(*fields), {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"})
    value = F.when(F.col("id") < cut, F.left(text, F.lit(20))).otherwise(text)
    records = rows.select(F.col("zipcode").alias("key"), value.alias("value"))
    # The hits of each call are new ones, even with the same content.
    tl.write_topic(records, settings, write_id=uuid4().hex, topic=topic)
    return PublishedHits(topic, partition_count, amount, min(cut, amount))


def zip_hits(hits: DataFrame) -> DataFrame:
    """Add `zip STRING`, the five digits of `zipcode`, or null if it has another form; leading zeros stay."""
    digits = F.regexp_extract("zipcode", r"^\s*(\d{5})(?:-?\d{4})?\s*$", 1)
    return hits.withColumn("zip", F.nullif(digits, F.lit("")))


def dated_hits(hits: DataFrame) -> DataFrame:
    """Add `zip STRING`, as `zip_hits` does, and `day DATE`, the day of `hittime` in UTC.

    Files are partitioned by them, so they don't depend on the session's time zone.
    """
    days = F.floor(F.unix_seconds("hittime") / 86_400).cast("int")
    return zip_hits(hits).withColumn("day", F.date_from_unix_date(days))


def count_records(counts: DataFrame) -> DataFrame:
    """Make Kafka records of counts by zip code.

    Args:
        counts: `zip STRING, count BIGINT`.

    Returns:
        `key STRING, value STRING`: the zip code, which may be null, and the count as text. Counts of one zip
        code are in one partition, in their order. Counts with a null key are in any partition.
    """
    return counts.select(F.col("zip").alias("key"), F.col("count").cast("string").alias("value"))


def hits_per_zip(hits: DataFrame) -> DataFrame:
    """Count hits by zip code.

    Returns:
        `zip STRING, count BIGINT`.
    """
    return zip_hits(hits).groupBy("zip").count()


def hit_windows(*, watermark: str = "10 minutes", idle_timeout: str | None = None) -> tl.Windows:
    """Return windows of 10 minutes, one every 5 minutes from 2 minutes past the hour, by zip code.

    Args:
        watermark: Delay, compared with the latest hit, up to which a hit is still counted.
        idle_timeout: See `tl.Windows`.

    Returns:
        Windows of hits: columns of `make_hits`, and `_kafka` with `timestamp`. A hit more than an hour ahead
        of its arrival is in none.
    """
    return tl.Windows(
        "hittime",
        keys=("zip",),
        start="2 minutes",
        watermark=watermark,
        idle_timeout=idle_timeout,
        counted=_zips_not_ahead,
    )


def hits_per_window(
    hits: DataFrame, *, watermark: str = "10 minutes", idle_timeout: str | None = None
) -> DataFrame:
    """Count hits by zip code in the windows of `hit_windows`, with its arguments.

    Returns:
        `start TIMESTAMP, end TIMESTAMP, zip STRING, count BIGINT`.
    """
    return tl.window_counts(hits, hit_windows(watermark=watermark, idle_timeout=idle_timeout))


def _zips_not_ahead(hits: DataFrame) -> DataFrame:
    return tl.not_ahead(zip_hits(hits), "hittime", "_kafka.timestamp")


def _nth(purpose: str, seed: int, count: int) -> Column:
    return (hash_random(purpose, seed, count) + 1).cast("int")


def _text_of(texts: tuple[str, ...], name: str, seed: int) -> Column:
    return F.element_at(F.array(*map(F.lit, texts)), _nth(name, seed, len(texts))).alias(name)


def _one_of(rows: tuple[tuple[str, ...], ...], index: Column, ddl: str) -> Column:
    structs = F.array(*(F.struct(*map(F.lit, row)) for row in rows))
    kind = ", ".join(": ".join(part.split()) for part in ddl.split(","))
    return F.element_at(structs, (index + 1).cast("int")).cast(f"STRUCT<{kind}>")
