"""GPS trackers: real tracks, played to a topic as Confluent-framed Avro, and drawn."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import cycle, islice, zip_longest
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import fastavro
from confluent_kafka import KafkaException, Producer
from confluent_kafka.error import KafkaError as ClientError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from topiclake import kafka, wire_format
from topiclake.errors import ConfigError, KafkaError, SchemaRegistryError
from topiclake.kafka_writer import ID_HEADER
from topiclake.schema_registry import SchemaRegistry
from topiclake.settings import Settings
from topiclake.wire_format import SchemaKey

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

GpsEvent = dict[str, str | int | float]


@dataclass(frozen=True)
class Published:
    """What a publishing run sent, acknowledged by the broker."""

    topic: str
    records: int
    devices: int
    schema_id: int

    def to_json(self) -> str:
        """Return it as the exit value of a notebook."""
        return json.dumps(self.__dict__)


def read_tracks(file: Path) -> list[list[GpsEvent]]:
    """Read recorded tracks, one list of events a track.

    Args:
        file: CSV `track, timestamp_ms, latitude, longitude, altitude_m, speed_kmh`. Times may be negative:
            one receiver's clock was broken, and such values are kept.

    Raises:
        ConfigError: The file is missing, or a line is not of that form; names the line.
    """
    if not file.is_file():
        raise ConfigError(f"the tracks {file} are missing", "git checkout -- data/gps_tracks.csv")
    tracks: dict[str, list[GpsEvent]] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines)
        for row in rows:
            try:
                event = _event(row)
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{file}, line {rows.line_num} is not a track point ({error!r})") from None
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


def play(tracks: list[list[GpsEvent]], devices: int) -> Iterator[GpsEvent]:
    """Let `devices` trackers walk the tracks at the same time, each from start to end.

    The first trackers carry the tracks' names, later ones a number behind it.
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
    settings: Settings,
    file: Path | str,
    *,
    devices: int | str,
    records_per_second: float | str = 0,
    partitions: int = 4,
    schema_in: Literal["prefix", "header"] = "prefix",
) -> Published:
    """Register the GPS schema, create the topic where it is missing, and play the tracks into it.

    Args:
        settings: Broker, registry and topic.
        file: The recorded tracks, see `read_tracks`.
        devices: How many trackers walk; three tracks are recorded, further devices walk them again. Text, as
            widgets hold it, will do.
        records_per_second: All devices together; 0 for as fast as it goes.
        partitions: Of the topic, when it is created; a device's events stay in one partition.
        schema_in: Where records name their schema: its id in front of the value, or its GUID in a header.

    Raises:
        ConfigError: `devices` or the rate is no number or too small, or the file is wrong.
        KafkaError, SchemaRegistryError: A service cannot be used, a record was not acknowledged, or the
            registry has no GUIDs.
    """
    number_of_devices, rate = (
        _at_least(1, "devices", devices, whole=True),
        _at_least(0, "records_per_second", records_per_second),
    )
    tracks = read_tracks(Path(file))
    topic = settings.pipeline.topic
    kafka.ensure_topic(settings.kafka, topic, partitions)
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    schema_id = registry.register(f"{topic}-value", json.dumps(GPS_SCHEMA))
    key = schema_id if schema_in == "prefix" else _guid(registry, f"{topic}-value")
    records = produce(settings, topic, key, paced(play(tracks, int(number_of_devices)), rate))
    return Published(topic, records, int(number_of_devices), schema_id)


def _guid(registry: SchemaRegistry, subject: str) -> str:
    guid = registry.latest(subject).guid
    if guid is None:
        raise SchemaRegistryError(
            f"the schema registry at {registry.url} gives schemas no GUID (Confluent's does from 8.0 on)",
            "schema_in=prefix",
        )
    return guid


def _at_least(minimum: float, name: str, value: float | str, *, whole: bool = False) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not number >= minimum or math.isinf(number) or (whole and not number.is_integer()):
        kind = "whole number" if whole else "number"
        raise ConfigError(f"{name} is {value!r}; allowed: a {kind}, at least {minimum:g}", f"-p {name}=10")
    return number


def paced(events: Iterable[GpsEvent], records_per_second: float) -> Iterator[GpsEvent]:
    """Yield the events not faster than `records_per_second`; 0 for no limit."""
    start = time.monotonic()
    for number, event in enumerate(events):
        if records_per_second and (wait := start + number / records_per_second - time.monotonic()) > 0:
            time.sleep(wait)
        yield event


def produce(settings: Settings, topic: str, schema: SchemaKey, events: Iterable[GpsEvent]) -> int:
    """Send events as Avro, keyed by device, and return how many were acknowledged.

    Args:
        settings: The broker.
        topic: Where to.
        schema: What names the schema: an id goes in front of each value, a GUID into a header.
        events: What to send.

    Raises:
        KafkaError: The broker did not acknowledge each of them; names the first reason.
    """
    avro_schema = fastavro.parse_schema(GPS_SCHEMA)
    failures: list[ClientError] = []
    producer = Producer(
        kafka.client_settings(settings.kafka)
        | {"enable.idempotence": True, "linger.ms": 20, "message.timeout.ms": 30_000}
    )
    sent, call = 0, uuid4().hex
    for event in events:
        payload = io.BytesIO()
        fastavro.schemaless_writer(payload, avro_schema, event)
        message = {"key": str(event["deviceId"])} | _message(schema, payload.getvalue())
        # Each call sends what it sends once: librdkafka numbers what it repeats, and this names it.
        one = sha256(f"{call}/{sent}".encode()).hexdigest()[:32]
        message["headers"] = [*message.get("headers", []), (ID_HEADER, one.encode())]
        _send(producer, topic, message, failures)
        sent += 1
    unsent = producer.flush(60)
    if failures or unsent:
        reason = failures[0].str() if failures else "no answer within 60 s"
        raise KafkaError(
            f"{len(failures) + unsent} of {sent} records for topic {topic} were not acknowledged ({reason})",
            "python -m workbench status, then publish again",
        )
    return sent


def _message(schema: SchemaKey, payload: bytes) -> dict[str, Any]:
    if isinstance(schema, int):
        return {"value": wire_format.frame(schema, payload)}
    value, headers = wire_format.with_header(schema, payload)
    return {"value": value, "headers": headers}


def _send(producer: Producer, topic: str, message: Mapping[str, Any], failures: list[ClientError]) -> None:
    def acknowledged(error: ClientError | None, _message: object) -> None:
        if error is not None:
            failures.append(error)

    while True:
        try:
            producer.produce(topic, **message, on_delivery=acknowledged)
        except BufferError:
            producer.poll(0.5)
            continue
        except KafkaException as error:
            raise KafkaError(f"topic {topic} takes no records: {error}") from None
        producer.poll(0)
        return


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
