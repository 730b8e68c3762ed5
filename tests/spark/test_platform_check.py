"""A JVM without Avro's limits, which one record can end, is refused before anything is read."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from topiclake.delta import log_store
from topiclake.errors import PlatformError
from topiclake.session import AVRO_LIMITS, jvm_options, require_avro_limits, require_redaction

STARTED_WITHOUT = """
from pyspark.sql import SparkSession
from topiclake.errors import PlatformError
from topiclake.session import require_avro_limits

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.config("spark.driver.extraJavaOptions", "").getOrCreate()
try:
    require_avro_limits(spark)
except PlatformError as error:
    print("refused:", error.cause, "|", error.remedy)
else:
    print("accepted")
spark.stop()
"""


def started_without(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STARTED_WITHOUT],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_named_parameters_reach_queries_through_deltas_parser(spark):
    spark.range(3).createOrReplaceTempView("three")
    query = "SELECT id FROM IDENTIFIER(:view) WHERE id >= :least"
    assert spark.sql(query, args={"view": "three", "least": 2}).collect() == [(2,)]


def test_the_session_of_the_library_passes(spark):
    require_avro_limits(spark)
    require_redaction(spark)


def test_a_jvm_without_the_limits_is_refused_with_what_to_set(tmp_path):
    said = started_without(tmp_path)
    for name in AVRO_LIMITS:
        assert name in said
    assert said.startswith("refused: the JVM has no org.apache.avro.limits.")
    assert f"spark.driver.extraJavaOptions {jvm_options()}" in said
    assert f"spark.executor.extraJavaOptions {jvm_options()}" in said
    assert "spark-defaults.conf or --conf" in said


def test_a_jvm_is_told_the_limits_that_it_lacks_and_those_that_bound_nothing(monkeypatch):
    """Avro ignores what is no number or below 0."""
    good, below, no_number, absent = AVRO_LIMITS
    found = {good: "1000", below: "-1", no_number: "16m"}
    monkeypatch.setattr("topiclake.session._properties", lambda _: found)
    with pytest.raises(PlatformError) as raised:
        require_avro_limits(SimpleNamespace())
    cause = raised.value.cause
    assert good not in cause
    assert f"{below} (it is '-1')" in cause
    assert f"{no_number} (it is '16m')" in cause
    assert absent in cause


@pytest.mark.parametrize("scheme", ["file", "s3a"])
def test_a_session_whose_log_a_second_driver_could_overwrite_is_refused(spark, scheme):
    path, key = f"{scheme}:/lake/gps", f"spark.delta.logStore.{scheme}.impl"
    log_store.require_log_store(spark, path)
    plain = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: None))
    with pytest.raises(PlatformError) as raised:
        log_store.require_log_store(plain, path)
    assert raised.value.fields == {"path": path, "key": key}
    assert raised.value.remedy.startswith(f"set {key} to {spark.conf.get(key)}")
    log_store.require_log_store(plain, "wasbs://lake@account.blob.core.windows.net/gps")


@pytest.fixture
def databricks(spark, monkeypatch):
    """A session that forbids `java_method`, as Databricks' shared clusters do; its settings can be read."""
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")

    def forbidden(_spark):
        raise PySparkException("[UNSUPPORTED] java_method is not allowed on this cluster")

    monkeypatch.setattr("topiclake.session._properties", forbidden)
    settings = {"spark.driver.extraJavaOptions": jvm_options()}
    return SimpleNamespace(conf=SimpleNamespace(get=settings.get)), settings


def test_where_the_jvm_cannot_be_asked_the_settings_tell(databricks):
    session, _ = databricks
    require_avro_limits(session)


def test_settings_without_the_limits_are_refused_for_the_clusters_own_config(databricks):
    session, settings = databricks
    settings["spark.driver.extraJavaOptions"] = "-XX:+UseG1GC"
    with pytest.raises(PlatformError, match=r"the JVM has no org\.apache\.avro") as raised:
        require_avro_limits(session)
    assert raised.value.remedy.startswith(
        "put into the cluster's Spark config: spark.driver.extraJavaOptions -D"
    )
    for nothing in ("none", "0", "2147483647"):
        settings["spark.driver.extraJavaOptions"] = jvm_options().replace("=65536", f"={nothing}")
        with pytest.raises(PlatformError, match=rf"maxAllocation \(it is '{nothing}'\)"):
            require_avro_limits(session)
    del settings["spark.driver.extraJavaOptions"]
    with pytest.raises(PlatformError):
        require_avro_limits(session)
