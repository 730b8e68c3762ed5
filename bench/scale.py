"""One worker against two: the same ingest on a cluster of Spark's, with an executor of one core on each.

Preloads a topic with N GPS records (about 51 bytes each, 4 partitions, lz4) and drains it in rounds, each
side in a driver of its own. Prints rows/s, seconds of a micro-batch, and the ratio of the rates with its
spread. Not counted: the start of driver and executors, and a first drain of 500,000 records that warms them
up. Broker, master and driver run on the same machine: on one with two cores, the second executor takes the
core that they had.

    python -m bench.scale --records 5000000 --batch-rows 1000000 --rounds 3
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

import click
from rich.table import Table

from bench.drain import CONF_VARIABLE
from bench.gps_ingest import TOPIC, WARM_UP_RECORDS, drain, load, preload, verify, warm_up
from bench.rounds import PROJECT, Run, console, in_rounds, own_services, spread
from workbench.home import Home
from workbench.ports import HOST
from workbench.services import start_services
from workbench.spark_cluster import cluster

#: How many executors of one core each side has; the second one is on the second worker.
SIDES = {"1 worker": 1, "2 workers": 2}


def drain_by(side: str, master: str, folder: Path, rows: int) -> Run:
    """Drain the topic with executors on so many workers."""
    conf = {"spark.master": master, "spark.cores.max": str(SIDES[side]), "spark.executor.cores": "1"}
    conf |= {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST}
    os.environ[CONF_VARIABLE] = json.dumps(conf)
    return drain("topiclake+_kafka", folder / side, rows)


def report(results: dict[str, list[Run]], records: int) -> None:
    """Print the figures; a ratio is that of rates within one round."""
    rounds = len(results["1 worker"])
    table = Table(title=f"{records:,} GPS records, {rounds} rounds, {os.cpu_count()} cores for everything")
    for column in ("", "rows/s (median)", "min – max", "s per batch", "ratio (min – max)"):
        table.add_column(column, justify="right" if column else "left")
    for side, runs in results.items():
        rates = [records / run["seconds"] for run in runs]
        ratios = [
            alone["seconds"] / run["seconds"] for alone, run in zip(results["1 worker"], runs, strict=True)
        ]
        batch = statistics.median(seconds for run in runs for seconds in run["batches"])
        table.add_row(
            side,
            f"{statistics.median(rates):,.0f}",
            f"{min(rates):,.0f} – {max(rates):,.0f}",
            f"{batch:.2f}",
            spread(ratios),
        )
    console.print(table)
    console.print("counts and sums of all tables agree")


@click.command()
@click.option("--records", default=5_000_000, show_default=True)
@click.option("--batch-rows", default=1_000_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(records: int, batch_rows: int, rounds: int) -> None:
    """Run the rounds on a broker, a registry and a cluster of their own."""
    with own_services("scale") as (folder, addresses):
        os.environ |= addresses.environment()
        home = Home(addresses.home, PROJECT)
        master = start_services(home, cluster(home), console.print)["spark-master"]
        started = time.monotonic()
        preload(load(warm_up(TOPIC)), WARM_UP_RECORDS)
        preload(load(TOPIC), records)
        console.print(f"preloaded {records:,} records in {time.monotonic() - started:.0f} s")
        results = in_rounds(
            list(SIDES),
            rounds,
            lambda side: drain_by(side, master, folder, batch_rows),
            lambda run: f"{records / run['seconds']:>12,.0f} rows/s, {len(run['batches'])} batches",
        )
        verify(results, records)
        report(results, records)


if __name__ == "__main__":
    main()
