"""Kill an ingest again and again while records flow, and look at its tables after each kill.

A separate broker and registry; one topic, one checkpoint, one table. Bad records, tombstones and records of a
schema that must be looked up flow among good ones of three versions. The whole process group gets SIGKILL at
random moments and at every step of a batch, in random order. The steps are around its three commits, and
before Spark's commit file. After each, no record may be missing though its batch is done, be there twice, be
in the wrong place or have other values. Exits with 1 and the first such records.

    python -m bench.torture --records 200000 --kills 25 --seed 1
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import click
from pyspark.sql import SparkSession

from bench.rounds import PROJECT, console, own_services
from tests.programs.crash_run import STEPS, Ingest
from tests.programs.crash_traffic import Traffic, audit_faults, committed, settings_for, wrong
from topiclake.session import local_session

#: A kill at a random moment comes in one of the first batches, of which there is this number.
BATCHES = 2


@click.command()
@click.option("--records", default=200_000, show_default=True)
@click.option("--kills", default=25, show_default=True, help="At random moments; the steps come on top.")
@click.option("--seed", default=1, show_default=True, help="Same seed, same order and moments.")
def main(records: int, kills: int, seed: int) -> None:
    """Run it on a separate broker and registry."""
    with own_services("torture") as (scratch, addresses):
        folder = scratch / "lake"
        folder.mkdir()
        settings = settings_for(
            addresses.kafka_bootstrap_servers,
            addresses.schema_registry_url,
            "torture",
            folder,
            batch=max(100, records // 100),
        )
        spark = start_spark(scratch)
        torture(spark, Traffic(settings), Ingest(folder, settings), records, kills, random.Random(seed))
        spark.stop()


def torture(
    spark: SparkSession, traffic: Traffic, ingest: Ingest, records: int, kills: int, chance: random.Random
) -> None:
    """Send, kill, look; at the end drain, and look at everything."""
    moments = [*STEPS, *["random"] * kills]
    chance.shuffle(moments)
    started = time.monotonic()
    for number, moment in enumerate(moments, 1):
        traffic.send(records // (len(moments) + 1))
        if moment == "random":
            moment = ingest.kill_at_random(chance, BATCHES)
        else:
            ingest.stop_at(moment)
        check_records(spark, ingest, traffic.sent, f"kill {number} of {len(moments)}, {moment}")
    traffic.send(records - traffic.sent)
    ingest.drain()
    check_records(spark, ingest, records, "drained")
    if sum(committed(ingest.folder).values()) != records:
        raise click.ClickException(f"the checkpoint says {committed(ingest.folder)}, not {records:,} records")
    console.print(
        f"{records:,} records, {len(moments)} kills, each record in one place "
        f"({time.monotonic() - started:.0f} s)"
    )


def check_records(spark: SparkSession, ingest: Ingest, sent: int, step: str) -> None:
    """Stop at the first records that are not right."""
    faults = [
        *wrong(spark, ingest.folder, sent),
        *audit_faults(spark, ingest.settings, ingest.folder),
    ]
    if faults:
        raise click.ClickException(f"{step}: " + "\n".join(faults))
    console.print(f"  {step}: {sum(committed(ingest.folder).values()):,} of {sent:,} done, all right")


def start_spark(folder: Path) -> SparkSession:
    """Start the session that looks at the tables."""
    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = local_session("torture", PROJECT / "jars", conf | {"spark.local.dir": str(folder / "tmp")})
    spark.sparkContext.setLogLevel("ERROR")
    return spark


if __name__ == "__main__":
    main()
