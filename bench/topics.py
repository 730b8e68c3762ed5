"""The costs of a micro-batch of many topics: Topiclake's ingest against bare Delta appends of the same rows.

Preloads the topics and drains them in batches with the same number of records of each topic, each side in a
separate process, in rounds. `floor` decodes with `from_avro` alone and appends the rows of each topic in
foreachBatch, as many commits side by side as the ingest makes. `floor+id` has Delta's transaction id in each
commit, without which a repeated batch would double its rows. `one fails` is the ingest with a topic whose
table cannot be written. Prints the median seconds of a batch (Spark's `triggerExecution`), and the ratio to
`floor+id` with its spread. Not counted: the first batch, which creates the tables.

    python -m bench.topics --topics 100 --records 50 --batches 3
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from rich.table import Table

from bench import floor as bench_floor
from bench.drain import batch_seconds, start_spark, topiclake
from bench.floor import FLOOR, gps_event, kafka_column
from bench.gps_ingest import values
from bench.rounds import PROJECT, Run, console, in_rounds, own_services, separate_run, spread
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.ingest.multi_topic import MAX_THREADS
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake_examples.gps import tracks as gps_tracks

WITH_ID = f"{FLOOR}+id"
ONE_FAILS = "one fails"
SIDES = (FLOOR, WITH_ID, "topiclake", ONE_FAILS)


def names(topics: int) -> list[str]:
    """Return the names of the topics."""
    return [f"topics-{number:03d}" for number in range(topics)]


def load(topics: int, records: int, folder: Path) -> Settings:
    """Return a configuration that reads `records` of each topic in a batch, into tables in `folder`."""
    parameters = {
        "env": "local",
        "topic": ",".join(names(topics)),
        "table_path": f"{folder}/tables/{{topic}}",
        "checkpoint_path": f"{folder}/checkpoint",
        "storage": folder.as_uri(),
        "max_offsets_per_trigger": str(topics * records),
    }
    return load_settings("gps", parameters, conf=PROJECT / "conf")


def preload(settings: Settings, records: int) -> None:
    """Create the topics with `records` records each, and a subject with a separate schema for each topic."""
    client = kafka_client.client_settings(settings.kafka)
    topics = settings.pipeline.topics
    admin = AdminClient(client)
    for created in admin.create_topics([NewTopic(topic, 1) for topic in topics]).values():
        created.result()
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    tracks = gps_tracks.read_tracks(PROJECT / "data" / "gps_tracks.csv")
    # Room for all records, which are sent without a pause.
    producer = Producer(client | {"queue.buffering.max.messages": 10_000_000})
    for topic in topics:
        schema_id = registry.register(f"{topic}-value", json.dumps(gps_tracks.GPS_SCHEMA | {"doc": topic}))
        for value in values([schema_id], tracks, records):
            producer.produce(topic, value=value)
        producer.poll(0)
    producer.flush()


def floor(spark: SparkSession, settings: Settings, has_id: bool) -> StreamingQuery:
    """Drain with Spark and Delta alone."""
    append_batch = partial(_append, settings, has_id)
    query = bench_floor.start(spark, settings, append_batch, settings.pipeline.checkpoint_path)
    query.awaitTermination()
    return query


def _append(settings: Settings, has_id: bool, records: DataFrame, batch_id: int) -> None:
    """Append the rows of each topic, side by side; Kafka is read once."""
    cached = records.coalesce(os.cpu_count() or 2).persist()
    rows = cached.select("topic", gps_event(), kafka_column())

    def append(topic: str) -> None:
        of_topic = rows.where(F.col("topic") == topic).select("event.*", "_kafka")
        bench_floor.append(of_topic, _table(settings, topic), topic if has_id else None, batch_id)

    with ThreadPoolExecutor(MAX_THREADS) as threads:
        # Each call copies Spark's local properties, which threads must not share.
        appends = [
            threads.submit(inheritable_thread_target(records.sparkSession)(partial(append, topic)))
            for topic in settings.pipeline.topics
        ]
        for appended in appends:
            appended.result()
    cached.unpersist()


def _table(settings: Settings, topic: str) -> str:
    return settings.pipeline.location.replace("{topic}", topic)


def drain(side: str, topics: int, records: int, folder: Path) -> None:
    """Drain the topics by one side, and print the seconds of its batches and the rows of each table."""
    spark = start_spark(side)
    settings = load(topics, records, folder)
    written = list(settings.pipeline.topics)
    if side == ONE_FAILS:
        in_the_way = Path(_table(settings, written.pop(0)))
        in_the_way.parent.mkdir(parents=True)
        in_the_way.write_text("a file in place of the table")
    is_floor = side in (FLOOR, WITH_ID)
    started = time.monotonic()
    query = floor(spark, settings, side == WITH_ID) if is_floor else topiclake(spark, settings)
    seconds = time.monotonic() - started
    tables = [spark.read.format("delta").load(_table(settings, topic)) for topic in written]
    rows = [table.agg(F.count("*"), F.sum("_kafka.offset")).collect()[0] for table in tables]
    # The last batch of availableNow may be one without records.
    print(
        json.dumps({"seconds": seconds, "batches": batch_seconds(query), "sums": [list(row) for row in rows]})
    )
    spark.stop()


def in_process(side: str, topics: int, records: int, folder: Path) -> Run:
    """Call `drain` in a separate process, and return the printed result."""
    target = folder / side.replace(" ", "-")
    shutil.rmtree(target, ignore_errors=True)
    options = ["--topics", str(topics), "--records", str(records), "--side", side, "--folder", str(target)]
    return separate_run(side, "bench.topics", *options)


def report(results: dict[str, list[Run]], topics: int, records: int) -> None:
    """Print the medians; ratios are those within one round."""
    medians: dict[str, list[float]] = {
        side: [statistics.median(run["batches"][1:]) for run in runs] for side, runs in results.items()
    }
    base = WITH_ID if WITH_ID in results else next(iter(results))
    table = Table(title=f"{topics} topics, {records} records of each in a batch")
    for column in ("", "first batch, s", "later batches, s (min – max)", f"ratio to {base} (min – max)"):
        table.add_column(column, justify="right" if column else "left")
    for side, runs in results.items():
        first = statistics.median(run["batches"][0] for run in runs)
        ratios = [own / other for own, other in zip(medians[side], medians[base], strict=True)]
        later = [seconds for run in runs for seconds in run["batches"][1:]]
        table.add_row(side, f"{first:.1f}", spread(later), spread(ratios))
    console.print(table)
    console.print("counts and sums of all tables agree")


def verify(results: dict[str, list[Run]], topics: int, expected: int) -> None:
    """Check that each table of each run has each record of its topic once."""
    for side, runs in results.items():
        sums = [[expected, expected * (expected - 1) // 2]] * (topics - (side == ONE_FAILS))
        if any(run["sums"] != sums for run in runs):
            raise click.ClickException(f"tables of {side} do not have {expected} records each")


@click.command()
@click.option("--topics", default=100, show_default=True)
@click.option("--records", default=50, show_default=True, help="Records of each topic in a batch.")
@click.option("--batches", default=3, show_default=True, help="Batches after the first one.")
@click.option("--rounds", default=1, show_default=True)
@click.option("--sides", default=",".join(SIDES), show_default=True)
@click.option("--side", type=click.Choice(SIDES), hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
def main(
    topics: int, records: int, batches: int, rounds: int, sides: str, side: str | None, folder: Path | None
) -> None:
    """Run the rounds on a separate broker and registry."""
    if side is not None and folder is not None:
        drain(side, topics, records, folder)
        return
    with own_services("bench") as (home, addresses):
        os.environ |= addresses.environment()
        preload(load(topics, records, home), records * (batches + 1))
        results = in_rounds(
            sides.split(","),
            rounds,
            lambda name: in_process(name, topics, records, home),
            lambda run: "batches of " + ", ".join(f"{seconds:.1f}" for seconds in run["batches"]) + " s",
        )
        verify(results, topics, records * (batches + 1))
        report(results, topics, records)


if __name__ == "__main__":
    main()
