"""A race of programs that carry the same topics into tables: the article, others, Topiclake.

Three topics of 4 partitions (lz4): GPS records (about 55 bytes, Avro), and wide records of about 1.2 kB, as
Avro and as JSON. Each side drains each topic in a separate process, in rounds. `tuned article` is the
article's code with the consumer's settings of conf/base.yaml. `plain consumer` is bench/plain_consumer.py,
and `iceberg sink` is bench/iceberg_sink.py. Topiclake writes `_kafka`, too. Prints rows and bytes per second,
rows per CPU second, files, and the ratio to the article. The bytes are those of the records. All tables must
have the same counts and sums.

Not counted: the start of Spark, and the drain of a small topic that warms it up. The seconds of the Iceberg
sink include the start of its JVM. The broker runs on the same cores.

    python -m bench.race --records 5000000 --wide-records 500000 --rounds 3
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import statistics
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
import pyarrow.compute as pc
from deltalake import DeltaTable
from fastavro import parse_schema, schemaless_writer
from pyarrow.dataset import dataset
from rich.table import Table

from bench import articles, drain, gps_ingest, plain_consumer
from bench.iceberg_sink import Sink
from bench.rounds import PROJECT, Run, console, in_rounds, own_services, separate_run, spread
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import header

ARTICLE, PLAIN, ICEBERG, OURS = "article", "plain consumer", "iceberg sink", "topiclake"
SIDES = (ARTICLE, gps_ingest.TUNED, PLAIN, ICEBERG, OURS)
GPS, WIDE_AVRO, WIDE_JSON = TOPICS = ("gps", "wide-avro", "wide-json")
#: Part of a topic that warms a JVM up.
WARM_UP = 10
#: Number of different wide records, which are sent again and again.
DIFFERENT = 20_000
GPS_NUMBERS = ("latitude", "longitude", "altitude", "speed")
NUMBERS = tuple(f"number{number}" for number in range(6))
TEXTS = tuple(f"text{number}" for number in range(9))
#: The length of a text, so that a record has about 1.2 kB.
LENGTHS = {WIDE_AVRO: 122, WIDE_JSON: 95}
WIDE_SCHEMA = {
    "type": "record",
    "name": "Wide",
    "fields": [
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "id", "type": "long"},
        *({"name": name, "type": "double"} for name in NUMBERS),
        *({"name": name, "type": "string"} for name in TEXTS),
    ],
}
WIDE_DDL = ", ".join(
    (
        "timestamp TIMESTAMP",
        "id BIGINT",
        *(f"{name} DOUBLE" for name in NUMBERS),
        *(f"{name} STRING" for name in TEXTS),
    )
)


def load(topic: str, folder: Path | None = None) -> Settings:
    """Return the GPS pipeline's configuration for a topic, with a folder as its store."""
    if topic.startswith(GPS):
        return gps_ingest.load(topic, folder=folder)
    form = {"value_format": "json", "value_schema": WIDE_DDL} if topic.startswith(WIDE_JSON) else {}
    parameters = {"env": "local", "topic": topic, "table_properties": "{}", **form}
    if folder is not None:
        parameters["storage"] = folder.as_uri()
    return load_settings("gps", parameters, conf=PROJECT / "conf")


def wide_records(length: int) -> Iterator[dict[str, Any]]:
    """Yield different records; their texts have words of a vocabulary, as texts do."""
    chance = random.Random(length)
    words = [
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(5000)
    ]
    for number in range(DIFFERENT):
        yield {
            "timestamp": datetime.fromtimestamp(1_750_000_000 + number / 1000, timezone.utc),
            "id": number,
            **{name: chance.random() * 1000 for name in NUMBERS},
            **{name: " ".join(chance.choices(words, k=length // 4))[:length] for name in TEXTS},
        }


def wide_values(settings: Settings) -> list[bytes]:
    """Return the values of different records, as Avro in Confluent's wire format, or as JSON."""
    topic = settings.pipeline.topic
    if topic.startswith(WIDE_JSON):
        rows = wide_records(LENGTHS[WIDE_JSON])
        return [json.dumps(row, default=datetime.isoformat).encode() for row in rows]
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    start = header(registry.register(f"{topic}-value", json.dumps(WIDE_SCHEMA)))
    schema, values = parse_schema(WIDE_SCHEMA), []
    for row in wide_records(LENGTHS[WIDE_AVRO]):
        value = io.BytesIO()
        schemaless_writer(value, schema, row)
        values.append(start + value.getvalue())
    return values


def preload(topic: str, records: int) -> int:
    """Fill a topic; return the bytes of its values."""
    settings = load(topic)
    if topic.startswith(GPS):
        return gps_ingest.preload(settings, records)
    values = wide_values(settings)
    return gps_ingest.send(settings, (values[number % DIFFERENT] for number in range(records)))


def run_spark(side: str, topic: str, folder: Path) -> Run:
    """Drain a topic by Spark, after a small one."""
    spark = drain.start_spark(side)
    for name, target in ((gps_ingest.warm_up(topic), folder / "warm-up"), (topic, folder)):
        settings = load(name, target)
        used, started = gps_ingest.cpu_seconds(), time.monotonic()
        if side == OURS:
            drain.topiclake(spark, settings)
        else:
            consumer = drain.consumer_settings(settings) if side == gps_ingest.TUNED else {}
            is_json = topic.startswith(WIDE_JSON)
            append = articles.append_json if is_json else articles.append_avro
            append(spark, settings, consumer)
        cost = {"seconds": time.monotonic() - started, "cpu_seconds": gps_ingest.cpu_seconds() - used}
    spark.stop()
    return cost


def run_plain(topic: str, folder: Path) -> Run:
    """Drain a topic by the plain consumer."""
    settings = load(topic)
    schema = ""
    if not topic.startswith(WIDE_JSON):
        registry = SchemaRegistry.from_settings(settings.schema_registry)
        schema = registry.latest(f"{topic}-value").schema
    started = time.monotonic()
    kafka = kafka_client.client_settings(settings.kafka)
    used = plain_consumer.drain(kafka, topic, gps_ingest.PARTITIONS, schema, f"{folder}/delta/gps")
    return {"seconds": time.monotonic() - started, "cpu_seconds": used}


def run(side: str, topic: str, folder: Path, records: int) -> Run:
    """Drain a topic in a separate process; return what it cost and what the table has."""
    target = folder / f"{side}-{topic}-{time.time_ns()}".replace(" ", "-")
    if side == ICEBERG:
        target.mkdir()
        sink = Sink(target, load(topic))
        cost, files = sink.drain(records), sink.data_files()
    else:
        cost = separate_run(side, "bench.race", "--side", side, "--topic", topic, "--folder", str(target))
        files = DeltaTable(f"{target}/delta/gps").file_uris()
    found = contents(files, topic)
    shutil.rmtree(target)
    return cost | found


def contents(files: list[str], topic: str) -> Run:
    """Return the number of a table's files, its count of rows, and sums of its columns."""
    numbers, text = (GPS_NUMBERS, "deviceId") if topic == GPS else (NUMBERS, TEXTS[0])
    rows = dataset(files).to_table(columns=[*numbers, text])
    # Sums of whole numbers, which do not depend on the order of rows.
    whole = (pc.cast(pc.round(pc.multiply(rows[name], 1000)), "int64") for name in numbers)
    sums = [pc.sum(column).as_py() for column in (*whole, pc.utf8_length(rows[text]))]
    return {"files": len(files), "sums": [rows.num_rows, *sums]}


def report(topic: str, results: dict[str, list[Run]], records: int, size: int) -> None:
    """Print the figures of a topic; a ratio is that of rates within one round (side / article)."""
    table = Table(title=f"{topic}: {records:,} records, {size / records:,.0f} bytes each")
    for column in ("", "rows/s", "MB/s", "rows per CPU second", "files", "ratio to the article (min – max)"):
        table.add_column(column, justify="right" if column else "left")
    for side, runs in results.items():
        seconds = statistics.median(each["seconds"] for each in runs)
        cpu = statistics.median(each["cpu_seconds"] for each in runs)
        pairs = zip(results[ARTICLE], runs, strict=True)
        table.add_row(
            side,
            f"{records / seconds:,.0f}",
            f"{size / seconds / 1e6:,.1f}",
            f"{records / cpu:,.0f}",
            f"{runs[-1]['files']:,}",
            spread(other["seconds"] / own["seconds"] for other, own in pairs),
        )
    console.print(table)


def race(topic: str, records: int, rounds: int, folder: Path) -> None:
    """Fill a topic, and let each side drain it.

    Raises:
        ClickException: A table lacks records, or has other values.
    """
    preload(gps_ingest.warm_up(topic), records // WARM_UP)
    size = preload(topic, records)
    results = in_rounds(
        SIDES,
        rounds,
        lambda side: run(side, topic, folder, records),
        lambda done: f"{records / done['seconds']:>12,.0f} rows/s",
    )
    sums = [each["sums"] for runs in results.values() for each in runs]
    if any(each != sums[0] for each in sums) or sums[0][0] != records:
        raise click.ClickException(f"the tables of {topic} differ, or lack records: {sums}")
    report(topic, results, records, size)


@click.command()
@click.option("--records", default=5_000_000, show_default=True, help="GPS records.")
@click.option("--wide-records", default=500_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--side", type=click.Choice(SIDES), hidden=True)
@click.option("--topic", type=click.Choice(TOPICS), hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
def main(
    records: int, wide_records: int, rounds: int, side: str | None, topic: str | None, folder: Path | None
) -> None:
    """Run the rounds on a separate broker and registry."""
    if side is not None and topic is not None and folder is not None:
        print(json.dumps(run_plain(topic, folder) if side == PLAIN else run_spark(side, topic, folder)))
        return
    with own_services("race") as (home, addresses):
        os.environ |= addresses.environment()
        for name in TOPICS:
            race(name, records if name == GPS else wide_records, rounds, home)
        console.print("counts and sums of all tables agree")


if __name__ == "__main__":
    main()
