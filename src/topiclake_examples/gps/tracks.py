"""GPS trackers: real tracks, played to a topic as Confluent-framed Avro, and drawn."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.sql.window import Window

import topiclake as tl
from topiclake.errors import ConfigError, require_choice
from topiclake_examples.avro_producer import AvroRecord, at_least, produce, rate_limited
from topiclake_examples.exit_value import ExitValue
from topiclake_examples.parameters import recorded_file

GPS_SCHEMA = {
    "type": "record",
    "name": "GpsEvent",
    "namespace": "io.topiclake.gps",
    "fields": [
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "deviceId", "type": "string"},
        {"name": "latitude", "type": "double", "doc": "degrees, WGS 84"},
        {"name": "longitude", "type": "double", "doc": "degrees, WGS 84"},
        {"name": "altitude", "type": "double", "doc": "metres above sea level"},
        {"name": "speed", "type": "double", "doc": "km/h"},
    ],
}

#: As the article's schema has them: devices are numbers.
_POSITIONS = (
    "timestamp BIGINT NOT NULL, deviceId BIGINT NOT NULL, latitude DOUBLE NOT NULL, "
    "longitude DOUBLE NOT NULL, altitude DOUBLE NOT NULL, speed DOUBLE NOT NULL"
)

#: The times that events have.
TIMES = ("now", "recorded")

GpsEvent = dict[str, str | int | float]


@dataclass(frozen=True)
class Published(ExitValue):
    """The result of a publishing run, whose records the broker acknowledged."""

    topic: str
    records: int
    devices: int
    schema_id: int


def read_tracks(file: Path) -> list[list[GpsEvent]]:
    """Read recorded tracks, one list of events a track.

    Args:
        file: CSV `track, timestamp_ms, latitude, longitude, altitude_m, speed_kmh`. Times may be negative:
            one receiver's clock was broken, and such values are kept.

    Raises:
        ConfigError: The file is missing, or a line is not of that form; names the line.
    """
    tracks: dict[str, list[GpsEvent]] = {}
    with recorded_file(file).open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines)
        for row in rows:
            try:
                event = _event(row)
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"{file}, line {rows.line_num} is not a track point ({error!r})",
                    "fix or remove that line",
                    file=str(file),
                    line=rows.line_num,
                    reason="line",
                ) from None
            tracks.setdefault(row["track"], []).append(event)
    return list(tracks.values())


def _event(row: dict[str, str]) -> GpsEvent:
    return {
        "timestamp": int(row["timestamp_ms"]),
        "deviceId": row["track"],
        "latitude": float(row["latitude"]),
        "longitude": float(row["longitude"]),
        "altitude": float(row["altitude_m"]),
        "speed": float(row["speed_kmh"]),
    }


def as_of(tracks: list[list[GpsEvent]], now_ms: int) -> list[list[GpsEvent]]:
    """Return tracks that end now, with the recorded time between their events.

    Args:
        tracks: As `read_tracks` returns them.
        now_ms: The time of their ends, in milliseconds since 1970.
    """
    return [
        [event | {"timestamp": int(event["timestamp"]) + now_ms - end} for event in track]
        for track in tracks
        for end in [max(int(event["timestamp"]) for event in track)]
    ]


def play(tracks: list[list[GpsEvent]], devices: int) -> Iterator[GpsEvent]:
    """Let `devices` trackers walk the tracks at the same time, each from start to end.

    The first trackers have the tracks' names; further ones have a number after the name.
    """
    walks = [_walk(track, name) for track, name in islice(_named(tracks), devices)]
    for events in zip_longest(*walks):
        yield from (event for event in events if event is not None)


def _walk(track: list[GpsEvent], name: str) -> Iterator[GpsEvent]:
    return (event | {"deviceId": name} for event in track)


def _named(tracks: list[list[GpsEvent]]) -> Iterator[tuple[list[GpsEvent], str]]:
    for number, track in enumerate(cycle(tracks)):
        lap = number // len(tracks)
        yield track, f"{track[0]['deviceId']}-{lap + 1}" if lap else str(track[0]["deviceId"])


def publish_tracks(
    settings: tl.Settings,
    file: Path | str,
    *,
    devices: int | str,
    records_per_second: float | str = 0,
    times: str = "now",
) -> Published:
    """Register the GPS schema, create the topic if it does not exist, and play the tracks into it.

    Args:
        settings: Broker, registry and topic.
        file: The recorded tracks, see `read_tracks`.
        devices: Number of trackers. Three tracks are recorded, and further trackers repeat them. May be text,
            as widgets hold it.
        records_per_second: The rate of all devices together; 0 for as fast as possible.
        times: `now`: the tracks end now. `recorded`: the events keep their times.

    Raises:
        ConfigError: `devices` or the rate is not a number or too small, `times` is another value, or the file
            is wrong.
        KafkaError, SchemaRegistryError: A service cannot be used, or a record was not acknowledged.
    """
    number_of_devices = at_least(1, "devices", devices, integer=True)
    rate = at_least(0, "records_per_second", records_per_second)
    require_choice("times", times, TIMES)
    tracks = read_tracks(Path(file))
    if times == "now":
        tracks = as_of(tracks, time.time_ns() // 1_000_000)
    topic = settings.pipeline.topic
    # The events of a device stay in one partition.
    tl.ensure_topic(settings.kafka, topic, 4)
    registry = tl.SchemaRegistry.from_settings(settings.schema_registry)
    schema_id = registry.register(f"{topic}-value", json.dumps(GPS_SCHEMA))
    events = rate_limited(play(tracks, int(number_of_devices)), rate)
    sent = (AvroRecord(str(event["deviceId"]), event) for event in events)
    records = produce(settings, topic, GPS_SCHEMA, schema_id, sent)
    return Published(topic, records, int(number_of_devices), schema_id)


def recorded_positions(spark: SparkSession, file: Path | str) -> DataFrame:
    """Return the recorded tracks as rows; the first track is of device 1001, the second of 1002.

    Args:
        spark: The session.
        file: The recorded tracks, see `read_tracks`.

    Returns:
        `timestamp BIGINT, deviceId BIGINT, latitude DOUBLE, longitude DOUBLE, altitude DOUBLE, speed DOUBLE`.
        Timestamps are milliseconds since 1970.

    Raises:
        ConfigError: The file is missing or wrong.
    """
    numbered = enumerate(read_tracks(Path(file)), start=1001)
    rows = [event | {"deviceId": device} for device, track in numbered for event in track]
    columns: Any = StructType.fromDDL(_POSITIONS)
    # If these were a list, each query of the rows would read them in Python workers.
    return spark.createDataFrame(pa.Table.from_pylist(rows).select(columns.names), columns)


def counts_per_device(gps_events: DataFrame) -> DataFrame:
    """Return `deviceId STRING, records BIGINT, first TIMESTAMP, last TIMESTAMP`, most records first."""
    return (
        gps_events.groupBy("deviceId")
        .agg(
            F.count("*").alias("records"),
            F.min("timestamp").alias("first"),
            F.max("timestamp").alias("last"),
        )
        .orderBy(F.desc("records"), "deviceId")
    )


def last_positions(gps_events: DataFrame) -> DataFrame:
    """Return the newest event of each device, with the columns of `gps_events`."""
    newest_first = Window.partitionBy("deviceId").orderBy(F.desc("timestamp"))
    ranked = gps_events.withColumn("rank", F.row_number().over(newest_first))
    return ranked.where("rank = 1").drop("rank").orderBy("deviceId")
