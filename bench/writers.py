"""Many writers on one Delta table: streams, batch appenders and a MERGE, each row that was acknowledged once.

Every writer names its rows `(writer, number)` and counts what Delta or Spark acknowledged. Afterwards each
acknowledged row must be in the table once, and no row twice.

    python -m bench.writers --seconds 600 --on abfss

`--on` is `s3` (the default), `abfss`, `wasbs` or `folder`. Several drivers write, with `--one-process` one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import click
from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.rounds import PROJECT, console, own_services, secret
from topiclake import session
from topiclake.config.load import load_settings
from topiclake.config.storage import StorageSettings
from topiclake.delta import table as delta
from topiclake.storage import mount
from workbench.services.azurite import JAVA_OPTIONS_VARIABLE

SCHEMA = "writer STRING, number BIGINT, times INT"
ROWS = 50
#: However slow the machine is, each writer has this number of commits.
LEAST = 3
STREAMS = ("stream-1", "stream-2", "stream-3", "stream-4")
APPENDERS = ("append-1", "append-2")
MERGE = "merge"
#: Stores of a table, and the embedded store that serves it.
STORES = {"s3": ("s3",), "wasbs": ("azure",), "abfss": ("azure",), "folder": ()}
#: The writers of each driver, if there are several.
DRIVERS = ((*STREAMS[:2], APPENDERS[0]), (*STREAMS[2:], APPENDERS[1]), (MERGE,))


def append(spark: SparkSession, table: str, writer: str, until: float) -> int:
    """Append batches; return how many rows were acknowledged."""
    number = 0
    while time.monotonic() < until or number < LEAST * ROWS:
        rows = spark.range(number, number + ROWS).selectExpr(
            f"'{writer}' AS writer", "id AS number", "1 AS times"
        )
        rows.coalesce(1).write.format("delta").mode("append").save(table)
        number += ROWS
    return number


def merge(spark: SparkSession, table: str, writer: str, until: float) -> int:
    """Merge ten rows at a time, of which five exist already; return the highest number, plus one."""
    number = 0
    while time.monotonic() < until or number < LEAST * 5:
        rows = spark.range(max(0, number - 5), number + 5).selectExpr(
            f"'{writer}' AS writer", "id AS number", "1 AS times"
        )
        same = f"t.writer = '{writer}' AND t.writer = s.writer AND t.number = s.number"
        merging = DeltaTable.forPath(spark, table).alias("t").merge(rows.alias("s"), same)
        try:
            (merging.whenMatchedUpdate(set={"times": "t.times + 1"}).whenNotMatchedInsertAll().execute())
        except PySparkException as error:
            # Delta reports that another writer was first: nothing was written.
            if not delta.is_conflict(error):
                raise
            continue
        number += 5
    return number


def stream(spark: SparkSession, table: str, writer: str, until: float) -> int:
    """Stream numbered rows; return how many were acknowledged by Spark's checkpoint."""
    numbers = spark.readStream.format("rate").option("rowsPerSecond", 20).option("numPartitions", 1).load()
    rows = numbers.select(
        F.lit(writer).alias("writer"), F.col("value").alias("number"), F.lit(1).alias("times")
    )
    query = (
        rows.writeStream.format("delta")
        .option("checkpointLocation", f"{table}-checkpoints/{writer}")
        .trigger(processingTime="1 second")
        .start(table)
    )
    acknowledged: list[int] = []
    while query.isActive and (time.monotonic() < until or len(acknowledged) < LEAST):
        time.sleep(0.2)
        acknowledged = [
            count for progress in query.recentProgress if (count := int(progress["numInputRows"]))
        ]
    if error := query.exception():
        raise error
    query.stop()
    return sum(acknowledged)


def role(writer: str) -> Callable[[SparkSession, str, str, float], int]:
    """Return what a writer does."""
    return stream if writer in STREAMS else append if writer in APPENDERS else merge


def run_writers(spark: SparkSession, table: str, writers: Sequence[str], seconds: float) -> dict[str, int]:
    """Let writers write side by side until the time is over; return what was acknowledged, by writer."""
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(len(writers)) as pool:
        counts = [pool.submit(role(writer), spark, table, writer, until) for writer in writers]
        return {writer: count.result() for writer, count in zip(writers, counts, strict=True)}


def wrong(spark: SparkSession, table: str, acknowledged: Mapping[str, int]) -> list[str]:
    """Return what is not as it was acknowledged; an empty list means that the table has each row once."""
    rows = delta.read(spark, table)
    rows_by_writer = {
        row["writer"]: row
        for row in rows.groupBy("writer")
        .agg(
            F.count("*").alias("rows"),
            F.countDistinct("number").alias("numbers"),
            F.max("number").alias("last"),
        )
        .collect()
    }
    problems = []
    for writer, count in acknowledged.items():
        row = rows_by_writer.get(writer)
        counts = (row["rows"], row["numbers"], row["last"] + 1) if row else (0, 0, 0)
        if len(set(counts)) != 1 or counts[0] < count or (writer not in STREAMS and counts[0] != count):
            problems.append(f"{writer}: acknowledged {count}, rows, numbers and last are {counts}")
    return problems


def start_spark(name: str) -> SparkSession:
    """Start Spark as the workbench does; Azure's store is found by its JVM."""
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.streaming.numRecentProgressUpdates": "1000000",
    }
    if options := os.environ.get(JAVA_OPTIONS_VARIABLE):
        os.environ["JDK_JAVA_OPTIONS"] = options
    spark = session.local_session(name, PROJECT / "jars", quiet)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def store(on: str) -> StorageSettings:
    """Return an embedded store, from the variables that it exports."""
    name = STORES[on][0]
    source = os.environ[f"WORKBENCH_{name.upper()}_SOURCE"].replace("wasbs:", f"{on}:")
    parameters = {"env": f"local-{name}", "storage": f"{source}/writers"}
    return load_settings("gps", parameters, secrets=secret, conf=PROJECT / "conf").storage


def open_store(spark: SparkSession, on: str) -> None:
    """Open the store for a session; a folder needs no opening."""
    if on != "folder":
        mount.mount(None, store(on), spark)


def ensure_table(spark: SparkSession, table: str) -> None:
    """Create the table, or wait for the driver that creates it."""
    delta.ensure_table(spark, table, spark.createDataFrame([], SCHEMA).schema, {})


def drivers(table: str, on: str, seconds: float) -> dict[str, int]:
    """Run each group of writers in a separate driver; return what was acknowledged, by writer."""
    command = [sys.executable, "-m", "bench.writers", "--seconds", str(seconds), "--on", on, "--table", table]
    running = [
        subprocess.Popen(
            [*command, *(part for writer in group for part in ("--writer", writer))],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for group in DRIVERS
    ]
    acknowledged: dict[str, int] = {}
    for process in running:
        output, errors = process.communicate(timeout=seconds + 300)
        if process.returncode:
            raise click.ClickException(f"a driver failed:\n{errors[-3000:]}")
        acknowledged |= json.loads(output.splitlines()[-1])
    return acknowledged


def check(table: str, on: str, seconds: float, *, is_one_process: bool) -> None:
    """Let all writers write for a time, and compare.

    Raises:
        ClickException: An acknowledged row is missing, or exists twice.
    """
    spark = start_spark("check")
    open_store(spark, on)
    ensure_table(spark, table)
    everyone = [writer for group in DRIVERS for writer in group]
    done = run_writers(spark, table, everyone, seconds) if is_one_process else drivers(table, on, seconds)
    problems = wrong(spark, table, done)
    versions = delta.latest_version(spark, table)
    console.print(f"{versions} commits by {len(done)} writers; acknowledged: {done}")
    if problems:
        raise click.ClickException("\n".join(problems))
    console.print("the table has each acknowledged row once")


@click.command()
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--one-process", is_flag=True, help="All writers in one driver.")
@click.option("--on", type=click.Choice(list(STORES)), default="s3", show_default=True)
@click.option("--table", default="", help="Use services that run already.")
@click.option("--writer", "writers", multiple=True, help="Be these (for the bench itself).")
def main(seconds: float, one_process: bool, on: str, table: str, writers: tuple[str, ...]) -> None:
    """Write for a time, on separate services where no table is given, and compare."""
    if writers:
        spark = start_spark("writers")
        open_store(spark, on)
        # As an ingest does: another driver may be creating the table.
        ensure_table(spark, table)
        print(json.dumps(run_writers(spark, table, writers, seconds)))
        return
    with nullcontext() if table else own_services("writers", extras=STORES[on]) as own:
        if own is not None:
            folder, addresses = own
            os.environ |= addresses.environment()
            table = f"file:{folder}/table" if on == "folder" else f"{store(on).source}/table"
        check(table, on, seconds, is_one_process=one_process)


if __name__ == "__main__":
    main()
