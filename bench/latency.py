"""The time from a producer's clock to the commit with the record, while records arrive at a steady rate.

A producer sends GPS records with its time. The sides of bench/race.py read them as fast as they go, and the
plain consumer and the Iceberg sink commit at an interval. The way of a record ends when the table has the
file of the commit: that file's modification time. `floor` decodes with `from_avro` alone and appends in
foreachBatch, with Delta's transaction id. Each side has a separate process, in rounds. Prints the median of
the rounds with its spread. All records must have arrived once. Not counted: the records of the first seconds,
in which the JVM warms up.

    python -m bench.latency --rate 10000 --seconds 60 --rounds 3
    python -m bench.latency --rate 100000 --sides floor,topiclake
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from pyspark.sql.streaming import StreamingQuery
from rich.table import Table

from bench import articles, gps_ingest, plain_consumer
from bench.drain import batch_seconds, start_spark
from bench.floor import FLOOR, start_gps
from bench.iceberg_sink import Sink
from bench.race import ARTICLE, ICEBERG, OURS, PLAIN
from bench.rounds import PROJECT, Run, console, in_rounds, own_services, spread
from topiclake.config.settings import Settings
from topiclake.formats.avro.decoding import zigzag
from topiclake.ingest.start import start_ingest
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import header
from topiclake_examples.gps import tracks as gps_tracks

PARTITIONS = 2
SIDES = (FLOOR, ARTICLE, PLAIN, ICEBERG, OURS)
#: As fast as the query goes.
TRIGGER = "0 seconds"
#: Number of different records, which are sent again and again.
DIFFERENT = 100_000
#: In which records are sent, in seconds.
TICK = 0.01
#: Of the compiler and the caches, in seconds.
WARM_UP = 30
#: Says that a side reads.
READY = "ready"


def load(topic: str, folder: Path) -> Settings:
    """Return a configuration that reads a topic as fast as it goes, with a folder as its store."""
    settings = gps_ingest.load(topic, folder=folder)
    pipeline = settings.pipeline.model_copy(update={"trigger": TRIGGER})
    return settings.model_copy(update={"pipeline": pipeline})


def read(side: str, folder: Path) -> None:
    """Read the topic of a folder by one side until the input has a line, and then the remaining records."""
    settings = load(folder.name, folder)
    if side == PLAIN:
        _read_by_python(settings, folder)
        return
    spark = start_spark(side)
    starts: dict[str, Callable[..., StreamingQuery]] = {
        FLOOR: partial(start_gps, trigger=TRIGGER),
        ARTICLE: articles.follow_avro,
        OURS: start_ingest,
    }
    query = starts[side](spark, settings)
    query.processAllAvailable()
    print(READY, flush=True)
    sys.stdin.readline()
    query.processAllAvailable()
    print(json.dumps({"batches": batch_seconds(query)}))
    query.stop()
    spark.stop()


def _read_by_python(settings: Settings, folder: Path) -> None:
    topic, stop = settings.pipeline.topic, folder / "stop"
    schema = SchemaRegistry.from_settings(settings.schema_registry).latest(f"{topic}-value").schema
    kafka = kafka_client.client_settings(settings.kafka)
    table = str(table_folder(settings))
    with ThreadPoolExecutor() as threads:
        reading = threads.submit(plain_consumer.follow, kafka, topic, PARTITIONS, schema, table, stop)
        print(READY, flush=True)
        sys.stdin.readline()
        stop.touch()
        reading.result()
    print(json.dumps({"batches": []}))


def table_folder(settings: Settings) -> Path:
    """Return the folder of a Delta side's table."""
    return Path(urlsplit(settings.storage.source).path) / "delta" / "gps"


def commit_times(table: Path) -> dict[str, float]:
    """Return by data file of a Delta table the time of the commit that adds it, in seconds since 1970."""
    times = {}
    for file in (table / "_delta_log").glob("*.json"):
        for line in file.read_text("utf-8").splitlines():
            if added := json.loads(line).get("add"):
                times[str(table / unquote(added["path"]))] = file.stat().st_mtime
    return times


def latencies(commits: dict[str, float], since_ms: int) -> Run:
    """Return quantiles of the seconds from a record's time to its commit, and all records' count and sum.

    Args:
        commits: By data file, the time of its commit.
        since_ms: The time of the first record that counts for the quantiles, in milliseconds since 1970.
    """
    seconds, records, total = [], 0, 0
    for file, committed in commits.items():
        times = pq.read_table(file, columns=["timestamp"])["timestamp"]
        sent_ms = times.cast(pa.timestamp("ms", times.type.tz)).cast("int64").to_numpy()
        seconds.append(committed - sent_ms[sent_ms >= since_ms] / 1000)
        records, total = records + len(sent_ms), total + int(sent_ms.sum())
    return {
        "sums": (records, total),
        "quantiles": np.quantile(np.concatenate(seconds), [0.5, 0.99, 1.0]).tolist(),
    }


def preload(settings: Settings) -> tuple[bytes, list[bytes]]:
    """Create the topic and its subject.

    Returns:
        The header of each value, and the bytes after its time, which are sent again and again.
    """
    topic = settings.pipeline.topic
    kafka_admin.ensure_topic(settings.kafka, topic, PARTITIONS)
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    schema_id = registry.register(f"{topic}-value", json.dumps(gps_tracks.GPS_SCHEMA))
    tracks = gps_tracks.read_tracks(PROJECT / "data" / "gps_tracks.csv")
    return header(schema_id), list(gps_ingest.after_times(tracks, DIFFERENT))


def send(settings: Settings, start: bytes, rests: list[bytes], rate: int, seconds: float) -> tuple[int, int]:
    """Send records with their time at a steady rate; return their number, and the sum of their times."""
    producer = Producer(kafka_client.client_settings(settings.kafka) | {"linger.ms": 5})
    began, sent, times, following = time.monotonic(), 0, 0, cycle(rests)
    while (elapsed := time.monotonic() - began) < seconds:
        due, now_ms = int(elapsed * rate) - sent, time.time_ns() // 1_000_000
        first = start + zigzag(now_ms)
        for number in range(due):
            value = first + next(following)
            producer.produce(settings.pipeline.topic, value=value, partition=number % PARTITIONS)
        sent, times = sent + due, times + due * now_ms
        producer.poll(0)
        time.sleep(TICK)
    producer.flush()
    return sent, times


def measure(side: str, home: Path, rate: int, seconds: float) -> Run:
    """Send records while one side reads them; return the latencies.

    Raises:
        ClickException: The side failed, or its table has other records.
    """
    topic = f"latency-{time.time_ns()}"
    folder = home / topic
    folder.mkdir()
    settings = load(topic, folder)
    start, rests = preload(settings)
    run: Run = {"batches": []}

    def send_all() -> tuple[int, tuple[int, int]]:
        since_ms = round((time.time() + WARM_UP) * 1000)
        return since_ms, send(settings, start, rests, rate, WARM_UP + seconds)

    if side == ICEBERG:
        sink = Sink(folder, settings)
        with sink.worker() as worker:
            since_ms, sent = send_all()
            sink.await_rows(worker, sent[0])
        commits = sink.commit_times()
    else:
        with reader(side, folder) as ended:
            since_ms, sent = send_all()
            run = ended()
        commits = commit_times(table_folder(settings))
    run |= latencies(commits, since_ms)
    if run["sums"] != sent:
        raise click.ClickException(f"{side}: count and sum are {run['sums']}, and {sent} were sent")
    return run


@contextmanager
def reader(side: str, folder: Path) -> Iterator[Callable[[], Run]]:
    """Start a side in a separate process, which reads; the function ends it and returns what it prints."""
    command = [sys.executable, "-m", "bench.latency", "--side", side, "--folder", str(folder)]
    with (folder / "errors").open("w+") as errors, piped(command, errors) as process:
        assert process.stdout is not None
        if not any(line.strip() == READY for line in process.stdout):
            raise _failed(side, errors)

        def end() -> Run:
            output, _ = process.communicate("\n")
            if process.returncode:
                raise _failed(side, errors)
            return dict(json.loads(output.splitlines()[-1]))

        yield end


def piped(command: list[str], errors: IO[str]) -> subprocess.Popen[str]:
    """Start a command whose input and output are pipes."""
    return subprocess.Popen(
        command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
    )


def _failed(side: str, errors: IO[str]) -> click.ClickException:
    errors.seek(0)
    return click.ClickException(f"{side} failed:\n{errors.read()[-3000:]}")


def report(results: dict[str, list[Run]], rate: int) -> None:
    """Print the medians of the rounds; ratios are those to the first side within one round."""
    first, *_ = results.values()
    table = Table(title=f"{rate:,} records/s, trigger {TRIGGER}, {len(first)} rounds")
    for column in ("", "p50, s (min – max)", "p99, s (min – max)", "longest, s", "batch, s", "ratio of p50"):
        table.add_column(column, justify="right" if column else "left")
    for side, runs in results.items():
        p50, p99, longest = ([run["quantiles"][number] for run in runs] for number in range(3))
        ratios = [own / run["quantiles"][0] for own, run in zip(p50, first, strict=True)]
        batches = [seconds for run in runs for seconds in run["batches"]]
        batch = f"{statistics.median(batches):.2f}" if batches else ""
        table.add_row(side, spread(p50), spread(p99), f"{max(longest):.2f}", batch, spread(ratios))
    console.print(table)
    console.print("each record arrived once")


@click.command()
@click.option("--rate", default=10_000, show_default=True, help="Records per second.")
@click.option("--seconds", default=60.0, show_default=True, help="After the JVM has warmed up.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--sides", default=",".join(SIDES), show_default=True)
@click.option("--side", type=click.Choice(SIDES), hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
def main(rate: int, seconds: float, rounds: int, sides: str, side: str | None, folder: Path | None) -> None:
    """Run the rounds on a separate broker and registry."""
    if side is not None and folder is not None:
        read(side, folder)
        return
    with own_services("latency") as (home, addresses):
        os.environ |= addresses.environment()
        results = in_rounds(
            sides.split(","),
            rounds,
            lambda name: measure(name, home, rate, seconds),
            lambda run: "p50 {:.2f} s, p99 {:.2f} s, longest {:.2f} s".format(*run["quantiles"]),
        )
        report(results, rate)


if __name__ == "__main__":
    main()
