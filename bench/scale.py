"""One worker against two: the same job on a cluster of Spark's and on S3, an executor of one core on each.

Preloads a topic and drains it in rounds, each side in a separate driver. The records are taxi trips in ten
partitions, made of the sample, or GPS records of about 51 bytes in four. Prints rows/s, seconds of a
micro-batch, calls to S3 by the store's own log, and the ratio of the rates with its spread. Counts and sums
of all tables must be equal, and those of the trips before they were sent. Not counted: the start of driver
and executors, and a first drain that warms them up. Broker, store, master and driver run on the same machine:
on one with two cores, the second executor uses the core that they had.

    python -m bench.scale --records 2000000 --batch-rows 500000 --rounds 3
    python -m bench.scale --records 112000000 --batch-rows 15000000 --rounds 1 --sides "2 workers"
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.streaming import StreamingQuery
from rich.table import Table

import topiclake as tl
from bench import gps_ingest
from bench.drain import batch_seconds, sums_of
from bench.gps_ingest import verify, warm_up
from bench.rounds import PROJECT, Run, console, in_rounds, own_services, secret, spread
from bench.s3_calls import LOG_SECONDS, calls_in
from topiclake import session
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.kafka import offsets as kafka_offsets
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import header
from topiclake_examples.taxi.trips import SAMPLE, TRIP_SCHEMAS, generate_trips, read_trips
from workbench.host.home import Home
from workbench.host.ports import HOST
from workbench.services.control import start_services
from workbench.services.s3_gateway import S3Gateway
from workbench.services.spark_cluster import (
    MASTER_VARIABLE,
    PROPERTIES_VARIABLE,
    SUBMIT_ARGUMENTS,
    cluster,
    submit_arguments,
)

#: How many executors of one core each side has; the second one is on the second worker.
SIDES = {"1 worker": 1, "2 workers": 2}
PIPELINES = ("taxi", "taxi_delta", "gps")
TAXI_PARTITIONS = 10
WARM_UP_RECORDS = 200_000


def load(pipeline: str, topic: str, folder: str, rows: int | None = None) -> Settings:
    """Return a pipeline's configuration for a folder of the bucket, and a number of rows a batch."""
    source = f"{os.environ['WORKBENCH_S3_SOURCE']}/{folder}"
    parameters = {"env": "local-s3", "topic": topic, "storage": source}
    settings = load_settings(pipeline, parameters, secrets=secret, conf=PROJECT / "conf")
    changed = settings.pipeline.model_copy(update={"max_offsets_per_trigger": rows})
    return settings.model_copy(update={"pipeline": changed})


def start_spark(conf: dict[str, str]) -> SparkSession:
    """Start a driver on loopback."""
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    quiet |= {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST}
    # All of them, for the seconds of each batch.
    quiet |= {"spark.sql.streaming.numRecentProgressUpdates": "1000000"}
    spark = session.local_session("scale", PROJECT / "jars", quiet | conf)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def preload(pipeline: str, topics: dict[str, int]) -> dict[str, list[Run]]:
    """Fill topics with the given numbers of records; return the sums of the last one's, if they are trips."""
    if pipeline == "gps":
        for topic, records in topics.items():
            gps_ingest.preload(load("gps", topic, "preload"), records)
        return {}
    spark = start_spark({})
    sample = read_trips(spark, (PROJECT / SAMPLE).as_uri())
    for topic, records in topics.items():
        # Without the column that came with the second version of the schema.
        trips = generate_trips(sample, records, 1).drop("congestion_surcharge")
        send_trips(load(pipeline, topic, "preload"), trips)
    sums = sums_of(trips)
    spark.stop()
    return {"generated": [{"sums": sums}]}


def send_trips(settings: Settings, trips: DataFrame) -> None:
    """Send trips as `publish_trips` does, without its ids: they would sort all trips twice."""
    topic, schema = settings.pipeline.topic, json.dumps(TRIP_SCHEMAS[17])
    tl.ensure_topic(settings.kafka, topic, TAXI_PARTITIONS)
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    schema_id = registry.register(f"{topic}-value", schema)
    value = F.concat(F.lit(header(schema_id)), to_avro(F.struct(*trips.columns), schema))
    records = trips.select(F.col("PULocationID").cast("string").alias("key"), value.alias("value"))
    sink = records.write.format("kafka").option("kafka.bootstrap.servers", settings.kafka.bootstrap_servers)
    sink.option("kafka.compression.type", "lz4").option("topic", topic).save()


def largest_share(pipeline: str, topic: str) -> float:
    """Return how many times the mean the topic's largest partition has."""
    settings = load(pipeline, topic, "preload")
    counts = [end - first for first, end in kafka_offsets.topic_offsets(settings.kafka, topic).values()]
    return max(counts) * len(counts) / sum(counts)


def drain(spark: SparkSession, settings: Settings) -> tuple[StreamingQuery, Callable[[], DataFrame]]:
    """Drain as the notebooks do; return the query, and what reads the rows."""
    tl.mount(None, settings.storage, spark)
    if settings.name == "taxi":
        archive = tl.start_archive(spark, settings)
        archive.await_caught_up()
        return archive.query, archive.rows
    query = tl.start_ingest(spark, settings)
    tl.await_caught_up(query, settings.pipeline.trigger)
    return query, partial(delta.read, spark, tl.table_path(settings))


def run_side(pipeline: str, topic: str, folder: str, rows: int, conf: dict[str, str]) -> None:
    """Drain the small topic, then the big one; print its cost, wait, and print the sums."""
    spark = start_spark(conf)
    drain(spark, load(pipeline, warm_up(topic), f"{folder}-warm-up", rows))
    print("warm", flush=True)
    sys.stdin.readline()
    started = time.monotonic()
    query, read_rows = drain(spark, load(pipeline, topic, folder, rows))
    cost = {"seconds": time.monotonic() - started, "batches": batch_seconds(query)}
    print(json.dumps(cost), flush=True)
    sys.stdin.readline()
    print(json.dumps(sums_of(read_rows())), flush=True)
    spark.stop()


def measured(pipeline: str, topic: str, folder: str, rows: int, conf: dict[str, str], log: Path) -> Run:
    """Run a side in a separate driver; count what it calls between its warm-up and its end."""
    command = [sys.executable, "-m", "bench.scale", "--pipeline", pipeline, "--topic", topic]
    command += ["--folder", folder, "--batch-rows", str(rows), "--conf", json.dumps(conf)]
    with subprocess.Popen(
        command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def next_line() -> str:
            assert child.stdout is not None
            if not (line := child.stdout.readline()):
                raise click.ClickException(f"the driver for {folder} failed")
            return line

        def go_on() -> None:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()

        next_line()
        time.sleep(LOG_SECONDS)
        before = log.stat().st_size
        go_on()
        cost = dict(json.loads(next_line()))
        time.sleep(LOG_SECONDS)
        calls = len(calls_in(log, before))
        go_on()
        return cost | {"calls": calls, "sums": json.loads(next_line())}


def report(results: dict[str, list[Run]], records: int, pipeline: str, share: float) -> None:
    """Print the figures; a ratio is that of rates within one round, to the first side."""
    first = next(iter(results.values()))
    rounds = len(first)
    title = f"{records:,} records of {pipeline}, {rounds} rounds, {os.cpu_count()} cores for everything"
    table = Table(title=title)
    for column in ("", "rows/s (median)", "min – max", "s per batch", "calls a batch", "ratio (min – max)"):
        table.add_column(column, justify="right" if column else "left")
    for side, runs in results.items():
        rates = [records / run["seconds"] for run in runs]
        ratios = [one["seconds"] / run["seconds"] for one, run in zip(first, runs, strict=True)]
        batch = statistics.median(seconds for run in runs for seconds in run["batches"])
        calls = statistics.median(run["calls"] / len(run["batches"]) for run in runs)
        table.add_row(
            side,
            f"{statistics.median(rates):,.0f}",
            f"{min(rates):,.0f} – {max(rates):,.0f}",
            f"{batch:.2f}",
            f"{calls:.1f}",
            spread(ratios),
        )
    console.print(table)
    console.print(f"the largest partition has {share:.2f} times the mean")
    console.print("counts and sums of all tables agree")


@click.command()
@click.option("--pipeline", type=click.Choice(PIPELINES), default="taxi", show_default=True)
@click.option("--records", default=2_000_000, show_default=True)
@click.option("--batch-rows", default=500_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--sides", "listed", default=",".join(SIDES), show_default=True)
@click.option("--topic", default="scale", hidden=True)
@click.option("--folder", help="Be the driver that drains into it (for the bench itself).")
@click.option("--conf", default="{}", hidden=True)
def main(
    pipeline: str,
    records: int,
    batch_rows: int,
    rounds: int,
    listed: str,
    topic: str,
    folder: str | None,
    conf: str,
) -> None:
    """Run the rounds on a separate broker, registry, store and cluster."""
    if folder:
        run_side(pipeline, topic, folder, batch_rows, json.loads(conf))
        return
    with own_services("scale", extras=("s3",)) as (own, addresses):
        os.environ |= addresses.environment()
        home = Home(addresses.home, PROJECT)
        log = S3Gateway(Home(own / "home", PROJECT)).access_log
        started = time.monotonic()
        generated = preload(pipeline, {warm_up(topic): WARM_UP_RECORDS, topic: records})
        console.print(f"preloaded {records:,} records in {time.monotonic() - started:.0f} s")
        services = cluster(home)
        start_services(home, services, console.print)
        exports = services[0].exports(home.load().ports)
        os.environ[SUBMIT_ARGUMENTS] = submit_arguments(exports[PROPERTIES_VARIABLE])
        sides = listed.split(",")
        turn = iter(range(rounds * len(sides)))

        def run(side: str) -> Run:
            of_side = {
                "spark.master": exports[MASTER_VARIABLE],
                "spark.cores.max": str(SIDES[side]),
                "spark.executor.cores": "1",
            }
            return measured(pipeline, topic, f"run-{next(turn)}", batch_rows, of_side, log)

        def describe(run: Run) -> str:
            rate = f"{records / run['seconds']:>12,.0f} rows/s"
            return f"{rate}, {len(run['batches'])} batches, {run['calls']} calls"

        results = in_rounds(sides, rounds, run, describe)
        verify(results | generated, records)
        report(results, records, pipeline, largest_share(pipeline, topic))


if __name__ == "__main__":
    main()
