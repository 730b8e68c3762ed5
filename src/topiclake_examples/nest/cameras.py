"""Nest's cameras: logs sent to Kafka, sightings of persons by place, and cameras that are offline."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import topiclake as tl
from topiclake.errors import ConfigError
from topiclake_examples.exit_value import ExitValue
from topiclake_examples.nest.logs import NestLogs, location_lines
from topiclake_examples.parameters import moment, whole_number

#: More characters than a log has.
_MAX_CHARACTERS = 2**31 - 1


@dataclass(frozen=True)
class PublishedLogs(ExitValue):
    """The result of a publishing run, whose records the broker acknowledged.

    Attributes:
        topic: The topic of the logs.
        partitions: Number of its partitions.
        records: Number of logs, damaged ones among them.
        damaged: Number of logs that are cut off, for the quarantine.
        cameras: Number of cameras whose places were sent to the topic of locations.
    """

    topic: str
    partitions: int
    records: int
    damaged: int
    cameras: int


def publish_nest_logs(
    spark: SparkSession,
    settings: tl.Settings,
    locations: tl.Settings,
    *,
    logs: int | str = 10_000,
    homes: int | str = 50,
    seed: int | str = 1,
    start: str = "2026-01-02T03:00:00Z",
    minutes: int | str = 90,
    offline: int | str = 3,
    damaged: int | str = 0,
) -> PublishedLogs:
    """Create the topics if they do not exist, and send generated logs by home, and the cameras' places.

    Args:
        spark: The session.
        settings: The pipeline `nest`: the broker, the topic of the logs and their form.
        locations: The pipeline `nest_locations`, whose topic has lines.
        logs: Number of logs; may be text, as widgets hold it.
        homes: Number of homes. Each has one to three cameras, a thermostat, a smoke alarm and a meter.
        seed: The same seed generates the same logs.
        start: Time of the earliest log, in ISO 8601 with its zone.
        minutes: Length of the period over which the logs are spread evenly.
        offline: Number of homes whose first camera is offline from the middle of the period on.
        damaged: Number of the logs that are cut off.

    Raises:
        ConfigError: A number or the time is not valid. Nothing was sent.
        KafkaError: The broker cannot be used, or does not accept all logs.
    """
    counts = {"logs": logs, "homes": homes, "seed": seed, "minutes": minutes, "offline": offline}
    numbers = {name: whole_number(name, value) for name, value in counts.items()}
    cut, began = whole_number("damaged", damaged), moment("start", start)
    for name in ("homes", "minutes"):
        if not numbers[name]:
            raise ConfigError(f"{name} is 0", f"pass -p {name}=50", parameter=name, found=0)
    generated = NestLogs(
        value_schema=str(settings.pipeline.value_schema),
        timestamp_format=str(settings.pipeline.timestamp_format),
        start=began,
        **numbers,
    )
    topic, lines_topic = settings.pipeline.topic, locations.pipeline.topic
    partition_count = tl.ensure_topic(settings.kafka, topic, 4)
    # One partition: of two lines about a camera, the later one counts.
    tl.ensure_topic(locations.kafka, lines_topic, 1)
    lines = location_lines(spark, generated.homes)
    tl.write_topic(lines, locations, write_id=uuid4().hex, topic=lines_topic)
    value = F.left(generated.text(), F.when(F.col("id") < cut, 40).otherwise(_MAX_CHARACTERS))
    records = spark.range(generated.logs).select(generated.home.alias("key"), value.alias("value"))
    # The logs of each call are new ones, even with the same content.
    tl.write_topic(records, settings, write_id=uuid4().hex, topic=topic)
    return PublishedLogs(topic, partition_count, generated.logs, min(cut, generated.logs), lines.count())


def nest_cameras(logs: DataFrame) -> DataFrame:
    """Return the cameras of logs, one row for each camera of each log.

    Args:
        logs: `devices STRUCT<cameras: MAP<STRING, STRUCT<…>>, …>` and `_kafka`, as pipeline `nest` has them.

    Returns:
        The fields of a camera, then `_kafka`.
    """
    exploded = logs.select(F.explode("devices.cameras").alias("device", "camera"), "_kafka")
    return exploded.select("camera.*", "_kafka")


def dated_cameras(cameras: DataFrame) -> DataFrame:
    """Add `year INT, month INT, day INT` of a camera's last event, in UTC; null if it has no event yet."""
    date = F.date_from_unix_date(F.floor(F.unix_seconds("last_event.start_time") / 86_400).cast("int"))
    parts = {"year": F.year(date), "month": F.month(date), "day": F.day(date)}
    return cameras.withColumns(parts)


def sightings(cameras: DataFrame) -> DataFrame:
    """Return the events of cameras with a person: `device_id STRING, start_time TIMESTAMP`."""
    with_person = cameras.where("last_event.has_person")
    return with_person.select("device_id", "last_event.start_time")


def sightings_per_hour(cameras: DataFrame, locations: DataFrame) -> DataFrame:
    """Count sightings by zip code and hour.

    Args:
        cameras: As `nest_cameras` returns them. A log has the last event of a camera, so each log counts.
        locations: `device_id STRING, zip_code STRING`, one row a device, and no stream. A camera that is not
            in it counts for the zip code null.

    Returns:
        `zip_code STRING, start TIMESTAMP, end TIMESTAMP, count BIGINT`.
    """
    located = sightings(cameras).join(locations.select("device_id", "zip_code"), "device_id", "left")
    # Hours of UTC are hours in most zones, and the count of each is final when the hour is over.
    counts = located.groupBy("zip_code", F.window("start_time", "1 hour")).count()
    return counts.select("zip_code", "window.start", "window.end", "count")


def sighting_records(counts: DataFrame) -> DataFrame:
    """Make Kafka records of counts by zip code and hour.

    Returns:
        `key STRING, value STRING`: JSON `{"zip_code": …, "start": …, "end": …}`, with times in UTC, and the
        count as text.
    """
    options = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ssX", "timeZone": "UTC", "ignoreNullFields": "false"}
    key = F.to_json(F.struct("zip_code", "start", "end"), options)
    return counts.select(key.alias("key"), F.col("count").cast("string").alias("value"))


def camera_states(cameras: DataFrame) -> DataFrame:
    """Return the newest state of each camera; of a stream in output mode update.

    Returns:
        `device_id STRING, name STRING, structure_id STRING, is_online BOOLEAN, since TIMESTAMP`: online or
        offline since then, as the camera says. The newest state is the one with the latest such time; logs
        may come out of order.
    """
    state = F.struct(
        F.col("name_long").alias("name"),
        "structure_id",
        "is_online",
        F.col("last_is_online_change").alias("since"),
    )
    order = F.struct("last_is_online_change", "_kafka.timestamp", "_kafka.offset")
    newest = cameras.groupBy("device_id").agg(F.max_by(state, order).alias("newest"))
    return newest.select("device_id", "newest.*")


def camera_notifications(states: DataFrame) -> DataFrame:
    """Make notifications of the states of cameras, for `notify_batches`."""
    since = F.date_format(F.to_utc_timestamp("since", F.current_timezone()), "yyyy-MM-dd HH:mm:ss")
    change = F.when(F.col("is_online"), "is online again").otherwise("is offline")
    since_text = F.concat(F.lit("since "), since, F.lit(" UTC"))
    text = F.concat_ws(" ", F.lit("camera"), "device_id", "name", change, since_text)
    is_offline = ~F.coalesce("is_online", F.lit(True))
    return states.select(
        F.col("device_id").alias("subject"), is_offline.alias("is_wrong"), "since", text.alias("text")
    )
