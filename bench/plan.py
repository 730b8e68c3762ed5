"""The costs of the steps of a micro-batch's plan: read, count, decode, check, `_kafka`, write.

Preloads a topic, and executes the plan of a micro-batch up to each of its steps. Each plan but the last one
has Spark's sink `noop`, which writes nothing. The last one appends the rows to a Delta table. The cost of a
step is the difference to the plan before it. Prints the CPU seconds of Spark for a million records, and the
share of each step, as the median of the rounds with its spread. Not counted: a first round, in which the JVM
warms up.

    python -m bench.plan --records 2000000 --rounds 5
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from bench.drain import start_spark
from bench.gps_ingest import TOPIC, cpu_seconds, load, preload
from bench.rounds import console, own_services, spread
from topiclake.config.settings import Settings
from topiclake.ingest import targets
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.kafka import offsets as kafka_offsets
from topiclake.kafka import source as kafka_source
from topiclake.sources import registered_rows
from topiclake.sources.layout import KAFKA_COLUMN

Step = Callable[[], DataFrame]


def steps(spark: SparkSession, settings: Settings) -> dict[str, Step]:
    """Return the plan of a micro-batch up to each step."""
    target = targets.target(settings)
    codecs, layout = BatchSchemas(target).current(spark), target.schemas.layout
    in_kafka = kafka_offsets.pipeline_offsets(settings.kafka, settings.pipeline, []).offsets
    options = kafka_source.range_options(settings.kafka)
    records = partial(kafka_source.read_range, spark, options, in_kafka)

    def counted() -> DataFrame:
        return records().observe(Observation(), registered_rows.count_records(layout))

    def decoded() -> DataFrame:
        return registered_rows.decode(counted(), codecs, layout)

    def rows() -> DataFrame:
        return registered_rows.valid_rows(registered_rows.as_rows(decoded(), codecs, layout))

    return {
        "read from Kafka": lambda: records().select("value"),
        "count the records": lambda: counted().select("value"),
        "decode": lambda: decoded().select("decoded"),
        "check, and make rows": lambda: rows().drop(KAFKA_COLUMN),
        "add `_kafka`": rows,
    }


def cost(execute: Callable[[], None]) -> float:
    """Return the CPU seconds of Spark."""
    before = cpu_seconds()
    execute()
    return cpu_seconds() - before


def one_round(plans: dict[str, Step], table: Path) -> list[float]:
    """Return the CPU seconds of the plan up to each step, and of the append."""
    costs = [cost(plan().write.format("noop").mode("overwrite").save) for plan in plans.values()]
    *_, rows = plans.values()
    written = rows().observe(Observation(), F.count("*").alias("rows"))
    return [*costs, cost(partial(written.write.format("delta").mode("append").save, str(table)))]


def report(rounds: list[list[float]], names: list[str], records: int) -> None:
    """Print the cost of each step."""
    table = Table(title=f"{records:,} GPS records, {len(rounds)} rounds")
    for column in ("", "CPU s per million records", "share of all"):
        table.add_column(column, justify="right" if column else "left")
    for number, name in enumerate(names):
        costs = [costs[number] - (costs[number - 1] if number else 0) for costs in rounds]
        shares = [own / costs[-1] for own, costs in zip(costs, rounds, strict=True)]
        table.add_row(name, spread(own / records * 1e6 for own in costs), spread(shares))
    whole = statistics.median(costs[-1] for costs in rounds) / records * 1e6
    table.add_row("all", f"{whole:.2f}", "1")
    console.print(table)


@click.command()
@click.option("--records", default=2_000_000, show_default=True)
@click.option("--rounds", default=5, show_default=True)
def main(records: int, rounds: int) -> None:
    """Run the rounds on a separate broker and registry."""
    with own_services("bench") as (folder, addresses):
        os.environ |= addresses.environment()
        settings = load(TOPIC, folder=folder)
        preload(settings, records)
        spark = start_spark("topiclake")
        plans, table = steps(spark, settings), folder / "rows"
        costs = [one_round(plans, table) for _ in range(rounds + 1)]
        report(costs[1:], [*plans, "count the rows, write Parquet, commit"], records)
        count = spark.read.format("delta").load(str(table)).count()
        if count != records * (rounds + 1):
            raise click.ClickException(f"the table has {count:,} rows, not {records * (rounds + 1):,}")
        console.print("each round appended each record once")
        spark.stop()


if __name__ == "__main__":
    main()
