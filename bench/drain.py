"""Drain the benchmark's topic once, with one side's code, and print what it cost as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from bench import articles
from bench.floor import FLOOR, start_gps
from bench.gps_ingest import CONNECT, SIDES, TUNED, cpu_seconds, load, warm_up
from bench.rounds import PROJECT
from tests.support.connect import ConnectServer
from topiclake import session
from topiclake.config.settings import Settings
from topiclake.ingest import start as ingest
from topiclake.kafka import source as kafka_source
from topiclake.sources.layout import KAFKA_COLUMN
from topiclake.streaming import progress

#: Holds settings of Spark on top of all others, as JSON.
CONF_VARIABLE = "BENCH_SPARK_CONF"
#: Run by a client of a Spark Connect server in this JVM. Not counted: the start of the client.
CLIENT = """
import json, time
from bench.drain import batch_seconds, topiclake
started = time.monotonic()
query = topiclake(spark, settings)
print(json.dumps({"seconds": time.monotonic() - started, "batches": batch_seconds(query)}))
"""


def tuned_article(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Drain as the article does, with our settings of the consumer."""
    return articles.append_avro(spark, settings, consumer_settings(settings))


def consumer_settings(settings: Settings) -> dict[str, str]:
    """Return our settings of the Kafka consumer."""
    options = kafka_source.reader_options(settings.kafka, settings.pipeline)
    return {name: value for name, value in options.items() if name.startswith("kafka.")}


def floor(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Drain with Spark and Delta alone."""
    query = start_gps(spark, settings)
    query.awaitTermination()
    return query


def six_columns(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Drain as the notebook does, into the columns that the article has."""
    pipeline = settings.pipeline.model_copy(update={"kafka_column": False})
    return topiclake(spark, settings.model_copy(update={"pipeline": pipeline}))


def topiclake(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Drain as the notebook does."""
    query = ingest.start_ingest(spark, settings)
    progress.await_caught_up(query, settings.pipeline.trigger)
    return query


def sums(spark: SparkSession, folder: Path | str) -> list[Any]:
    """Return `sums_of` the table that a side made."""
    return sums_of(spark.read.format("delta").load(f"{folder}/delta/gps"))


def sums_of(rows: DataFrame) -> list[Any]:
    """Return the count, and a sum of each column but `_kafka` that does not depend on the rows' order."""
    columns = [name for name in rows.columns if name != KAFKA_COLUMN]
    hashes = [F.sum(F.xxhash64(column).cast("decimal(38,0)")).cast("string") for column in columns]
    return list(rows.agg(F.count("*"), *hashes).collect()[0])


def start_spark(side: str) -> SparkSession:
    """Start Spark: for the article with Delta and Spark's defaults, for us as the workbench does."""
    quiet: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # All of them, for the seconds of each batch.
        "spark.sql.streaming.numRecentProgressUpdates": "1000000",
    }
    if side in ("article", TUNED):
        conf = {key: value for key, value in session.spark_conf().items() if key in articles.CONF}
        jars = ",".join(str(jar) for jar in sorted(PROJECT.glob("jars/spark/target/jars/*.jar")))
        builder = SparkSession.builder.master("local[*]").config(map=conf | quiet | {"spark.jars": jars})
        spark = builder.getOrCreate()
    else:
        extra = json.loads(os.environ.get(CONF_VARIABLE, "{}"))
        spark = session.local_session("bench", PROJECT / "jars", quiet | extra)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def batch_seconds(query: StreamingQuery) -> list[float]:
    """Return how long each batch with records took; Spark counts none of those that are read by range."""
    progresses = [
        progress
        for progress in query.recentProgress
        if any(source["startOffset"] != source["endOffset"] for source in progress["sources"])
    ]
    return [progress["durationMs"]["triggerExecution"] / 1000 for progress in progresses]


def drain(side: str, spark: SparkSession, server: ConnectServer | None, settings: Settings) -> dict[str, Any]:
    """Drain a topic; return the seconds of all batches together, and of each."""
    if server is not None:
        return dict(json.loads(server.run(CLIENT, settings=settings).stdout.splitlines()[-1]))
    sides = {"article": articles.append_avro, TUNED: tuned_article, FLOOR: floor, "topiclake": six_columns}
    code = sides.get(side, topiclake)
    started = time.monotonic()
    query = code(spark, settings)
    return {"seconds": time.monotonic() - started, "batches": batch_seconds(query)}


def main(side: str, folder: Path, rows: int | None) -> None:
    """Start Spark, drain a small topic to warm the JVM up, drain the big one, verify, print.

    With `rows`, in batches of that size.
    """
    spark = start_spark(side)
    server = ConnectServer(spark) if side == CONNECT else None
    drain(side, spark, server, load(warm_up(SIDES[side]), rows, folder / "warm-up"))
    used = cpu_seconds()
    cost = drain(side, spark, server, load(SIDES[side], rows, folder))
    print(json.dumps(cost | {"cpu_seconds": cpu_seconds() - used, "sums": sums(spark, folder)}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else None)
