"""The time from the producer's clock to the commit with the record, while records arrive at a steady rate.

A producer sends GPS records; Kafka keeps its clock as their timestamp. A query reads them as fast as it goes.
The way of a record ends when the table's log has the file of the commit: that file's modification time.
`floor` decodes with `from_avro` alone and appends in foreachBatch, with Delta's transaction id. Each side has
a separate process, in rounds. Prints the median of the rounds with its spread. Not counted: the records of
the first seconds, in which the JVM warms up.

    python -m bench.latency --rate 10000 --seconds 60 --rounds 3
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import IO

import click
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from rich.table import Table

from bench.drain import batch_seconds, start_spark
from bench.gps_ingest import values
from bench.rounds import PROJECT, Run, console, in_rounds, own_services, spread
from bench.topics import gps_event
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.ingest.start import start_ingest
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.kafka import source as kafka_source
from topiclake.local_frame import local_frame
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake_examples.gps import tracks as gps_tracks

PARTITIONS = 2
SIDES = ("floor", "topiclake")
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
    """Return a configuration that reads a topic into a table in `folder`, with the records' timestamps."""
    parameters = {
        "env": "local",
        "topic": topic,
        "table_path": f"{folder}/table",
        "checkpoint_path": f"{folder}/checkpoint",
        "storage": folder.as_uri(),
        "trigger": TRIGGER,
        "kafka_fields": "partition,offset,timestamp",
    }
    return load_settings("gps", parameters, conf=PROJECT / "conf")


def floor(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Read with Spark and Delta alone: no registry, no check of a record."""
    options = kafka_source.reader_options(settings.kafka, settings.pipeline)
    records = spark.readStream.format("kafka").options(**options).load()
    writer = records.writeStream.foreachBatch(partial(_append, settings.pipeline.location))
    return (
        writer.option("checkpointLocation", settings.pipeline.checkpoint_path)
        .trigger(processingTime=TRIGGER)
        .start()
    )


def _append(table: str, records: DataFrame, batch_id: int) -> None:
    rows = records.select(gps_event(), F.struct("partition", "offset", "timestamp").alias("_kafka"))
    ids = {"txnAppId": "latency", "txnVersion": str(batch_id)}
    rows.select("event.*", "_kafka").write.format("delta").mode("append").options(**ids).save(table)


def read(side: str, folder: Path) -> None:
    """Read the topic of a folder by one side, until the input says what to count; print the latencies."""
    spark = start_spark(side)
    settings = load(folder.name, folder)
    query = floor(spark, settings) if side == "floor" else start_ingest(spark, settings)
    query.processAllAvailable()
    print(READY, flush=True)
    since_ms = int(sys.stdin.readline())
    query.processAllAvailable()
    batches = batch_seconds(query)
    query.stop()
    print(json.dumps(latencies(spark, folder / "table", since_ms) | {"batches": batches}))
    spark.stop()


def latencies(spark: SparkSession, table: Path, since_ms: int) -> Run:
    """Return the quantiles of the seconds of records since a time, and how many rows and records exist."""
    rows = spark.read.format("delta").load(str(table))
    files = local_frame(spark, list(commit_times(table).items()), "file_name STRING, committed DOUBLE")
    sent = F.unix_millis("_kafka.timestamp") / 1000
    columns = ("_metadata.file_name", "_kafka.partition", "_kafka.offset", sent.alias("sent"))
    timed = rows.select(*columns).join(F.broadcast(files), "file_name")
    counted = F.col("sent") >= since_ms / 1000
    quantiles = F.percentile(F.when(counted, F.col("committed") - F.col("sent")), [0.5, 0.99, 1.0])
    records = F.count_distinct("partition", "offset")
    ((rows_in_all, different, found),) = timed.agg(F.count("*"), records, quantiles).collect()
    return {"rows": rows_in_all, "records": different, "quantiles": list(found)}


def commit_times(table: Path) -> dict[str, float]:
    """Return by data file the time of the commit that adds it, in seconds since 1970."""
    times = {}
    for file in (table / "_delta_log").glob("*.json"):
        for line in file.read_text("utf-8").splitlines():
            if added := json.loads(line).get("add"):
                times[added["path"].rpartition("/")[2]] = file.stat().st_mtime
    return times


def preload(settings: Settings) -> list[bytes]:
    """Create the topic and its subject, and return the values that are sent again and again."""
    topic = settings.pipeline.topic
    kafka_admin.ensure_topic(settings.kafka, topic, PARTITIONS)
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    schema_id = registry.register(f"{topic}-value", json.dumps(gps_tracks.GPS_SCHEMA))
    return list(values([schema_id], gps_tracks.read_tracks(PROJECT / "data" / "gps_tracks.csv"), DIFFERENT))


def send(settings: Settings, payloads: list[bytes], rate: int, seconds: float) -> int:
    """Send records at a steady rate for some seconds, and return their number."""
    producer = Producer(kafka_client.client_settings(settings.kafka) | {"linger.ms": 5})
    began, sent, following = time.monotonic(), 0, cycle(payloads)
    while (elapsed := time.monotonic() - began) < seconds:
        for _ in range(int(elapsed * rate) - sent):
            producer.produce(settings.pipeline.topic, value=next(following), partition=sent % PARTITIONS)
            sent += 1
        producer.poll(0)
        time.sleep(TICK)
    producer.flush()
    return sent


def measure(side: str, home: Path, rate: int, seconds: float) -> Run:
    """Send records while one side reads them in a separate process, and return what that prints."""
    topic = f"latency-{time.time_ns()}"
    folder = home / topic
    folder.mkdir()
    settings = load(topic, folder)
    payloads = preload(settings)
    command = [sys.executable, "-m", "bench.latency", "--side", side, "--folder", str(folder)]
    with (folder / "errors").open("w+") as errors, piped(command, errors) as reader:
        assert reader.stdout is not None
        if not any(line.strip() == READY for line in reader.stdout):
            raise _failed(side, errors)
        since_ms = round((time.time() + WARM_UP) * 1000)
        sent = send(settings, payloads, rate, WARM_UP + seconds)
        output, _ = reader.communicate(f"{since_ms}\n")
        if reader.returncode:
            raise _failed(side, errors)
    run = dict(json.loads(output.splitlines()[-1]))
    if (run["rows"], run["records"]) != (sent, sent):
        found = f"the table has {run['rows']:,} rows of {run['records']:,} records"
        raise click.ClickException(f"{side}: {sent:,} records were sent, and {found}")
    return run


def piped(command: list[str], errors: IO[str]) -> subprocess.Popen[str]:
    """Start a command whose input and output are pipes."""
    return subprocess.Popen(
        command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
    )


def _failed(side: str, errors: IO[str]) -> click.ClickException:
    errors.seek(0)
    return click.ClickException(f"{side} failed:\n{errors.read()[-3000:]}")


def report(results: dict[str, list[Run]], rate: int) -> None:
    """Print the medians of the rounds; ratios are those within one round."""
    table = Table(title=f"{rate:,} records/s, trigger {TRIGGER}, {len(results[SIDES[0]])} rounds")
    for column in ("", "p50, s (min – max)", "p99, s (min – max)", "longest, s", "batch, s", "ratio of p50"):
        table.add_column(column, justify="right" if column else "left")
    for side, runs in results.items():
        p50, p99, longest = ([run["quantiles"][number] for run in runs] for number in range(3))
        ratios = [own / run["quantiles"][0] for own, run in zip(p50, results[SIDES[0]], strict=True)]
        batch = statistics.median(seconds for run in runs for seconds in run["batches"])
        table.add_row(side, spread(p50), spread(p99), f"{max(longest):.2f}", f"{batch:.2f}", spread(ratios))
    console.print(table)
    console.print("each record arrived once")


@click.command()
@click.option("--rate", default=10_000, show_default=True, help="Records per second.")
@click.option("--seconds", default=60.0, show_default=True, help="After the JVM has warmed up.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--side", type=click.Choice(SIDES), hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
def main(rate: int, seconds: float, rounds: int, side: str | None, folder: Path | None) -> None:
    """Run the rounds on a separate broker and registry."""
    if side is not None and folder is not None:
        read(side, folder)
        return
    with own_services("latency") as (home, addresses):
        os.environ |= addresses.environment()
        results = in_rounds(
            SIDES,
            rounds,
            lambda name: measure(name, home, rate, seconds),
            lambda run: "p50 {:.2f} s, p99 {:.2f} s, longest {:.2f} s".format(*run["quantiles"]),
        )
        report(results, rate)


if __name__ == "__main__":
    main()
