"""How streams keep their state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import functions as F

import topiclake as tl
from topiclake.config.load import load_settings
from topiclake.streaming.windows import Windows, window_counts

CONF = Path(__file__).parents[3] / "conf"
ENVIRONMENT = {
    "WORKBENCH_KAFKA": "k:1",
    "WORKBENCH_SCHEMA_REGISTRY": "http://r",
    "WORKBENCH_DATALAKE": "file:///d",
}


@pytest.fixture
def settings(monkeypatch, spark):
    """Those of the hits; what a test sets in the session is taken back."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    yield load_settings("isp", {}, conf=CONF)
    for row in spark.sql("SET").collect():
        if row["key"].startswith("spark.sql.streaming.stateStore."):
            spark.conf.unset(row["key"])
    spark.conf.set("spark.sql.shuffle.partitions", partitions)


def counted(spark, folder):
    """Count the numbers of a folder's files in one stream; return the counts and what the state was."""
    numbers = spark.readStream.schema("at TIMESTAMP, number INT").json(f"{folder}/numbers")
    counts = (
        window_counts(numbers, Windows("at", ("number",))).writeStream.format("memory").outputMode("complete")
    )
    checkpoint = counts.queryName("counted").option("checkpointLocation", f"{folder}/checkpoint")
    query = checkpoint.trigger(availableNow=True).start()
    tl.await_caught_up(query, "availableNow")
    states = [one["stateOperators"][0] for one in query.recentProgress if one["stateOperators"]]
    return spark.table("counted").agg(F.sum("count")).first()[0], states


def test_on_databricks_the_store_stays_the_runtimes_own(spark, settings, monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    state = settings.state.model_copy(update={"partitions": 5})
    tl.set_state(spark, settings.model_copy(update={"state": state}))
    assert spark.conf.get("spark.sql.shuffle.partitions") == "5"
    assert spark.conf.get("spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB", None) is None


def set_store(spark, settings, store, **state):
    """Set RocksDB by the library; else Spark's own store, in the JVM's heap."""
    tl.set_state(spark, settings.model_copy(update={"state": settings.state.model_copy(update=state)}))
    if store == "memory":
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")


@pytest.mark.parametrize("store", ["rocksdb", "memory"])
def test_the_state_is_kept_in_rocksdb_unless_the_checkpoint_began_otherwise(spark, settings, tmp_path, store):
    set_store(spark, settings, store, partitions=3, memory_mb=64)
    spark.range(10).selectExpr("timestamp_seconds(id) AS at", "CAST(id % 2 AS INT) AS number").write.json(
        f"{tmp_path}/numbers"
    )
    total, states = counted(spark, tmp_path)
    assert total == 20
    assert {one["numShufflePartitions"] for one in states} == {3}
    assert any("rocksdb" in name for name in states[0]["customMetrics"]) == (store == "rocksdb")

    other = {"rocksdb": "memory", "memory": "rocksdb"}[store]
    set_store(spark, settings, other, partitions=2)
    spark.range(10).selectExpr("timestamp_seconds(id) AS at", "7 AS number").write.mode("append").json(
        f"{tmp_path}/numbers"
    )
    total, states = counted(spark, tmp_path)
    assert total == 40, "what was counted before is still there"
    assert {one["numShufflePartitions"] for one in states} == {3}
    assert any("rocksdb" in name for name in states[0]["customMetrics"]) == (store == "rocksdb")
    assert json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
