"""The S3 article: trips from CSV files on S3 to Kafka, and on to S3 as Parquet; and bad input."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pyarrow.dataset
import pytest
from pyarrow.fs import S3FileSystem
from pyspark.sql import SparkSession

import topiclake as tl
from tests.support.waiting import kill_all, wait_until
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.errors import StorageError, TopiclakeError, TopicNotFoundError
from topiclake.kafka import admin as kafka_admin
from topiclake_examples.taxi import publish_trips
from topiclake_examples.taxi.trips import TRIP_SCHEMAS
from workbench.host import processes
from workbench.host.home import Home
from workbench.services import control as services
from workbench.services.s3_gateway import BUCKET, S3Gateway
from workbench.services.service import Addresses

#: The first one may have to build the S3 store's program.
pytestmark = pytest.mark.timeout(600)
REPOSITORY = Path(__file__).parents[3]
LINES = (REPOSITORY / "data" / "yellow_tripdata_2019-01_sample.csv").read_text("utf-8").splitlines()
HEADER = LINES[0].split(",")
NUMBERS = {"int": int, "double": float}


@dataclass(frozen=True)
class Lake:
    """A broker, a registry, and an S3 store with a bucket."""

    home: Home
    variables: dict[str, str]
    gateway: S3Gateway
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def keys(self) -> dict[str, str]:
        names = ("access", "secret")
        return {
            f"s3-{name}-key": self.variables[f"TOPICLAKE_SECRET_WORKBENCH_S3_{name.upper()}_KEY"]
            for name in names
        }

    @property
    def files(self) -> S3FileSystem:
        """The store by a client that is not Spark's."""
        access_key, secret_key = self.keys.values()
        endpoint = self.variables["WORKBENCH_S3"]
        return S3FileSystem(
            access_key=access_key, secret_key=secret_key, endpoint_override=endpoint, region="us-east-1"
        )

    def put(self, name: str, first: int, after: int) -> str:
        """Put some of the sample's trips, as the city writes them, into a file of the bucket."""
        with self.files.open_output_stream(f"{BUCKET}/{name}") as file:
            file.write("\n".join([LINES[0], *LINES[1 + first : 1 + after], ""]).encode())
        return f"s3a://{BUCKET}/{name}"

    def start(self, notebook: str, **parameters: str) -> subprocess.Popen[str]:
        given = {"env": "local-s3"} | parameters
        options = [part for name, value in given.items() for part in ("-p", f"{name}={value}")]
        process = subprocess.Popen(
            [sys.executable, "-m", "workbench", "run", f"notebooks/{notebook}.py", *options],
            cwd=REPOSITORY,
            env=os.environ | self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def parquet(self) -> list[tuple[object, ...]]:
        """The rows of the files that Spark's file sink calls written."""
        folder = f"{BUCKET}/topiclake/parquet/taxi"
        logs = self.gateway.folder / "buckets" / folder / "_spark_metadata"
        listed = [
            json.loads(line) for log in logs.glob("[0-9]*") for line in log.read_text().splitlines()[1:]
        ]
        return self.rows([entry["path"].removeprefix("s3a://") for entry in listed])

    def rows(self, files: list[str]) -> list[tuple[object, ...]]:
        """What the files hold, in an order of their own; a column that a file has not is null."""
        found = [pyarrow.dataset.dataset(file, filesystem=self.files).to_table() for file in files]
        there = [row for table in found for row in table.to_pylist()]
        return sorted((tuple(row.get(name) for name in HEADER) for row in there), key=repr)

    def batches(self) -> int:
        """How many batches the checkpoint of the Parquet files calls done."""
        commits = self.gateway.folder / "buckets" / BUCKET / "topiclake/checkpoints/taxi/commits"
        return len(list(commits.glob("[0-9]*")))


def expected(first: int, after: int, columns: int) -> list[tuple[object, ...]]:
    """The sample's trips as Python's own CSV reader and numbers have them; null behind `columns`."""
    rows = csv.reader(LINES[1 + first : 1 + after])
    return [
        tuple(as_python(place, text) if place < columns else None for place, text in enumerate(row))
        for row in rows
    ]


def as_python(place: int, text: str) -> object:
    kind = TRIP_SCHEMAS[18]["fields"][place]["type"]
    if not text:
        return None
    if isinstance(kind, dict):
        return datetime.fromisoformat(text)
    return NUMBERS.get(kind[-1] if isinstance(kind, list) else kind, str)(text)


@pytest.fixture(scope="module")
def lake(embedded: tuple[Home, Addresses], pytestconfig: pytest.Config) -> Iterator[Lake]:
    home, addresses = embedded
    gateway = S3Gateway(home)
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        gateway.program(print)  # its progress is seen
    services.start_services(home, [gateway], print)
    found = Lake(home, addresses.environment() | dict(gateway.exports(home.load().ports)), gateway)
    yield found
    # Those that a failed test left.
    for process in found.started:
        if process.poll() is None:
            kill_all(process)
    processes.stop(processes.marked(home, gateway.name))


@dataclass(frozen=True)
class Session:
    """Notebooks' calls, in the session of the tests."""

    lake: Lake
    spark: SparkSession

    def settings(self, pipeline: str, topic: str, **given: str) -> Settings:
        keys = {f"s3-{name}-key": given.pop(name) for name in ("access", "secret") if name in given}
        secrets = self.lake.keys | keys
        parameters = {"env": "local-s3", "topic": topic} | given
        settings = load_settings(
            pipeline, parameters, secrets=lambda _, key: secrets[key], conf=REPOSITORY / "conf"
        )
        tl.mount(None, settings.storage, self.spark)
        return settings

    def make_bucket(self, source: str) -> Path:
        """Make the bucket of a source, unless it is to be missing; return its folder."""
        folder = self.lake.gateway.folder / "buckets" / source.split("/")[2]
        if folder.name != "nowhere":
            folder.mkdir(exist_ok=True)
        return folder


@pytest.fixture
def session(lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Session:
    for name, value in lake.variables.items():
        monkeypatch.setenv(name, value)
    # Of a bucket that the configuration knows nothing of, Amazon would be asked.
    (lake.gateway.folder / "buckets" / "other").mkdir(exist_ok=True)
    elsewhere = {
        "endpoint": lake.variables["WORKBENCH_S3"],
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider",
    }
    for key, value in elsewhere.items():
        spark.conf.set(f"fs.s3a.bucket.other.{key}", value)
    return Session(lake, spark)


@pytest.mark.thorough("kills on S3 are in test_stores")
@pytest.mark.slow("a cold driver is killed and repeated")
def test_the_article_end_to_end_killed_while_a_column_arrives(lake: Lake, session: Session) -> None:
    settings = session.settings("taxi", "nyc-avro-topic")
    published = publish_trips(session.spark, settings, lake.put("csv/article.csv", 0, 4000))
    assert (published.topic, published.partitions, published.records) == ("nyc-avro-topic", 10, 4000)

    running = lake.start("taxi_archive", trigger="1 second", keep_running_seconds="600")
    await_batches(lake, 1, running)
    lake.put("more/a.csv", 4000, 5000)
    more = lake.put("more/b.csv", 5000, 6000).removesuffix("/b.csv")
    publish_trips(session.spark, settings, more, columns=18)
    await_batches(lake, 2, running)
    kill_all(running)

    archive = tl.start_archive(session.spark, settings)
    archive.await_caught_up()
    summary = archive.summary()
    assert (summary.rows, summary.columns) == (6000, [*HEADER, "_kafka"])
    whole = sorted([*expected(0, 4000, 17), *expected(4000, 6000, 18)], key=repr)
    assert lake.parquet() == whole


def await_batches(lake: Lake, number: int, running: subprocess.Popen[str]) -> None:
    """Wait until the archive has so many batches, and see that it is running still."""

    def are_there() -> bool:
        assert running.poll() is None, running.communicate()[0]
        return lake.batches() >= number

    wait_until(are_there)


HIDDEN = {"storage": "s3a://hidden/x", "access": "NOBODY"}
CLOSED = {"storage": "s3a://closed/x", "secret": "wrong"}
NOWHERE = {"storage": "s3a://nowhere/x"}
FORM = "has a form that is not allowed; try: use one of"


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        ("s3a://nowhere/x.csv", NOWHERE, "s3a://nowhere/x cannot be used: there is no bucket nowhere"),
        ("s3a://lake/none.csv", {}, "there are no trips at s3a://lake/none.csv; try: use a path"),
        ("s3a://lake/topiclake", {}, "there are no trips at s3a://lake/topiclake; try: use a path"),
        # The gateway says of each file that it is not there to a key that it does not know.
        (
            "s3a://hidden/x.csv",
            HIDDEN,
            "there are no trips at s3a://hidden/x.csv; try: use a path that exists; or",
        ),
        ("s3a://closed/x.csv", CLOSED, "s3a://closed/x refuses the access key"),
        ("s3a://other/x.csv", {}, "s3a://other/x.csv refuses the access key"),
        ("s3a://lake/csv/../x.csv", {}, "s3a://lake/csv/../x.csv holds `..`, which leads out"),
        ("file:///x/%2E%2E/y.csv", {}, "file:///x/%2E%2E/y.csv holds `..`, which leads out"),
        ("s3://lake/none.csv", {}, "there are no trips at s3a://lake/none.csv; try: use a path"),
        ("hdfs://127.0.0.1:1/x.csv", {}, f"hdfs://127.0.0.1:1/x.csv {FORM}"),
        ("s3a:///x.csv", {}, f"s3a:///x.csv {FORM}"),
    ],
    ids=[
        "bucket",
        "file",
        "folder",
        "key",
        "secret",
        "elsewhere",
        "..",
        "encoded",
        "s3",
        "hdfs",
        "no bucket",
    ],
)
def test_trips_that_cannot_be_read_are_told_in_a_sentence_and_nothing_is_sent(
    session: Session, source: str, given: dict[str, str], message: str
) -> None:
    settings = session.settings("taxi", "unread", **given)
    session.make_bucket(settings.storage.source)
    with pytest.raises(TopiclakeError) as refused:
        publish_trips(session.spark, settings, source)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
    with pytest.raises(TopicNotFoundError):
        kafka_admin.require_topic(settings.kafka, "unread")
    assert "unread-value" not in tl.SchemaRegistry.from_settings(settings.schema_registry).subjects()


@pytest.mark.parametrize(
    "pipeline", [pytest.param("taxi", marks=pytest.mark.thorough("the other archive")), "taxi_delta"]
)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(NOWHERE, "s3a://nowhere/x cannot be used: there is no bucket nowhere", id="bucket"),
        pytest.param(
            {"table_path": "s3a://other/x"}, "s3a://other/x refuses the access key", id="table elsewhere"
        ),
        pytest.param(
            {"checkpoint_path": "s3a://other/x"},
            "s3a://other/x refuses the access key",
            id="checkpoint elsewhere",
            marks=pytest.mark.thorough("another refusal of the same store"),
        ),
        pytest.param(
            {"table_path": "s3a://lake/a/../b"}, "s3a://lake/a/../b holds `..`, which leads out", id=".."
        ),
        pytest.param({"checkpoint_path": "gs://lake/x"}, f"gs://lake/x {FORM}", id="scheme"),
    ],
)
def test_an_archive_that_cannot_be_written_is_told_in_a_sentence_and_nothing_is_written(
    session: Session, pipeline: str, given: dict[str, str], message: str
) -> None:
    settings = session.settings(pipeline, "unwritten", **given)
    source = session.lake.put("csv/few.csv", 0, 10)
    publish_trips(session.spark, session.settings("taxi", "unwritten"), source, partitions=1)
    bucket = session.make_bucket(settings.storage.source)
    before = sorted(bucket.rglob("*"))
    start = tl.start_archive if pipeline == "taxi" else tl.start_ingest
    with pytest.raises(StorageError) as refused:
        start(session.spark, settings)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
    assert sorted(bucket.rglob("*")) == before
