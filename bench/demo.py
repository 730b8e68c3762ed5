"""The seconds of a later run of the demo, against Spark and Delta alone with the same records.

Runs the demo once, and then both sides in rounds. `floor` starts a broker and a registry, sends the records,
and starts Spark in a separate process with the demo's settings. It appends the records (bench/floor.py), and
counts the table's rows. It has no notebook, no check of a record and no audit. With `--services` broker and
registry run already. Prints seconds from start to end, and the ratio to the floor with its spread.

    python -m bench.demo --rounds 3
    python -m bench.demo --rounds 3 --services
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.table import Table

from bench import gps_ingest
from bench.drain import CONF_VARIABLE, start_spark
from bench.floor import FLOOR, start_gps
from bench.rounds import PROJECT, Run, console, end_after_sigterm, in_rounds, spread
from workbench.host.home import HOME_VARIABLE, Home
from workbench.host.java import SHORT_LIVED, short_lived
from workbench.host.processes import variables_set
from workbench.kernel.session import INTERPRETED, ONE_TASK
from workbench.services import control as services

DEMO = "demo"
SIDES = (FLOOR, DEMO)
#: Spark has the settings of the demo.
AS_IN_THE_DEMO = {"JDK_JAVA_OPTIONS": SHORT_LIVED, CONF_VARIABLE: json.dumps(INTERPRETED | ONE_TASK)}
#: The recorded points of the demo.
RECORDS = 993


def run_demo(home: Home) -> None:
    """Run the demo, and see that all records arrived."""
    printed = run_module(os.environ | {HOME_VARIABLE: str(home.folder)}, "workbench", "demo")
    if f"all {RECORDS} records of this run arrived" not in printed:
        raise click.ClickException(f"the demo lacks records:\n{printed[-3000:]}")


def run_floor(home: Home) -> None:
    """Do the demo's work with Spark and Delta alone, and see that all records arrived."""
    is_stopped = all(service.state == "stopped" for service in services.status(home))
    with variables_set(short_lived()):
        addresses = services.up(home)
    try:
        environment = os.environ | addresses.environment() | AS_IN_THE_DEMO
        printed = run_module(environment, "bench.demo", "--table", tempfile.mkdtemp(dir=home.folder))
    finally:
        if is_stopped:
            services.down(home)
    if printed.split()[-1] != str(RECORDS):
        raise click.ClickException(f"the floor lacks records:\n{printed[-3000:]}")


def run_module(environment: dict[str, str], *arguments: str) -> str:
    """Run a module of Python with its arguments; return what it prints."""
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise click.ClickException(f"{' '.join(arguments)} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def carry(folder: Path) -> None:
    """Send the records to a topic of the folder's name, append them to a table in it, and print its rows."""
    settings = gps_ingest.load(folder.name, folder=folder)
    gps_ingest.preload(settings, RECORDS)
    spark = start_spark(FLOOR)
    start_gps(spark, settings).awaitTermination()
    print(spark.read.format("delta").load(f"{settings.storage.source}/delta/gps").count())
    spark.stop()


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--services", "is_up", is_flag=True, help="Broker and registry run already.")
@click.option("--table", type=click.Path(path_type=Path), hidden=True)
def main(rounds: int, is_up: bool, table: Path | None) -> None:
    """Run the rounds in a separate home."""
    if table:
        carry(table)
        return
    end_after_sigterm()
    with tempfile.TemporaryDirectory(prefix="topiclake-demo-") as folder:
        home = Home(Path(folder), PROJECT)
        run_demo(home)
        try:
            if is_up:
                services.up(home)

            def run(side: str) -> Run:
                started = time.monotonic()
                (run_floor if side == FLOOR else run_demo)(home)
                return {"seconds": time.monotonic() - started}

            results = in_rounds(SIDES, rounds, run, lambda run: f"{run['seconds']:.1f} s")
        finally:
            services.down(home)
    table_of_sides = Table("", "s (median)", "ratio (min – max)", title=f"{rounds} rounds")
    for side, runs in results.items():
        seconds = [run["seconds"] for run in runs]
        floors = [run["seconds"] for run in results[FLOOR]]
        ratios = spread(own / floor for own, floor in zip(seconds, floors, strict=True))
        table_of_sides.add_row(side, f"{statistics.median(seconds):.1f}", ratios)
    console.print(table_of_sides)


if __name__ == "__main__":
    main()
