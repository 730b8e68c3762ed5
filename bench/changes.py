"""The cost of a batch of changes: the usual MERGE, the same with our column `_cdc`, ours, and an append.

The usual MERGE has a table without deletion vectors, which is Delta's default, and one with them. Ours has
them by default, and also writes into a table without them.

Makes a table of N rows and batches of changes: updates of its keys, and a few new keys. The keys are uniform,
or skewed: half of the changes are of a hundredth of the keys. Each side has a copy of the table, and reads
the same files as a stream, a file a batch, in one session. The usual MERGE is `dropDuplicates` of the keys,
then update all and insert all. It selects any change of a key. So the number of rows that differ from the
newest change of their key is printed. The seconds are Spark's `triggerExecution`. The first two batches warm
the JVM up and do not count.

    python -m bench.changes --rows 10000000 --changes 100000 --batches 12
    python -m bench.changes --rows 1000000 --changes 1000 --batches 1002 --rounds 1 --sides topiclake
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import click
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from rich.table import Table

import topiclake as tl
from bench.drain import batch_seconds
from bench.rounds import PROJECT, Run, console, in_rounds, spread
from topiclake.config.settings import Settings
from topiclake.session import local_session

WARM_UP_BATCHES = 2
#: Number of batches at the beginning and at the end that are compared.
EDGE = 100
COLUMNS = "id BIGINT, sequence BIGINT, name STRING, amount DOUBLE, city STRING"
USUALS = USUAL, USUAL_CDC, USUAL_VECTORS = "usual-merge", "usual-merge-cdc", "usual-merge-vectors"
OURS, OUR_COPIES, APPEND = "topiclake", "topiclake-no-vectors", "append"
SIDES = (*USUALS, OURS, OUR_COPIES, APPEND)
CONFIGURATION = """
kafka: {{bootstrap_servers: "127.0.0.1:1"}}
schema_registry: {{url: "http://127.0.0.1:1"}}
storage: {{source: "{source}", mount_point: /mnt/lake}}
pipelines:
  changes:
    topic: changes
    view: changes
    trigger: availableNow
    table_path: /mnt/lake/table
    checkpoint_path: /mnt/lake/checkpoint
"""
#: Metrics of Delta's history for a MERGE and for an append.
BYTES, FILES = ("numTargetBytesAdded", "numOutputBytes"), ("numTargetFilesAdded", "numAddedFiles")


def with_values(numbers: DataFrame) -> DataFrame:
    """Add the columns to rows `id BIGINT, sequence BIGINT`."""
    mixed = F.xxhash64("id", "sequence")
    return numbers.select(
        "id",
        "sequence",
        F.concat(F.lit("customer "), mixed.cast("string")).alias("name"),
        (F.pmod(mixed, F.lit(1_000_000)) / 100).alias("amount"),
        F.concat(F.lit("city "), F.pmod(mixed, F.lit(997)).cast("string")).alias("city"),
    )


def write_changes(
    spark: SparkSession, folder: Path, rows: int, changes: int, batches: int, is_skewed: bool
) -> None:
    """Write the rows of the table, and each batch of changes, as a Parquet file each."""
    with_values(spark.range(rows).withColumn("sequence", F.lit(0).cast("bigint"))).coalesce(2).write.parquet(
        f"{folder}/rows"
    )
    random = F.pmod(F.xxhash64("sequence"), F.lit(2**40)) / 2**40
    # A new key for each hundred changes.
    keys = (random * rows * 1.01).cast("bigint")
    if is_skewed:
        # The hundredth of the keys is spread over the table, as keys that are in use are.
        keys = F.when(F.col("sequence") % 2 == 0, (random * (rows // 100)).cast("bigint") * 100).otherwise(
            keys
        )
    (folder / "changes").mkdir()
    for number in range(batches):
        first = 1 + number * changes
        numbers = spark.range(first, first + changes).toDF("sequence").withColumn("id", keys)
        with_values(numbers).coalesce(1).write.parquet(f"{folder}/batch")
        (file,) = (folder / "batch").glob("*.parquet")
        file.rename(folder / "changes" / f"{number:05}.parquet")
        shutil.rmtree(folder / "batch")


def configuration(folder: Path) -> Settings:
    """Return a configuration whose store is the folder; no broker and no registry is used."""
    (conf := folder / "conf").mkdir(exist_ok=True)
    (conf / "base.yaml").write_text(CONFIGURATION.format(source=folder.as_uri()))
    (conf / "local.yaml").write_text("")
    return tl.load_settings("changes", {"env": "local"}, conf=conf)


def apply(spark: SparkSession, side: str, folder: Path, source: Path, is_first: bool) -> StreamingQuery:
    """Apply all files below `source` to the side's table, a file a batch; the first rows make the table."""
    stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(source))
    table, checkpoint = f"{folder}/{side}", f"{folder}/{side}-{source.name}"
    if side in (OURS, OUR_COPIES):
        query = tl.apply_changes(
            stream,
            configuration(folder),
            path=f"file:{table}",
            keys=["id"],
            sequence_by="sequence",
            table_properties={"delta.enableDeletionVectors": "false"} if side == OUR_COPIES else {},
            checkpoint_path=f"file:{checkpoint}",
        )
        tl.await_caught_up(query, "availableNow")
        return query

    if side == USUAL_CDC:
        cdc = F.struct(
            F.col("sequence").alias("order_sequence"),
            F.lit(False).alias("deleted"),
            F.lit(None).cast("timestamp").alias("deleted_at"),
        )
        stream = stream.withColumn("_cdc", cdc)

    def merge(batch: DataFrame, _: int) -> None:
        target = DeltaTable.forPath(spark, table).alias("old")
        rows = batch.dropDuplicates(["id"]).alias("new")
        merged = target.merge(rows, "old.id = new.id").whenMatchedUpdateAll().whenNotMatchedInsertAll()
        merged.execute()

    writer = stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    if side in USUALS and not is_first:
        query = writer.foreachBatch(merge).start()
    else:
        query = writer.format("delta").start(table)
    query.awaitTermination()
    return query


def wrong_rows(spark: SparkSession, table: str, side: str, folder: Path, source: Path) -> int:
    """Return how many keys do not have their newest change; of an append, how many rows are missing."""
    rows, changes = spark.read.parquet(f"{source}/rows"), spark.read.parquet(f"{source}/changes")
    everything = rows.unionByName(changes)
    if side == APPEND:
        return abs(everything.count() - spark.read.format("delta").load(table).count())
    if side in USUALS:
        found = spark.read.format("delta").load(table)
    else:
        found = tl.changes_view(spark, configuration(folder), path=f"file:{table}")
    expected = everything.groupBy("id").agg(F.max_by(F.struct("*"), "sequence").alias("row")).select("row.*")
    found = found.select(*expected.columns)
    assert found.count() == expected.count()
    return expected.exceptAll(found).count()


def written(spark: SparkSession, table: str, batches: int) -> tuple[int, int]:
    """Return the bytes and the files that the last batches have written."""
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT {batches}").collect()
    metrics = [row["operationMetrics"] for row in history]

    def total(names: tuple[str, str]) -> int:
        return sum(int(each[name]) for each in metrics for name in names if name in each)

    return total(BYTES), total(FILES)


def run_side(spark: SparkSession, side: str, folder: Path, source: Path, optimized: bool) -> Run:
    """Copy the side's first table, apply all batches to it, and compare it."""
    first, table = folder / f"first-{side}", folder / side
    for old in (table, folder / f"{side}-changes"):
        shutil.rmtree(old, ignore_errors=True)
    if not first.exists():
        apply(spark, side, folder, source / "rows", is_first=True)
        if side == USUAL_VECTORS:
            spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
        if optimized:
            spark.sql(f"OPTIMIZE delta.`{table}`")
        table.rename(first)
    shutil.copytree(first, table)
    query = apply(spark, side, folder, source / "changes", is_first=False)
    seconds = batch_seconds(query)[WARM_UP_BATCHES:]
    new_bytes, new_files = written(spark, str(table), len(seconds))
    return {
        "seconds": seconds,
        "bytes": new_bytes,
        "files": new_files,
        "wrong": wrong_rows(spark, str(table), side, folder, source),
    }


def report(results: dict[str, list[Run]], title: str, changes: int) -> None:
    """Print the figures; a ratio is that of rates within one round."""
    columns = "", "changes/s", "of usual's (min – max)", "MB/batch", "files/batch", "last/first", "wrong"
    table = Table(*columns, title=title)
    for side, runs in results.items():
        rates = [changes / statistics.median(run["seconds"]) for run in runs]
        usual = [changes / statistics.median(run["seconds"]) for run in results.get(USUAL, [])]
        number = len(runs[0]["seconds"])
        edge = min(EDGE, number // 2)
        growth = [
            statistics.median(run["seconds"][-edge:]) / statistics.median(run["seconds"][:edge])
            for run in runs
        ]
        table.add_row(
            side,
            f"{statistics.median(rates):,.0f}",
            spread(own / other for own, other in zip(rates, usual, strict=True)) if usual else "",
            f"{runs[-1]['bytes'] / number / 1e6:,.1f}",
            f"{runs[-1]['files'] / number:,.1f}",
            spread(growth),
            f"{max(run['wrong'] for run in runs):,}",
        )
    console.print(table)


@click.command()
@click.option("--rows", default=10_000_000, show_default=True)
@click.option("--changes", default=100_000, show_default=True, help="Changes of a batch.")
@click.option("--batches", default=7, show_default=True, help=f"{WARM_UP_BATCHES} of them do not count.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--sides", "listed", default=",".join(SIDES), show_default=True)
@click.option("--skewed", is_flag=True, help="Half of the changes are of a hundredth of the keys.")
@click.option(
    "--optimized", is_flag=True, help="OPTIMIZE the first tables; without vectors ours has clusters."
)
def main(
    rows: int, changes: int, batches: int, rounds: int, listed: str, skewed: bool, optimized: bool
) -> None:
    """Run the rounds."""
    with tempfile.TemporaryDirectory(prefix="topiclake-changes-") as name:
        folder, source = Path(name) / "lake", Path(name) / "source"
        folder.mkdir()
        source.mkdir()
        quiet: dict[str, Any] = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.streaming.numRecentProgressUpdates": "1000000",
            "spark.local.dir": f"{name}/tmp",
            # The comparison of all rows needs more than Spark's default of 1 GB.
            "spark.driver.memory": "4g",
        }
        spark = local_session("changes", PROJECT / "jars", quiet)
        write_changes(spark, source, rows, changes, batches, skewed)
        results = in_rounds(
            listed.split(","),
            rounds,
            lambda side: run_side(spark, side, folder, source, optimized),
            lambda run: f"median {statistics.median(run['seconds']):.3f} s, {run['wrong']:,} wrong rows",
        )
        spark.stop()
    keys = "skewed keys" if skewed else "uniform keys"
    title = f"{rows:,} rows, {batches - WARM_UP_BATCHES:,} batches of {changes:,} changes, {keys}"
    report(results, title + (", optimized" if optimized else ""), changes)
    console.print(f"{os.cpu_count()} cores; ours have the newest change of each key")
    if any(run["wrong"] for side, runs in results.items() if side not in USUALS for run in runs):
        raise SystemExit("rows are wrong")


if __name__ == "__main__":
    main()
