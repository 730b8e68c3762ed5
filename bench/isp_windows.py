"""Windowed counts of JSON hits: the article's code on Spark's defaults against Topiclake's.

Preloads a topic with N hits (`topiclake_examples.isp.hits.make_hits`, 230 bytes each, 4 partitions). Counts
them by zip code in windows of 10 minutes every 5 minutes. A micro-batch has a million hits. The counts go
into memory in complete mode. Each side runs in a separate process, after a first run on fewer hits that warms
the JVM up. Prints rows/s, CPU seconds and the state's size, and each side's ratio to the article with its
spread.

    python -m bench.isp_windows --records 5000000 --rounds 3
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from rich.table import Table

import topiclake as tl
from bench import articles
from bench.drain import start_spark
from bench.gps_ingest import cpu_seconds
from bench.rounds import PROJECT, console, in_rounds, own_services, separate_run, spread
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.streaming import progress
from topiclake_examples.isp import hits_per_window, publish_hits

TOPIC, WARM_UP = "isp-hits", "isp-hits-warm-up"
WARM_UP_RECORDS, ROWS = 200_000, 1_000_000
SIDES = ("article", "topiclake")


def load(topic: str) -> Settings:
    """Return the configuration of the hits, for another topic."""
    return load_settings("isp", {"topic": topic, "max_offsets_per_trigger": str(ROWS)}, conf=PROJECT / "conf")


def drain(spark: SparkSession, side: str, topic: str, folder: Path) -> StreamingQuery:
    """Count a topic's hits to its end, into the view `counts`."""
    if side == "article":
        counts = articles.count_hits(spark, load(topic))
    else:
        settings = load(topic)
        tl.set_state(spark, settings)
        counts = hits_per_window(tl.read_values(spark, settings))
    stream = counts.writeStream.format("memory").queryName("counts").outputMode("complete")
    query = stream.option("checkpointLocation", str(folder / topic)).trigger(availableNow=True).start()
    progress.await_caught_up(query, "availableNow")
    return query


def run(side: str, folder: Path) -> None:
    """Warm up, count, and print what it cost, what the state held, and the counts, as JSON."""
    spark = start_spark(side)
    drain(spark, side, WARM_UP, folder)
    used, started = cpu_seconds(), time.monotonic()
    query = drain(spark, side, TOPIC, folder)
    cost = {"seconds": time.monotonic() - started, "cpu_seconds": cpu_seconds() - used}
    states = [progress["stateOperators"][0] for progress in query.recentProgress if progress["numInputRows"]]
    most = max(states, key=lambda state: state["memoryUsedBytes"])
    size = {"state_bytes": most["memoryUsedBytes"], "state_rows": most["numRowsTotal"]}
    rows = spark.table("counts").selectExpr("CAST(start AS STRING)", "zip", "count").collect()
    print(json.dumps(cost | size | {"counts": sorted(map(list, rows))}))
    spark.stop()


def report(results: dict[str, list[dict[str, Any]]], records: int) -> None:
    """Print the figures; a ratio is that of rates within one round (side / article)."""
    table = Table(title=f"{records:,} JSON hits, {len(results['article'])} rounds")
    for column in (
        "",
        "rows/s (median)",
        "CPU s per million rows",
        "state, MB",
        "state, rows",
        "ratio (min – max)",
    ):
        table.add_column(column, justify="right" if column else "left")
    for side, runs in results.items():
        pairs = zip(results["article"], runs, strict=True)
        table.add_row(
            side,
            f"{statistics.median(records / result['seconds'] for result in runs):,.0f}",
            f"{statistics.median(result['cpu_seconds'] for result in runs) / records * 1e6:.2f}",
            f"{max(result['state_bytes'] for result in runs) / 1e6:.1f}",
            f"{max(result['state_rows'] for result in runs):,}",
            spread(first["seconds"] / result["seconds"] for first, result in pairs),
        )
    console.print(table)
    console.print("all counts agree")


def verify(results: dict[str, list[dict[str, Any]]], records: int) -> None:
    """Check that every run of every side counted the same: each hit in two windows."""
    counts = [result["counts"] for runs in results.values() for result in runs]
    if any(result != counts[0] for result in counts) or sum(row[2] for row in counts[0]) != 2 * records:
        raise click.ClickException(f"the counts differ, or are not of {records:,} hits")


@click.command()
@click.option("--records", default=5_000_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--side", type=click.Choice(SIDES), help="One side only, in this process.")
@click.option("--folder", type=click.Path(path_type=Path), help="Checkpoints of that side.")
def main(records: int, rounds: int, side: str | None, folder: Path | None) -> None:
    """Run the rounds on a separate broker."""
    if side and folder:
        run(side, folder)
        return
    with own_services("bench") as (home, addresses):
        os.environ |= addresses.environment()
        spark = start_spark("topiclake")
        for topic, hits in ((WARM_UP, WARM_UP_RECORDS), (TOPIC, records)):
            publish_hits(spark, load(topic), hits=hits)
        spark.stop()
        number = iter(range(1000))
        results = in_rounds(
            SIDES,
            rounds,
            lambda side: separate_run(
                side, "bench.isp_windows", "--side", side, "--folder", str(home / f"{next(number)}")
            ),
            lambda result: f"{records / result['seconds']:>12,.0f} rows/s, CPU {result['cpu_seconds']:.1f} s",
        )
        verify(results, records)
        report(results, records)


if __name__ == "__main__":
    main()
