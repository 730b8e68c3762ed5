"""A long run: what its end costs against its beginning.

A query drains a topic in many micro-batches of 1,000 GPS records. Then a query of the same table reads a
stream for an hour. Prints the seconds of a batch, the JVM's heap after a garbage collection and its threads.
It also prints the open files of both processes, and the memory of Python. Each figure has its beginning, its
end, and their ratio: the first and the last fifth, without the first 200 batches. At the end, the audit must
find each record once. Exits with 1 if a ratio is above 1.1.

    python -m bench.soak --batches 10000 --minutes 60
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import click
import psutil
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from rich.table import Table

import topiclake as tl
from bench import gps_ingest, latency
from bench.drain import start_spark
from bench.rounds import PROJECT, console, own_services
from topiclake.config.settings import Settings
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import header
from topiclake_examples.gps import tracks as gps_tracks

TOPIC = "soak"
ROWS = 1_000
#: Batches before the first one that counts.
WARM_UP_BATCHES = 200
#: Seconds between two samples.
PERIOD = 10.0
#: Records a second of the stream.
RATE = 1_000
MOST = 1.1


@dataclass(frozen=True)
class Sample:
    """Memory, threads and open files at a moment."""

    heap_mb: float
    threads: int
    open_files: int
    python_mb: float


class Batches(StreamingQueryListener):
    """The seconds of each batch with records."""

    def __init__(self) -> None:
        """Begin without batches."""
        self.seconds: list[float] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (PySpark's name)
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 (PySpark's name)
        """Keep the seconds of a batch."""
        if event.progress.numInputRows:
            self.seconds.append(event.progress.durationMs["triggerExecution"] / 1000)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 (PySpark's name)
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 (PySpark's name)
        """Do nothing."""


def sample() -> Sample:
    """Collect the JVM's garbage, and look at both processes."""
    own = psutil.Process()
    (jvm,) = (child for child in own.children(recursive=True) if "pyspark-shell" in child.cmdline())
    jcmd(jvm.pid, "GC.run")
    used = re.search(r"heap +total \d+K, used (\d+)K", jcmd(jvm.pid, "GC.heap_info"))
    assert used is not None
    open_files = jvm.num_fds() + own.num_fds()
    return Sample(int(used[1]) / 1024, jvm.num_threads(), open_files, own.memory_info().rss / 2**20)


def jcmd(process: int, command: str) -> str:
    """Send a command of the JDK to a JVM."""
    done = subprocess.run(["jcmd", str(process), command], capture_output=True, text=True, check=True)
    return done.stdout


def watch(batches: Batches, ends: Callable[[], bool]) -> list[Sample]:
    """Sample until the end, without the first batches."""
    samples = []
    while not ends():
        time.sleep(PERIOD)
        if len(batches.seconds) > WARM_UP_BATCHES:
            samples.append(sample())
    return samples


def configuration(folder: Path, trigger: str) -> Settings:
    """Return the configuration of the query."""
    settings = gps_ingest.load(TOPIC, ROWS, folder)
    return settings.model_copy(update={"pipeline": settings.pipeline.model_copy(update={"trigger": trigger})})


def drain(spark: SparkSession, folder: Path, batches: Batches) -> list[Sample]:
    """Drain the topic in batches of 1,000 records."""
    query = tl.start_ingest(spark, configuration(folder, "availableNow"))
    samples = watch(batches, lambda: not query.isActive)
    tl.await_caught_up(query, "availableNow")
    return samples


def stream(spark: SparkSession, folder: Path, batches: Batches, minutes: float) -> tuple[list[Sample], int]:
    """Read a steady stream, a batch a second; return the samples and the number of records."""
    settings = configuration(folder, "1 second")
    schema = SchemaRegistry.from_settings(settings.schema_registry).latest(f"{TOPIC}-value")
    tracks = gps_tracks.read_tracks(PROJECT / "data" / "gps_tracks.csv")
    rests = list(gps_ingest.after_times(tracks, latency.DIFFERENT))
    query = tl.start_ingest(spark, settings)
    with ThreadPoolExecutor(1) as pool:
        start = header(schema.schema_id)
        sent: Future[tuple[int, int]] = pool.submit(latency.send, settings, start, rests, RATE, minutes * 60)
        samples = watch(batches, lambda: sent.done() or not query.isActive)
        records, _ = sent.result()
    query.processAllAvailable()
    query.stop()
    return samples, records


def report(title: str, seconds: Sequence[float], samples: Sequence[Sample]) -> bool:
    """Print the beginning and the end of a part, and return whether all is flat."""
    table = Table(title=f"{title}: {len(seconds):,} batches")
    for column in ("", "beginning", "end", "end / beginning"):
        table.add_column(column, justify="right" if column else "left")
    columns: dict[str, Sequence[float]] = {"seconds of a batch": seconds[WARM_UP_BATCHES:]}
    for field, values in zip(fields(Sample), zip(*map(astuple, samples), strict=True), strict=True):
        columns[field.name.replace("_", " ")] = values
    is_flat = True
    for name, figures in columns.items():
        fifth = max(1, len(figures) // 5)
        first, last = statistics.median(figures[:fifth]), statistics.median(figures[-fifth:])
        is_flat &= last <= first * MOST
        table.add_row(name, f"{first:,.3g}", f"{last:,.3g}", f"{last / first:.2f}")
    console.print(table)
    return is_flat


@click.command()
@click.option(
    "--batches", "number", type=click.IntRange(min=2 * WARM_UP_BATCHES), default=10_000, show_default=True
)
@click.option("--minutes", type=click.FloatRange(min=5), default=60, show_default=True, help="Of the stream.")
def main(number: int, minutes: float) -> None:
    """Run both parts on a separate broker and registry."""
    with own_services("soak") as (folder, addresses):
        os.environ |= addresses.environment()
        gps_ingest.preload(gps_ingest.load(TOPIC), number * ROWS)
        os.environ["BENCH_SPARK_CONF"] = json.dumps({"spark.sql.streaming.numRecentProgressUpdates": "100"})
        spark = start_spark("topiclake")
        lake = folder / "lake"
        drained, streamed = Batches(), Batches()
        spark.streams.addListener(drained)
        samples = drain(spark, lake, drained)
        is_flat = report("drain", drained.seconds, samples)
        spark.streams.removeListener(drained)
        spark.streams.addListener(streamed)
        samples, records = stream(spark, lake, streamed, minutes)
        is_flat &= report("stream", streamed.seconds, samples)
        settings = configuration(lake, "availableNow")
        rows = tl.create_view(spark, settings).count()
        findings = tl.audit_ingest(spark, settings).findings
        spark.stop()
    console.print(
        f"{rows:,} rows of {number * ROWS + records:,} records; the audit finds {len(findings)} faults"
    )
    if rows != number * ROWS + records or findings or not is_flat:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
