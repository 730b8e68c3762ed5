"""The article's code, unchanged, against Topiclake's ingest, on the same records.

Preloads a topic with N GPS records (about 51 bytes each, 4 partitions, lz4). A second topic has the same
records by three schema ids in turn. Drains them in rounds, each side in a separate process. Prints rows/s,
CPU seconds of Spark per million rows, and each side's ratio to the first one with its spread.
`tuned article` is the article's code with the consumer's settings of conf/base.yaml.
`floor` is Spark and Delta alone, with `_kafka` and Delta's transaction id.
`topiclake` writes the six columns of the article; the others write `_kafka` too, as conf/base.yaml has it.
`connect+_kafka` runs on a Spark Connect server, whose batches a Python process writes.
Not counted: the start of the JVM, and a first drain of 500,000 records by the same code, which warms it up.
The broker runs on the same cores.

    python -m bench.gps_ingest --records 5000000 --rounds 3
    python -m bench.gps_ingest --records 20000000 --sides "tuned article,floor,topiclake+_kafka"
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import psutil
from confluent_kafka import Producer
from rich.table import Table

from bench.floor import FLOOR
from bench.rounds import PROJECT, console, in_rounds, own_services, separate_run, spread
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.formats.avro import decoding as avro_decoding
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry import wire_format
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake_examples.gps import tracks as gps_tracks

SEED = 20190101
TOPIC, THREE_IDS = "gps", "gps-three-ids"
PARTITIONS = 4
WARM_UP_RECORDS = 500_000
#: The article's code with our settings of the consumer.
TUNED = "tuned article"
#: The ingest on a Spark Connect server.
CONNECT = "connect+_kafka"
#: The topic of each side.
SIDES = {
    "article": TOPIC,
    TUNED: TOPIC,
    FLOOR: TOPIC,
    "topiclake": TOPIC,
    "topiclake+_kafka": TOPIC,
    "three ids+_kafka": THREE_IDS,
    CONNECT: TOPIC,
}


def values(schema_ids: list[int], tracks: list[list[gps_tracks.GpsEvent]], records: int) -> Iterator[bytes]:
    """Yield framed values, a millisecond after one another."""
    starts = [wire_format.header(schema_id) for schema_id in schema_ids]
    for number, rest in enumerate(after_times(tracks, records)):
        yield starts[number % len(starts)] + avro_decoding.zigzag(1_546_300_800_000 + number) + rest


def after_times(tracks: list[list[gps_tracks.GpsEvent]], records: int) -> Iterator[bytes]:
    """Yield Avro's bytes after the field `timestamp`.

    They have the real points, moved a little for each tracker, so that values do not repeat.
    """
    points = [point for track in tracks for point in track]
    chance = random.Random(SEED)
    for number in range(records):
        point = points[number % len(points)]
        device = f"device-{number % 1000:04d}".encode()
        moved = chance.random() / 1000
        yield b"".join(
            (
                avro_decoding.zigzag(len(device)),
                device,
                struct.pack(
                    "<4d",
                    float(point["latitude"]) + moved,
                    float(point["longitude"]) - moved,
                    float(point["altitude"]),
                    float(point["speed"]),
                ),
            )
        )


def preload(settings: Settings, records: int) -> int:
    """Fill the topic and register its schema; for THREE_IDS in three versions that differ in their doc.

    Returns:
        The bytes of all values.
    """
    topic = settings.pipeline.topic
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    docs = ("v1", "v2", "v3") if topic.startswith(THREE_IDS) else ("v1",)
    ids = [
        registry.register(f"{topic}-value", json.dumps(gps_tracks.GPS_SCHEMA | {"doc": doc})) for doc in docs
    ]
    tracks = gps_tracks.read_tracks(PROJECT / "data" / "gps_tracks.csv")
    return send(settings, values(ids, tracks, records))


def send(settings: Settings, records: Iterable[bytes]) -> int:
    """Fill the topic with values, a thousand to each partition in turn; return the bytes of all values."""
    kafka_admin.ensure_topic(settings.kafka, settings.pipeline.topic, PARTITIONS)
    producer = Producer(
        kafka_client.client_settings(settings.kafka)
        | {"compression.type": "lz4", "linger.ms": 50, "batch.num.messages": 20_000}
    )
    size = 0
    for number, value in enumerate(records):
        size += len(value)
        while True:
            try:
                producer.produce(settings.pipeline.topic, value=value, partition=number // 1000 % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    return size


def warm_up(topic: str) -> str:
    """Return the name of the small topic that is drained before `topic`."""
    return f"{topic}-warm-up"


def load(topic: str, rows: int | None = None, folder: Path | None = None) -> Settings:
    """Return the GPS pipeline's configuration, for another topic, a number of rows a batch, and a folder."""
    parameters = {"env": "local", "topic": topic, **({"storage": folder.as_uri()} if folder else {})}
    settings = load_settings("gps", parameters, conf=PROJECT / "conf")
    pipeline = settings.pipeline.model_copy(update={"max_offsets_per_trigger": rows})
    return settings.model_copy(update={"pipeline": pipeline})


def drain(side: str, folder: Path, rows: int | None = None) -> dict[str, Any]:
    """Drain the topic in a separate process, and return what that prints (bench/drain.py)."""
    target = folder / side.replace(" ", "-")
    shutil.rmtree(target, ignore_errors=True)
    return separate_run(side, "bench.drain", side, str(target), *([str(rows)] if rows else []))


def report(results: dict[str, list[dict[str, Any]]], records: int) -> None:
    """Print the figures; a ratio is that of rates within one round (side / first side)."""
    first = next(iter(results.values()))
    table = Table(title=f"{records:,} GPS records, {len(first)} rounds")
    for column in ("", "rows/s (median)", "min – max", "CPU s per million rows", "ratio (min – max)"):
        table.add_column(column, justify="right" if column else "left")
    for side, runs in results.items():
        rates = [records / run["seconds"] for run in runs]
        cpu = statistics.median(run["cpu_seconds"] for run in runs) / records * 1e6
        ratios = [one["seconds"] / run["seconds"] for one, run in zip(first, runs, strict=True)]
        table.add_row(
            side,
            f"{statistics.median(rates):,.0f}",
            f"{min(rates):,.0f} – {max(rates):,.0f}",
            f"{cpu:.2f}",
            spread(ratios),
        )
    console.print(table)
    console.print("counts and sums of all tables agree")


@click.command()
@click.option("--records", default=5_000_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--sides", "listed", default=",".join(SIDES), show_default=True)
def main(records: int, rounds: int, listed: str) -> None:
    """Run the rounds on a separate broker and registry."""
    with own_services("bench") as (folder, addresses):
        os.environ |= addresses.environment()
        started = time.monotonic()
        sides = listed.split(",")
        topics = sorted({SIDES[side] for side in sides})
        for topic in topics:
            preload(load(warm_up(topic)), WARM_UP_RECORDS)
            preload(load(topic), records)
        seconds = time.monotonic() - started
        console.print(f"preloaded {records:,} records for each of {len(topics)} topics in {seconds:.0f} s")
        results = in_rounds(
            sides,
            rounds,
            lambda side: drain(side, folder),
            lambda run: f"{records / run['seconds']:>12,.0f} rows/s, CPU {run['cpu_seconds']:.1f} s",
        )
        verify(results, records)
        report(results, records)


def verify(results: dict[str, list[dict[str, Any]]], records: int) -> None:
    """Check that every run of every side holds the same rows: count, and sums of each column."""
    checks = [run["sums"] for runs in results.values() for run in runs]
    if any(check != checks[0] for check in checks) or checks[0][0] != records:
        raise click.ClickException(f"the tables differ, or do not hold {records:,} rows: {checks}")


def cpu_seconds() -> float:
    """Return the CPU time of this process and its JVM."""
    own = psutil.Process()
    times = [process.cpu_times() for process in [own, *own.children(recursive=True)]]
    return float(sum(used.user + used.system for used in times))


if __name__ == "__main__":
    main()
