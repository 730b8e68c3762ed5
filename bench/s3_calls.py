"""How many calls to S3 the same work costs: the article's code with Spark's defaults, and Topiclake's ingest.

Preloads a topic with N GPS records. Drains it in batches of `--rows` rows into a Delta table on the embedded
S3 store, each side in a separate process. Counts every call from the store's own access log, from the start
of the query until it has caught up. Calls of checkpoint, table and history are included. Counts and sums of
both tables must agree.

    python -m bench.s3_calls --records 5000000 --rows 500000
    python -m bench.s3_calls --records 20000000 --rows 10000000 --before 1000

With `--before` an earlier query has made the table and the checkpoint; its calls are not counted.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bench import articles, drain
from bench.gps_ingest import TOPIC, preload
from bench.rounds import PROJECT, console, own_services, secret
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.storage import mount
from workbench.host.home import Home
from workbench.services.s3_gateway import S3Gateway

SIDES = ("spark's defaults", "topiclake")
#: In versitygw's log, as in S3's own: the operation, then the key, then the request.
CALL = re.compile(r" s3_(\w+) (\S+) (\S+)")
#: The log's last lines are on their way.
LOG_SECONDS = 1.0


def load(side: str, rows: int) -> Settings:
    """Return the GPS pipeline's configuration: a folder of the bucket for each side."""
    source = f"{os.environ['WORKBENCH_S3_SOURCE']}/{SIDES.index(side)}"
    parameters = {"env": "local-s3", "topic": TOPIC, "storage": source}
    settings = load_settings("gps", parameters, secrets=secret, conf=PROJECT / "conf")
    pipeline = settings.pipeline.model_copy(update={"max_offsets_per_trigger": rows})
    return settings.model_copy(update={"pipeline": pipeline})


def run_side(side: str, rows: int) -> None:
    """Drain the topic, wait, drain nothing, and print the seconds, the batches and the table's sums."""
    settings = load(side, rows)
    spark = drain.start_spark("article" if side == SIDES[0] else side)
    mount.mount(None, settings.storage, spark)
    started, folder = time.monotonic(), settings.storage.source
    query = (articles.append_avro if side == SIDES[0] else drain.topiclake)(spark, settings)
    seconds = time.monotonic() - started
    print(json.dumps({"seconds": seconds, "batches": len(drain.batch_seconds(query))}), flush=True)
    sys.stdin.readline()
    print(json.dumps(drain.sums(spark, folder)))
    spark.stop()


def calls_in(log: Path, before: int) -> list[tuple[str, ...]]:
    """Return operation, key and request of each call that the store has logged after a position."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        lines.seek(before)
        return [match.groups() for line in lines if (match := CALL.search(line))]


def calls_of(side: str, rows: int, log: Path) -> dict[str, Any]:
    """Run one side in a separate process; return what it cost, and the calls by operation."""
    before = log.stat().st_size if log.exists() else 0
    command = [sys.executable, "-m", "bench.s3_calls", "--side", side, "--rows", str(rows)]
    with subprocess.Popen(
        command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        output = child.stdout.readline()
        if not output:
            raise click.ClickException(f"{side} failed")
        time.sleep(LOG_SECONDS)
        logged = calls_in(log, before)
        child.stdin.write("\n")
        child.stdin.flush()
        sums = json.loads(child.stdout.readline())
    calls = Counter(name for name, *_ in logged)
    return dict(json.loads(output)) | {"sums": sums, "calls": calls, "keys": logged}


def report(results: dict[str, dict[str, Any]], records: int) -> None:
    """Print the calls by operation."""
    table = Table(title=f"{records:,} GPS records into Delta on S3")
    for column in ("", *results):
        table.add_column(column, justify="right" if column else "left")
    runs = list(results.values())
    for name in sorted({name for run in runs for name in run["calls"]}):
        table.add_row(name, *(f"{run['calls'][name]:,}" for run in runs), end_section=False)
    totals = [run["calls"].total() for run in runs]
    table.add_section()
    table.add_row("calls", *(f"{total:,}" for total in totals))
    table.add_row("batches", *(f"{run['batches']:,}" for run in runs))
    table.add_row(
        "calls a batch", *(f"{total / run['batches']:.1f}" for total, run in zip(totals, runs, strict=True))
    )
    table.add_row("calls per million rows", *(f"{total / records * 1e6:.2f}" for total in totals))
    table.add_row("seconds", *(f"{run['seconds']:.1f}" for run in runs))
    console.print(table)


@click.command()
@click.option("--records", default=5_000_000, show_default=True)
@click.option("--rows", default=500_000, show_default=True, help="A batch.")
@click.option("--before", default=0, help="Records that an earlier query drains, uncounted.")
@click.option("--side", type=click.Choice(SIDES), help="Run this one in this process (for the bench itself).")
@click.option("--only", type=click.Choice(SIDES), help="Measure this one alone.")
@click.option("--keys", is_flag=True, help="Print the first 110 calls.")
def main(records: int, rows: int, before: int, side: str | None, only: str | None, keys: bool) -> None:
    """Drain the topic by both sides on separate services, and count."""
    if side:
        run_side(side, rows)
        return
    with own_services("s3-calls", extras=("s3",)) as (folder, addresses):
        os.environ |= addresses.environment()
        log = S3Gateway(Home(folder / "home", PROJECT)).access_log
        sides = [only] if only else SIDES
        if before:
            preload(load(SIDES[1], rows), before)
            for name in sides:
                calls_of(name, rows, log)
        preload(load(SIDES[1], rows), records)
        results = {name: calls_of(name, rows, log) for name in sides}
        report(results, records)
        if keys:
            first = results[sides[-1]]["keys"][:110]
            console.print(*(f"{name} {uri if key == '-' else key}" for name, key, uri in first), sep="\n")
        sums = {json.dumps(run["sums"]) for run in results.values()}
        if len(sums) != 1 or json.loads(sums.pop())[0] != before + records:
            raise click.ClickException("the tables differ")
        console.print("counts and sums of the tables agree")


if __name__ == "__main__":
    main()
