"""The GPS notebooks, run as a user runs them; then their tables, and every way to get them wrong."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

import topiclake as tl
from tests.support.environment import succeeded, without_workbench
from topiclake.config.kafka import KafkaSettings
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.errors import (
    ConfigError,
    DecodeError,
    KafkaError,
    StorageError,
    SubjectNotFoundError,
    TopiclakeError,
    TopicNotFoundError,
)
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake_examples.gps import publish_tracks
from workbench.dbutils import DBUtils
from workbench.kernel.session import SUBMITTED_VARIABLES

PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Notebooks:
    """The project's notebooks on the embedded services, each test with a topic and tables of its own."""

    topic: str
    folder: Path
    environment: dict[str, str]
    kafka: KafkaSettings
    registry: SchemaRegistry
    ingest_parameters: dict[str, str] = field(default_factory=dict)

    def run(self, notebook: str, **parameters: str) -> subprocess.CompletedProcess[str]:
        given = [part for name, value in parameters.items() for part in ("-p", f"{name}={value}")]
        return subprocess.run(
            [sys.executable, "-m", "workbench", "run", f"notebooks/{notebook}.py", *given],
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def result(self, notebook: str, **parameters: str):
        done = self.run(notebook, **parameters)
        return json.loads(re.search(r"^exit value +(.*)$", succeeded(done), re.MULTILINE)[1])

    def ingest(self, **parameters: str):
        return self.result("gps_ingest", **(self.ingest_parameters | parameters))

    def produce(self, values: list[bytes | None], partition: int = 0) -> None:
        producer = Producer(kafka_client.client_settings(self.kafka))
        for value in values:
            producer.produce(self.topic, value=value, partition=partition)
        assert producer.flush(120) == 0


@pytest.fixture
def notebooks(embedded, warm_jvm, request, tmp_path, monkeypatch) -> Notebooks:
    _, addresses = embedded
    for name, value in addresses.environment().items():
        monkeypatch.setenv(name, value)
    topic = re.sub(r"\W+", "-", request.node.name)[:80]
    return Notebooks(
        topic,
        tmp_path,
        # Whatever the machine's time zone is, times are UTC.
        without_workbench() | addresses.environment() | warm_jvm.environment() | {"TZ": "America/New_York"},
        KafkaSettings(bootstrap_servers=addresses.kafka_bootstrap_servers),
        SchemaRegistry(addresses.schema_registry_url),
        {
            "topic": topic,
            "table_path": f"/mnt/datalake/delta/{topic}",
            "checkpoint_path": f"/mnt/datalake/checkpoints/{topic}",
        },
    )


@dataclass(frozen=True)
class Cells:
    """The calls of the notebooks' cells in the session of the tests, which starts nothing."""

    notebooks: Notebooks
    spark: SparkSession
    dbutils: DBUtils

    def settings(self, **parameters: str) -> Settings:
        return load_settings("gps", self.notebooks.ingest_parameters | parameters, conf=PROJECT / "conf")

    def publish(self, devices: object = 3) -> None:
        file = PROJECT / "data" / "gps_tracks.csv"
        publish_tracks(self.settings(), file, devices=devices, times="recorded")

    def ingest(self, **parameters: str) -> dict[str, Any]:
        settings = self.settings(**parameters)
        registry = SchemaRegistry.from_settings(settings.schema_registry)
        registry.latest_of(settings.pipeline.subjects("value", topic=settings.pipeline.topic))
        tl.mount(self.dbutils, settings.storage, self.spark)
        query = tl.start_ingest(self.spark, settings)
        tl.await_caught_up(query, settings.pipeline.trigger)
        return asdict(tl.summarize(self.spark, settings, query))


@pytest.fixture
def cells(notebooks, spark, tmp_path) -> Iterator[Cells]:
    yield Cells(notebooks, spark, DBUtils(tmp_path / "home", PROJECT))
    for query in spark.streams.active:
        query.stop()


def recorded_points() -> list[tuple[object, ...]]:
    with (PROJECT / "data" / "gps_tracks.csv").open(encoding="utf-8") as lines:
        return sorted(
            (
                int(row["timestamp_ms"]),
                row["track"],
                float(row["latitude"]),
                float(row["longitude"]),
                float(row["altitude_m"]),
                float(row["speed_kmh"]),
            )
            for row in csv.DictReader(lines)
        )


@pytest.mark.thorough("make demo and test_databricks run the notebook")
@pytest.mark.slow("a notebook by the command line and two ingests")
def test_every_recorded_point_is_a_row_and_a_second_run_adds_what_is_new(notebooks, spark) -> None:
    # The first run is that of the command line; the others find what it left.
    cells = Cells(notebooks, spark, DBUtils(Path(notebooks.environment["WORKBENCH_HOME"]), PROJECT))
    cells.publish()
    first = notebooks.ingest()
    assert (first["rows_written"], first["quarantined"], first["table"]["rows"]) == (993, {}, 993)
    shown = first["preview"][0]
    time = datetime.fromisoformat(shown["timestamp"].replace("Z", "+00:00")).timestamp() * 1000
    assert time in [point[0] for point in recorded_points() if point[2] == shown["latitude"]]

    table = spark.read.format("delta").load(first["table"]["path"])
    assert table.schema.simpleString() == (
        "struct<timestamp:timestamp,deviceId:string,latitude:double,longitude:double,altitude:double,"
        "speed:double,_kafka:struct<partition:int,offset:bigint>>"
    )
    rows = table.selectExpr(
        "unix_millis(timestamp)", "deviceId", "latitude", "longitude", "altitude", "speed"
    )
    assert sorted(tuple(row) for row in rows.collect()) == recorded_points()
    assert table.select("_kafka").distinct().count() == 993

    cells.publish(4)
    second = cells.ingest()
    assert (second["rows_written"], second["table"]["rows"]) == (1177, 993 + 1177)
    assert second["query_id"] == first["query_id"]
    third = cells.ingest()
    assert (third["rows_written"], third["table"]["version"]) == (0, second["table"]["version"])
    then = spark.read.format("delta").option("versionAsOf", 1).load(first["table"]["path"])
    assert then.count() == 993


def test_failfast_names_topic_partition_and_offset_and_writes_nothing(cells, spark) -> None:
    notebooks = cells.notebooks
    cells.publish()
    notebooks.produce([b"not Avro"], partition=3)
    sentence = refused(DecodeError, cells.ingest, mode="FAILFAST")
    found = re.search(r"topic (\S+), partition (\d+), offset (\d+), schema id (\S+), reason (\w+)", sentence)
    assert (found[1], found[2], found[5]) == (notebooks.topic, "3", "bad_magic")
    assert "mode=PERMISSIVE" in sentence
    table = Path(
        notebooks.environment["WORKBENCH_DATALAKE"].removeprefix("file://"), "delta", notebooks.topic
    )
    assert spark.read.format("delta").load(str(table)).count() == 0


# Refusals of the notebooks, by the calls of their cells. How the command line shows one is in test_runner.


def refused(error: type[TopiclakeError], call: Callable[..., None], **given: object) -> str:
    """Call what must fail; return its one sentence."""
    with pytest.raises(error) as caught:
        call(**given)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


def test_a_missing_subject_lists_those_that_exist(cells) -> None:
    cells.notebooks.registry.register("some-other-value", '"string"')
    sentence = refused(SubjectNotFoundError, cells.ingest, topic="nowhere")
    assert "subject nowhere-value is not in the schema registry" in sentence
    assert "some-other-value" in sentence


def test_a_missing_topic_is_named_with_the_three_nearest_names(cells) -> None:
    topic = cells.notebooks.topic
    for name in (f"{topic}1", f"{topic}-12", f"{topic}-123", "some-other-topic"):
        kafka_admin.ensure_topic(cells.notebooks.kafka, name, 1)
    cells.notebooks.registry.register(f"{topic}-value", '"string"')
    sentence = refused(TopicNotFoundError, cells.ingest)
    assert f"topic {topic} is not on the broker" in sentence
    assert f"the nearest names there: {topic}1, {topic}-12, {topic}-123" in sentence
    assert "some-other-topic" not in sentence


@pytest.mark.thorough("real waiting for a broker, as in test_init")
def test_an_unreachable_broker_is_named(cells, free_port, monkeypatch) -> None:
    cells.notebooks.registry.register(f"{cells.notebooks.topic}-value", '"string"')
    monkeypatch.setenv("WORKBENCH_KAFKA", f"127.0.0.1:{free_port}")
    sentence = refused(KafkaError, cells.ingest)
    assert f"the broker at 127.0.0.1:{free_port} does not answer" in sentence


def test_a_mount_of_something_else_is_refused_with_both_sources(cells, tmp_path) -> None:
    cells.publish()
    here, elsewhere = cells.settings().storage.source, (tmp_path / "elsewhere").as_uri()
    cells.dbutils.fs.mount(here, "/mnt/datalake")
    sentence = refused(StorageError, cells.ingest, storage=elsewhere)
    assert elsewhere in sentence
    assert here in sentence
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_written(cells) -> None:
    cells.publish()
    # Not even root may make a folder there.
    assert "/proc/datalake" in refused(StorageError, cells.ingest, storage="file:///proc/datalake")


def test_a_broken_parameter_is_named_with_what_is_allowed(cells) -> None:
    assert "availableNow or an interval" in refused(ConfigError, cells.ingest, trigger="now and then")
    assert "earliest, latest or JSON" in refused(ConfigError, cells.ingest, starting_offsets="{")
    assert "devices is 'many'" in refused(ConfigError, cells.publish, devices="many")


def test_the_wrong_java_is_named(notebooks) -> None:
    java = notebooks.folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    notebooks.environment["JAVA_HOME"] = str(notebooks.folder)
    for name in SUBMITTED_VARIABLES:
        del notebooks.environment[name]
    done = notebooks.run("gps_ingest")
    assert done.returncode == 1
    assert "Java 17 or newer is needed, found 11" in done.stderr
    assert "Traceback" not in done.stderr
