"""The seconds of a start of the ingest: `start_ingest` against bare reads of the same facts.

Table and checkpoint exist, and nothing is new in Kafka. `floor` reads with one bare statement each what a
start must know to continue exactly once, and starts the query. Facts of the stores are files of the
checkpoint, the table's columns, properties and newest commits, and whether a quarantine exists. The others
are the topics and offsets of the broker, and the newest schema. `bare` only starts the query. Each side has
a separate process, in rounds. Prints the seconds of the first start in a JVM, and of later ones, and the
ratio to `floor` with its spread.

    python -m bench.starts --starts 40 --rounds 3
"""

from __future__ import annotations

import json
import os
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import httpx
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from rich.table import Table

from bench.drain import start_spark
from bench.floor import FLOOR, gps_event
from bench.rounds import PROJECT, Run, console, in_rounds, own_services, separate_run, spread
from bench.topics import load as load_topics
from bench.topics import names, preload
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.ingest.start import start_ingest
from topiclake.kafka import client as kafka_client
from topiclake.kafka import source as kafka_source

SIDES = ("bare", FLOOR, "topiclake")
#: Number of records in the table.
RECORDS = 1000


def load(folder: Path) -> Settings:
    """Return a configuration that reads the topic into a table in `folder`."""
    parameters = {
        "env": "local",
        "topic": names(1)[0],
        "table_path": f"{folder}/table",
        "checkpoint_path": f"{folder}/checkpoint",
        "storage": folder.as_uri(),
    }
    return load_settings("gps", parameters, conf=PROJECT / "conf")


def start(side: str, spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Start the query of a side."""
    if side == "topiclake":
        return start_ingest(spark, settings)
    if side == FLOOR:
        read_facts(spark, settings)
    return start_bare(spark, settings)


def read_facts(spark: SparkSession, settings: Settings) -> None:
    """Read what a start must know, one fact after another."""
    checkpoint, table = Path(settings.pipeline.checkpoint_path), settings.pipeline.location
    if checkpoint.exists():
        folders = [f"{checkpoint}/offsets", f"{checkpoint}/commits"]
        files = spark.read.format("binaryFile").load(folders).inputFiles()
        newest = max(int(file.rpartition("/")[2]) for file in files)
        texts = [f"{checkpoint}/metadata", f"{checkpoint}/offsets/{newest}"]
        spark.read.text(texts, wholetext=True).collect()
        _ = spark.read.format("delta").load(table).schema
        spark.sql(f"SHOW TBLPROPERTIES delta.`{table}`").collect()
        spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 10").collect()
    with suppress(AnalysisException):
        spark.read.format("delta").load(settings.pipeline.quarantine_path)
    client, topic = AdminClient(kafka_client.client_settings(settings.kafka)), settings.pipeline.topic
    partitions = client.list_topics(topic).topics[topic].partitions
    specs: Any = OffsetSpec  # its methods have no types
    for at in (specs.earliest(), specs.latest()):
        asked = {TopicPartition(topic, partition): at for partition in partitions}
        for offsets in client.list_offsets(asked).values():
            offsets.result()
    subject = f"{settings.schema_registry.url}/subjects/{topic}-value/versions/latest"
    httpx.get(subject).raise_for_status()


def start_bare(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Start a query that decodes and appends with Spark and Delta alone."""

    def append(records: DataFrame, batch_id: int) -> None:
        ids = {"txnAppId": "starts", "txnVersion": str(batch_id)}
        rows = records.select(gps_event(), "partition", "offset")
        rows.write.format("delta").mode("append").options(**ids).save(settings.pipeline.location)

    options = kafka_source.reader_options(settings.kafka, settings.pipeline)
    records = spark.readStream.format("kafka").options(**options).load()
    writer = records.writeStream.foreachBatch(append)
    checkpoint = settings.pipeline.checkpoint_path
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def measure(side: str, starts: int, folder: Path) -> None:
    """Start the query of a side again and again; print the seconds of each start, and the table's rows."""
    spark = start_spark(side)
    settings = load(folder)
    seconds = []
    for _ in range(starts):
        began = time.perf_counter()
        query = start(side, spark, settings)
        seconds.append(time.perf_counter() - began)
        query.awaitTermination()
    rows = spark.read.format("delta").load(settings.pipeline.location).count()
    print(json.dumps({"starts": seconds, "rows": rows}))
    spark.stop()


def in_process(side: str, starts: int, home: Path) -> Run:
    """Call `measure` in a separate process, and return the printed result."""
    options = ["--starts", str(starts), "--side", side, "--folder", str(home / side)]
    run = separate_run(side, "bench.starts", *options)
    if run["rows"] != RECORDS:
        raise click.ClickException(f"the table of {side} has {run['rows']} rows, not {RECORDS}")
    return run


def later(run: Run) -> float:
    """Return the median of the second half of a run's starts; before, the JVM compiles."""
    seconds: list[float] = run["starts"]
    return statistics.median(seconds[len(seconds) // 2 :])


def report(results: dict[str, list[Run]], starts: int) -> None:
    """Print the medians; ratios are those within one round."""
    table = Table(title=f"starts with table and checkpoint, {starts} in a JVM")
    for column in ("", "first in a JVM, s", "ratio (min – max)", "later, s", "ratio (min – max)"):
        table.add_column(column, justify="right" if column else "left")
    for side, runs in results.items():
        pairs = list(zip(runs, results[FLOOR], strict=True))
        table.add_row(
            side,
            spread(run["starts"][0] for run in runs),
            spread(run["starts"][0] / floor["starts"][0] for run, floor in pairs),
            spread(later(run) for run in runs),
            spread(later(run) / later(floor) for run, floor in pairs),
        )
    console.print(table)
    console.print(f"each table has {RECORDS} rows")


@click.command()
@click.option("--starts", default=40, show_default=True, help="Starts in each JVM.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--side", type=click.Choice(SIDES), hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
def main(starts: int, rounds: int, side: str | None, folder: Path | None) -> None:
    """Run the rounds on a separate broker and registry."""
    if side is not None and folder is not None:
        measure(side, starts, folder)
        return
    with own_services("bench") as (home, addresses):
        os.environ |= addresses.environment()
        preload(load_topics(1, RECORDS, home), RECORDS)
        for name in SIDES:
            # The tables, for which no start is counted.
            in_process(name, 1, home)
        results = in_rounds(
            SIDES,
            rounds,
            lambda name: in_process(name, starts, home),
            lambda run: f"first {run['starts'][0]:.2f} s, later {later(run):.3f} s",
        )
        report(results, starts)


if __name__ == "__main__":
    main()
