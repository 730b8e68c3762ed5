"""The costs of a micro-batch of 1,000 rows: the article's code against Topiclake's ingest.

Preloads a topic and drains it in batches of 1,000 rows, each side in a separate process, in rounds. Prints
the median seconds (Spark's `triggerExecution`) of all batches, of the first 100 and of the last 100. Prints
the ratio to the article with its spread, too. Not counted: the JVM's start, and 50 batches that warm it up.

    python -m bench.micro_batches --batches 200 --rounds 3
    python -m bench.micro_batches --batches 2100 --rounds 1 --alone
"""

from __future__ import annotations

import os
import statistics
from typing import Any

import click
from rich.table import Table

from bench.gps_ingest import TOPIC, drain, load, preload, verify, warm_up
from bench.rounds import console, in_rounds, own_services, spread

ROWS = 1_000
WARM_UP_BATCHES = 50
#: How many batches at the beginning and the end are compared.
EDGE = 100
SIDES = ("article", "topiclake+_kafka")


def report(results: dict[str, list[dict[str, Any]]], batches: int) -> None:
    """Print the medians; ratios are those within one round."""
    rounds = len(next(iter(results.values())))
    table = Table(title=f"{batches:,} batches of {ROWS:,} rows, {rounds} rounds")
    edges = {"all": slice(None), f"first {EDGE}": slice(EDGE), f"last {EDGE}": slice(-EDGE, None)}
    for column in ("", *(f"{name}, s" for name in edges), "last / first", "ratio to the article (min – max)"):
        table.add_column(column, justify="right" if column else "left")
    for side, runs in results.items():
        medians = {
            name: [statistics.median(result["batches"][part]) for result in runs]
            for name, part in edges.items()
        }
        # Without the article there is nothing to compare with.
        article = [statistics.median(result["batches"]) for result in results.get("article", [])]
        ratios = [own / other for own, other in zip(medians["all"], article, strict=True)] if article else []
        growth = [last / first for first, last in zip(*list(medians.values())[1:], strict=True)]
        table.add_row(
            side,
            *(f"{statistics.median(values):.3f}" for values in medians.values()),
            spread(growth),
            spread(ratios) if ratios else "",
        )
    console.print(table)
    console.print("counts and sums of all tables agree")


@click.command()
@click.option("--batches", default=200, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--alone", is_flag=True, help="Topiclake only: does a batch cost more the longer it runs?")
def main(batches: int, rounds: int, alone: bool) -> None:
    """Run the rounds on a separate broker and registry."""
    with own_services("bench") as (folder, addresses):
        os.environ |= addresses.environment()
        preload(load(warm_up(TOPIC)), WARM_UP_BATCHES * ROWS)
        preload(load(TOPIC), batches * ROWS)
        results = in_rounds(
            SIDES[1:] if alone else SIDES,
            rounds,
            lambda side: drain(side, folder, ROWS),
            lambda run: f"{len(run['batches']):,} batches, median {statistics.median(run['batches']):.3f} s",
        )
        verify(results, batches * ROWS)
        report(results, batches)


if __name__ == "__main__":
    main()
