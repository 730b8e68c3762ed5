"""Streams that start again by themselves, and those that do not."""

from __future__ import annotations

from uuid import uuid4

import pytest
from pyspark.sql import functions as F

import topiclake as tl
from tests.support.waiting import wait_until
from topiclake.errors import IngestError, KafkaError, SchemaRegistryError


@pytest.mark.thorough("a further reason of a restart")
def test_a_stream_of_a_table_starts_again_when_the_table_is_given_a_column(spark, tmp_path):
    """Also when a service is away at that moment."""
    table, out = f"{tmp_path}/table", f"{tmp_path}/out"
    spark.range(3).write.format("delta").save(table)
    away = [None, SchemaRegistryError("away"), KafkaError("away")]

    def start():
        if away and (error := away.pop(0)):
            raise error
        rows = spark.readStream.format("delta").load(table).select("id").writeStream.format("parquet")
        rows = rows.queryName("copy").trigger(processingTime="1 second").option("path", out)
        return rows.option("checkpointLocation", f"{tmp_path}/checkpoint").start()

    query = tl.start_restarted(start)
    query.await_caught_up("1 second")
    wider = spark.range(3, 5).withColumn("more", F.lit(1))
    wider.write.format("delta").mode("append").option("mergeSchema", "true").save(table)
    wait_until(lambda: query.restarts == 1 and spark.read.parquet(out).count() == 5)
    assert sorted(row["id"] for row in spark.read.parquet(out).collect()) == [0, 1, 2, 3, 4]
    query.stop()


def test_a_query_that_fails_for_good_is_told_to_who_waits(spark, tmp_path):
    def start():
        rows = spark.readStream.format("rate").load().select(F.raise_error(F.lit("broken")).alias("id"))
        rows = rows.writeStream.format("memory").queryName(f"broken_{uuid4().hex}")
        return rows.start()

    query = tl.start_restarted(start)
    with pytest.raises(IngestError, match="broken"):
        query.keep_running(300)
    assert (query.isActive, query.restarts) == (False, 0)


@pytest.mark.thorough("test_registry_outage waits for a service, and continues")
def test_a_service_that_stays_away_is_told_and_a_stop_ends_the_waiting(spark, tmp_path):
    def failing(name):
        spark.range(3).write.format("delta").save(f"{tmp_path}/{name}")
        calls = []

        def start():
            calls.append(name)
            if len(calls) > 1:
                raise SchemaRegistryError("the registry is away")
            rows = spark.readStream.format("delta").load(f"{tmp_path}/{name}").writeStream.format("memory")
            return rows.queryName(f"{name}_{uuid4().hex}").trigger(processingTime="1 second").start()

        return start, calls

    def widen(name):
        wider = spark.range(3, 5).withColumn("more", F.lit(1))
        wider.write.format("delta").mode("append").option("mergeSchema", "true").save(f"{tmp_path}/{name}")

    start, calls = failing("impatient")
    query = tl.start_restarted(start, patience=0)
    widen("impatient")
    with pytest.raises(SchemaRegistryError, match="the registry is away"):
        query.keep_running(300)
    assert len(calls) == 2
    assert not query.isActive

    start, calls = failing("stopped")
    query = tl.start_restarted(start)
    widen("stopped")
    wait_until(lambda: len(calls) > 1)
    query.stop()
    wait_until(lambda: not query.isActive)
    query.keep_running(300)
