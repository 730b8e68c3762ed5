"""The costs of a micro-batch when the subject of the topic has many versions.

A version is GPS with some of ten optional fields, so each has another writer, and the newest has all fields.
A side is a topic whose subject has that number of versions. Of ten records of a topic, nine are of its newest
version, and one is of its oldest. Each side drains its topic in a separate process, in rounds. Prints the
seconds of the first batch, the median of the later ones (Spark's `triggerExecution`), and their ratio to the
first side with its spread. Not counted: batches that warm the JVM up.

    python -m bench.schema_versions --versions 1,1000 --batches 60 --rounds 3
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
from pathlib import Path

import click
from confluent_kafka import Producer
from pyspark.sql import functions as F
from rich.table import Table

from bench.drain import batch_seconds, start_spark, topiclake
from bench.gps_ingest import values
from bench.rounds import PROJECT, Run, console, in_rounds, own_services, separate_run, spread
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.kafka.admin import ensure_topic
from topiclake.kafka.client import client_settings
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake_examples.gps import tracks as gps_tracks

ROWS = 1_000
WARM_UP_BATCHES = 10
FIELDS = 10
MOST_VERSIONS = 2**FIELDS
#: Each tenth record is of the oldest version.
OLD = 10


def schema(fields: int) -> str:
    """Return GPS with those optional fields whose bits are set."""
    optional = [
        {"name": f"optional_{bit}", "type": ["null", "double"], "default": None}
        for bit in range(FIELDS)
        if fields >> bit & 1
    ]
    return json.dumps(gps_tracks.GPS_SCHEMA | {"fields": [*gps_tracks.GPS_SCHEMA["fields"], *optional]})


def load(versions: int, folder: Path) -> Settings:
    """Return the GPS pipeline's configuration for the topic of a side, and a folder."""
    parameters = {
        "env": "local",
        "topic": f"versions-{versions}",
        "storage": folder.as_uri(),
        "max_offsets_per_trigger": str(ROWS),
    }
    return load_settings("gps", parameters, conf=PROJECT / "conf")


def preload(settings: Settings, versions: int, records: int) -> None:
    """Register the versions, and fill the topic."""
    topic = settings.pipeline.topic
    ensure_topic(settings.kafka, topic, 1)
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    fields = range(MOST_VERSIONS - versions, MOST_VERSIONS)
    ids = [registry.register(f"{topic}-value", schema(number)) for number in fields]
    tracks = gps_tracks.read_tracks(PROJECT / "data" / "gps_tracks.csv")
    producer = Producer(client_settings(settings.kafka))
    old, new = values([ids[0]], tracks, records), values([ids[-1]], tracks, records)
    for number, (of_oldest, of_newest) in enumerate(zip(old, new, strict=True)):
        value, version = (of_oldest, fields[0]) if number % OLD == 0 else (of_newest, fields[-1])
        # Each optional field is null, the first member of its union.
        producer.produce(topic, value=value + bytes(version.bit_count()))
        producer.poll(0)
    producer.flush()


def drain(versions: int, folder: Path) -> None:
    """Drain the topic of a side, and print the seconds of its batches, and the count and sum of its rows."""
    spark, settings = start_spark("topiclake"), load(versions, folder)
    query = topiclake(spark, settings)
    rows = spark.read.format("delta").load(f"{folder}/delta/gps")
    sums = rows.agg(F.count("*"), F.sum("_kafka.offset"), F.countDistinct("_kafka.offset")).collect()[0]
    print(json.dumps({"batches": batch_seconds(query), "sums": list(sums)}))
    spark.stop()


def in_process(versions: int, folder: Path) -> Run:
    """Call `drain` in a separate process, and return the printed result."""
    target = folder / str(versions)
    shutil.rmtree(target, ignore_errors=True)
    options = ["--side", str(versions), "--folder", str(target)]
    return separate_run(f"{versions} versions", "bench.schema_versions", *options)


def report(results: dict[str, list[Run]], batches: int) -> None:
    """Print the medians; ratios are those within one round."""
    later = {
        side: [statistics.median(run["batches"][WARM_UP_BATCHES:]) for run in runs]
        for side, runs in results.items()
    }
    first_side = next(iter(later.values()))
    table = Table(title=f"{batches} batches of {ROWS:,} rows")
    for column in ("versions", "first batch, s", "later batches, s (min – max)", "ratio (min – max)"):
        table.add_column(column, justify="right")
    for side, runs in results.items():
        first = statistics.median(run["batches"][0] for run in runs)
        ratios = [own / other for own, other in zip(later[side], first_side, strict=True)]
        table.add_row(side, f"{first:.1f}", spread(later[side]), spread(ratios))
    console.print(table)
    console.print("each table has each record once")


@click.command()
@click.option("--versions", "listed", default="1,1000", show_default=True, help="Versions of each side.")
@click.option("--batches", default=60, show_default=True, help=f"{WARM_UP_BATCHES} of them do not count.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--side", type=int, hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
def main(listed: str, batches: int, rounds: int, side: int | None, folder: Path | None) -> None:
    """Run the rounds on a separate broker and registry."""
    if side is not None and folder is not None:
        drain(side, folder)
        return
    records = batches * ROWS
    with own_services("bench") as (home, addresses):
        os.environ |= addresses.environment()
        for versions in listed.split(","):
            preload(load(int(versions), home), int(versions), records)
        results = in_rounds(
            listed.split(","),
            rounds,
            lambda name: in_process(int(name), home),
            lambda run: f"median {statistics.median(run['batches'][WARM_UP_BATCHES:]):.3f} s",
        )
        expected = [records, records * (records - 1) // 2, records]
        if any(run["sums"] != expected for runs in results.values() for run in runs):
            raise click.ClickException(f"a table does not have each of {records:,} records once")
        report(results, batches)


if __name__ == "__main__":
    main()
