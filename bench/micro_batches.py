"""The costs of a small micro-batch: the article's code and bare appends against Topiclake's ingest.

Preloads a topic and drains it in batches of `--rows` rows, each side in a separate process, in rounds. Prints
the median seconds (Spark's `triggerExecution`) of all batches, of the first 100 and of the last 100. Prints
the ratio to the first side with its spread, too. `floor` is Spark and Delta alone (bench/floor.py). Not
counted: the JVM's start, and 50 batches that warm it up.

    python -m bench.micro_batches --batches 200 --rounds 3
    python -m bench.micro_batches --batches 2100 --rounds 1 --sides topiclake+_kafka
"""

from __future__ import annotations

import os
import statistics
from typing import Any

import click
from rich.table import Table

from bench.floor import FLOOR
from bench.gps_ingest import TOPIC, drain, load, preload, verify, warm_up
from bench.rounds import console, in_rounds, own_services, spread

WARM_UP_BATCHES = 50
#: How many batches at the beginning and the end are compared.
EDGE = 100
SIDES = ("article", FLOOR, "topiclake+_kafka")


def report(results: dict[str, list[dict[str, Any]]], batches: int, rows: int) -> None:
    """Print the medians; ratios are those within one round."""
    first = [statistics.median(result["batches"]) for result in next(iter(results.values()))]
    table = Table(title=f"{batches:,} batches of {rows:,} rows, {len(first)} rounds")
    edges = {"all": slice(None), f"first {EDGE}": slice(EDGE), f"last {EDGE}": slice(-EDGE, None)}
    for column in (
        "",
        *(f"{name}, s" for name in edges),
        "last / first",
        "ratio to the first side (min – max)",
    ):
        table.add_column(column, justify="right" if column else "left")
    for side, runs in results.items():
        medians = {
            name: [statistics.median(result["batches"][part]) for result in runs]
            for name, part in edges.items()
        }
        ratios = [own / other for own, other in zip(medians["all"], first, strict=True)]
        growth = [late / early for early, late in zip(*list(medians.values())[1:], strict=True)]
        table.add_row(
            side,
            *(f"{statistics.median(values):.3f}" for values in medians.values()),
            spread(growth),
            spread(ratios),
        )
    console.print(table)
    console.print("counts and sums of all tables agree")


@click.command()
@click.option("--batches", default=200, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--rows", default=1_000, show_default=True, help="Of a batch.")
@click.option("--sides", "listed", default=",".join(SIDES), show_default=True)
def main(batches: int, rounds: int, rows: int, listed: str) -> None:
    """Run the rounds on a separate broker and registry."""
    with own_services("bench") as (folder, addresses):
        os.environ |= addresses.environment()
        preload(load(warm_up(TOPIC)), WARM_UP_BATCHES * rows)
        preload(load(TOPIC), batches * rows)
        results = in_rounds(
            listed.split(","),
            rounds,
            lambda side: drain(side, folder, rows),
            lambda run: f"{len(run['batches']):,} batches, median {statistics.median(run['batches']):.3f} s",
        )
        verify(results, batches * rows)
        report(results, batches, rows)


if __name__ == "__main__":
    main()
