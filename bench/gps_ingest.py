"""The article's code as it stands against Topiclake's ingest, on the same topic.

Preloads a topic with N GPS records (about 51 bytes each, 4 partitions, lz4), drains it in pairs, each side in
a process of its own, and prints rows/s, CPU seconds of Spark per million rows, and the ratio with its spread.
Not counted: the start of the JVM, and a first drain of 500,000 records by the same code, which warms it up.
The broker runs on the same cores.

    python -m bench.gps_ingest --records 5000000 --pairs 3
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import psutil
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from topiclake import avro, kafka, wire_format
from topiclake.config import load_settings
from topiclake.pipelines import gps
from topiclake.schema_registry import SchemaRegistry
from topiclake.settings import Settings

PROJECT = Path(__file__).resolve().parent.parent
SEED = 20190101
TOPIC, WARM_UP_TOPIC = "gps", "gps-warm-up"
WARM_UP_RECORDS = 500_000
SIDES = ("article", "topiclake")
console = Console()


def values(schema_id: int, tracks: list[list[gps.GpsEvent]], records: int) -> Iterator[bytes]:
    """Yield framed values: the real points, moved a little for each tracker, so that values do not repeat."""
    points = [point for track in tracks for point in track]
    chance = random.Random(SEED)
    start = wire_format.header(schema_id)
    for number in range(records):
        point = points[number % len(points)]
        device = f"device-{number % 1000:04d}".encode()
        moved = chance.random() / 1000
        yield b"".join(
            (
                start,
                avro.zigzag(1_546_300_800_000 + number),
                avro.zigzag(len(device)),
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


def preload(settings: Settings, records: int) -> None:
    """Fill the topic and register its schema."""
    topic = settings.pipeline.topic
    kafka.ensure_topic(settings.kafka, topic, 4)
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    schema_id = registry.register(f"{topic}-value", json.dumps(gps.GPS_SCHEMA))
    tracks = gps.read_tracks(PROJECT / "data" / "gps_tracks.csv")
    producer = Producer(
        kafka.client_settings(settings.kafka)
        | {"compression.type": "lz4", "linger.ms": 50, "batch.num.messages": 20_000}
    )
    for number, value in enumerate(values(schema_id, tracks, records)):
        while True:
            try:
                producer.produce(topic, value=value, partition=number // 1000 % 4)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def load(topic: str) -> Settings:
    """Return the GPS pipeline's configuration, for another topic."""
    return load_settings("gps", {"env": "local", "topic": topic}, conf=PROJECT / "conf")


def drain(side: str, folder: Path) -> dict[str, Any]:
    """Drain the topic in a process of its own, and return seconds and CPU seconds."""
    target = folder / side
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-m", "bench.drain", side, str(target)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{side} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def report(results: dict[str, list[dict[str, Any]]], records: int) -> float:
    """Print the figures, and return the median ratio of rates (topiclake / article)."""
    table = Table(title=f"{records:,} GPS records, {len(results['article'])} pairs")
    for column in ("", "rows/s (median)", "min – max", "CPU s per million rows"):
        table.add_column(column, justify="left" if not column else "right")
    for side in SIDES:
        rates = [records / run["seconds"] for run in results[side]]
        cpu = statistics.median(run["cpu_seconds"] for run in results[side]) / records * 1e6
        table.add_row(
            side, f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f} – {max(rates):,.0f}", f"{cpu:.2f}"
        )
    console.print(table)
    pairs = zip(results["article"], results["topiclake"], strict=True)
    ratios = [article["seconds"] / ours["seconds"] for article, ours in pairs]
    median = float(statistics.median(ratios))
    console.print(
        f"ratio topiclake / article: {median:.2f} (pairs: {min(ratios):.2f} – {max(ratios):.2f}); "
        "counts and sums of both tables agree"
    )
    return median


@click.command()
@click.option("--records", default=5_000_000, show_default=True)
@click.option("--pairs", default=3, show_default=True)
def main(records: int, pairs: int) -> None:
    """Run the pairs on a broker and a registry of their own."""
    from workbench.home import Home
    from workbench.services import down, up

    with tempfile.TemporaryDirectory(prefix="topiclake-bench-") as folder:
        home = Home(Path(folder) / "home", PROJECT)
        try:
            os.environ |= up(home, console.print).environment()
            started = time.monotonic()
            preload(load(WARM_UP_TOPIC), WARM_UP_RECORDS)
            preload(load(TOPIC), records)
            console.print(f"preloaded {records:,} records in {time.monotonic() - started:.0f} s")
            results: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
            for pair in range(pairs):
                order = SIDES if pair % 2 == 0 else SIDES[::-1]
                for side in order:
                    run = drain(side, Path(folder))
                    results[side].append(run)
                    console.print(
                        f"  pair {pair + 1}: {side:9} {records / run['seconds']:>12,.0f} rows/s, "
                        f"CPU {run['cpu_seconds']:.1f} s"
                    )
            verify(results, records)
            report(results, records)
        finally:
            down(home)


def verify(results: dict[str, list[dict[str, Any]]], records: int) -> None:
    """Check that every run of both sides holds the same rows: count, and sums of each column."""
    checks = [run["sums"] for side in SIDES for run in results[side]]
    if any(check != checks[0] for check in checks) or checks[0][0] != records:
        raise click.ClickException(f"the tables differ, or do not hold {records:,} rows: {checks}")


def cpu_seconds() -> float:
    """Return the CPU time of this process and its JVM."""
    own = psutil.Process()
    times = [process.cpu_times() for process in [own, *own.children(recursive=True)]]
    return float(sum(used.user + used.system for used in times))


if __name__ == "__main__":
    main()
