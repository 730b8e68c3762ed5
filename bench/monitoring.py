"""The costs of watching: micro-batches of one ingest while it is watched, against its others.

Drains a topic with one query, and turns `topiclake.monitor_queries` on and off all the time. So both sides
have the same JVM, table and data. Checks the table's count, and that each watched batch was kept.
Prints the median duration of a batch of each side, and the ratio of neighbouring blocks with its quartiles.

    python -m bench.monitoring --batches 400 --rows 20000
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from bench.drain import start_spark
from bench.gps_ingest import TOPIC, load, preload
from bench.rounds import console, own_services
from topiclake.ingest import start as ingest
from topiclake.monitoring.listener import monitor_queries, stop_monitoring
from topiclake.monitoring.reports import read_report
from topiclake.monitoring.store import Store

#: Batches between two turns.
BLOCK = 10
WARM_UP = 40


@dataclass
class Block:
    """Neighbouring batches of one side: Spark's `triggerExecution` of each, in seconds."""

    is_watched: bool
    began: float
    ended: float = 0.0
    seconds: tuple[float, ...] = ()


def drain_in_turns(spark: SparkSession, query: StreamingQuery, reports: Path) -> list[Block]:
    """Turn the watch on and off until the query ends, and return the blocks."""
    blocks: list[Block] = []
    monitor, last = None, -1
    while query.isActive:
        progress: Any = query.lastProgress
        if progress is not None and progress["batchId"] >= last + BLOCK:
            last = progress["batchId"]
            if blocks:
                blocks[-1].ended = time.time()
            if monitor is None:
                monitor = monitor_queries(spark, reports)
                # Known to the monitor as if it had been watched from its start.
                monitor.onQueryStarted(_Started(query))  # type: ignore[arg-type]
            else:
                spark.streams.removeListener(monitor)
                monitor.close()
                monitor = None
            blocks.append(Block(monitor is not None, time.time()))
        time.sleep(0.005)
    if blocks:
        blocks[-1].ended = time.time()
    if monitor is not None:
        stop_monitoring(spark, monitor)
    return blocks


class _Started:
    def __init__(self, query: StreamingQuery) -> None:
        self.id, self.runId, self.name = query.id, query.runId, query.name


def filled(blocks: list[Block], query: StreamingQuery) -> list[Block]:
    """Give each block the batches that lie within it as a whole; those of the warm-up belong to none."""
    batches = [read_report(progress.json) for progress in query.recentProgress]
    for block in blocks:
        block.seconds = tuple(
            batch.milliseconds / 1000
            for batch in batches
            if batch.batch_id >= WARM_UP
            and block.began <= batch.at
            and batch.at + batch.milliseconds / 1000 <= block.ended
        )
    return [block for block in blocks if len(block.seconds) >= BLOCK // 2]


@click.command()
@click.option("--batches", default=400, show_default=True)
@click.option("--rows", default=20_000, show_default=True, help="Of a micro-batch.")
def main(batches: int, rows: int) -> None:
    """Run it on a separate broker and registry."""
    with own_services("bench") as (_, addresses), tempfile.TemporaryDirectory() as temporary:
        os.environ |= addresses.environment()
        folder = Path(temporary)
        preload(load(TOPIC), batches * rows)
        spark = start_spark("topiclake")
        query = ingest.start_ingest(spark, load(TOPIC, rows, folder))
        blocks = filled(drain_in_turns(spark, query, folder / "reports.db"), query)
        count = spark.read.format("delta").load(f"{folder}/delta/gps").count()
        stored = len(Store(folder / "reports.db").rows("SELECT 1 FROM batches"))
        spark.stop()
    watched = [block for block in blocks if block.is_watched]
    if count != batches * rows or stored < sum(len(block.seconds) for block in watched):
        raise click.ClickException(f"{count:,} rows, {stored} batches kept")
    pairs = [(first, second) for first, second in pairwise(blocks) if first.is_watched != second.is_watched]
    ratios = [
        statistics.median((first if first.is_watched else second).seconds)
        / statistics.median((second if first.is_watched else first).seconds)
        for first, second in pairs
    ]
    low, middle, high = statistics.quantiles(ratios, n=4)
    for side in (False, True):
        seconds = [value for block in blocks if block.is_watched == side for value in block.seconds]
        name = "watched" if side else "alone"
        console.print(f"{name:8} {statistics.median(seconds):.4f} s a batch, {len(seconds)} batches")
    console.print(
        f"ratio {middle:.3f} (quartiles {low:.3f} – {high:.3f}), "
        f"of {len(ratios)} neighbouring blocks of {BLOCK}; "
        f"{rows:,} rows a batch, {count:,} in the table; each watched batch was kept"
    )


if __name__ == "__main__":
    main()
