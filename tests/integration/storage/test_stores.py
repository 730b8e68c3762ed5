"""The notebooks as jobs on the embedded stores, S3 and Azure; and what a store refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import pytest
import requests
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import topiclake as tl
from bench import drain, s3_calls, writers
from bench.gps_ingest import TOPIC, preload
from tests.services.azure_sas import container_sas
from tests.services.skewed_clock import SkewedClock
from tests.support.waiting import kill_all, wait_until
from tests.support.warm_jvm import WarmJvm
from topiclake.config.storage import StorageSettings
from topiclake.delta import table as delta
from topiclake.errors import StorageError
from topiclake.storage import mount
from topiclake.storage.failures import storage_errors
from topiclake.streaming import checkpoint
from topiclake_examples.gps import publish_tracks
from workbench.host import ports
from workbench.host.home import Home
from workbench.host.java import require_java
from workbench.host.program_cache import node, npm_program
from workbench.services import control as services
from workbench.services.azurite import ACCOUNT, API_VERSION, CONTAINER, HOST, Azurite, account_sas
from workbench.services.s3_gateway import BUCKET, S3Gateway
from workbench.services.service import Addresses

#: The first one may have to build the S3 store's program.
pytestmark = pytest.mark.timeout(600)
REPOSITORY = Path(__file__).parents[3]
LOCKED_S3RVER = REPOSITORY / "tests" / "services" / "npm" / "s3rver"
RECORDS = 993
#: Calls to S3: a batch in four files, a start and one batch, those with a table and a checkpoint made.
BATCH_CALLS, START_CALLS, MADE_CALLS = 12, 25 + 12, 103
FIRST_BATCH = f"delta/gps/_delta_log/{1:020}.json"
#: On S3, on Azure and on a folder; `make torture` takes ten minutes each.
SECONDS = 8
#: The writers of one driver, and those of another one that starts before.
WRITERS, OTHERS = ("stream-1", "append-1"), ("stream-2", "merge")
S3RVER = {"access_key": "S3RVER", "secret_key": "S3RVER"}
#: An ingest and its audit, without what notebooks show.
INGEST_CELLS = """\
# Databricks notebook source
import topiclake as tl
for name in ("env", "topic", "storage"):
    dbutils.widgets.text(name, "")
settings = tl.load_settings("gps", dbutils.widgets.getAll(), secrets=dbutils.secrets.get)
tl.mount(dbutils, settings.storage, spark)

# COMMAND ----------

tl.await_caught_up(tl.start_ingest(spark, settings), settings.pipeline.trigger)
tl.audit_ingest(spark, settings).require_ok()
dbutils.notebook.exit(str(tl.create_view(spark, settings).count()))
"""

#: One of two drivers that write into a table; the other one's counts come in a file.
WRITERS_CELLS = """\
# Databricks notebook source
import json, time
from pathlib import Path
import topiclake as tl
from bench import writers
from tests.support.waiting import kill_all, wait_until
from topiclake.delta import table as delta
for name in ("env", "topic", "storage", "writers", "seconds", "others"):
    dbutils.widgets.text(name, "")
given = {name: dbutils.widgets.get(name) for name in ("env", "topic", "storage")}
settings = tl.load_settings("gps", given, secrets=dbutils.secrets.get)
tl.mount(dbutils, settings.storage, spark)
table, others = tl.table_path(settings), Path(dbutils.widgets.get("others"))
writers.ensure_table(spark, table)

# COMMAND ----------

# Until the other driver writes.
wait_until(lambda: time.sleep(1) or delta.latest_version(spark, table) > 0)
own, seconds = dbutils.widgets.get("writers").split(), float(dbutils.widgets.get("seconds"))
acknowledged = writers.run_writers(spark, table, own, seconds)
wait_until(lambda: others.exists() and others.read_text())
acknowledged |= json.loads(others.read_text())

# COMMAND ----------

more = acknowledged | {"append-1": acknowledged["append-1"] + 1}
found = [writers.wrong(spark, table, counts) for counts in (acknowledged, more)]
dbutils.notebook.exit(json.dumps([acknowledged, *found]))
"""


@dataclass(frozen=True)
class Lake:
    """A home with broker, registry and both stores."""

    home: Home
    addresses: Addresses
    gateway: S3Gateway
    azurite: Azurite
    endpoint: str
    jvm: WarmJvm

    def holds(self, store: str, name: str) -> bool:
        if store.startswith("s3"):
            return self.file(name, "topiclake" if store == "s3" else store).is_file()
        return self.blob("HEAD", store, name).ok

    def forget(self, store: str, name: str) -> None:
        """Remove a file, where it is there."""
        if store == "s3":
            self.file(name).unlink(missing_ok=True)
        else:
            assert self.blob("DELETE", store, name).status_code in (202, 404)

    def file(self, name: str, folder: str = "topiclake") -> Path:
        return self.gateway.folder / "buckets" / BUCKET / folder / name

    def blob(self, method: str, store: str, name: str) -> requests.Response:
        return self.ask(method, f"{CONTAINER}/{store}/{name}?")

    def container(self, method: str, name: str) -> requests.Response:
        return self.ask(method, f"{name}?restype=container&")

    def ask(self, method: str, what: str) -> requests.Response:
        """Ask the Azure store; `what` is a path and a query, to which a token is added."""
        port, token = self.home.load().ports["azure"], account_sas(ACCOUNT, self.azurite.key())
        return requests.request(
            method,
            f"https://127.0.0.1:{port}/{what}{token}",
            headers={"Host": f"{HOST}:{port}", "x-ms-version": API_VERSION},
            verify=str(self.azurite.certificate.authority),
            timeout=120,
        )

    def parameters(self, store: str) -> tuple[str, ...]:
        """Return those of a notebook that uses a store; both of Azure's drivers have the same one."""
        if store == "s3":
            return ("env=local-s3", "topic=gps_s3")
        source = self.addresses.extras["WORKBENCH_AZURE_SOURCE"]
        folder = source.replace("wasbs:", f"{store}:").replace("/topiclake", f"/{store}")
        return ("env=local-azure", f"topic=gps_{store}", f"storage={folder}")

    def start(self, notebook: str, *parameters: str, **variables: str) -> subprocess.Popen[str]:
        given = [part for one in parameters for part in ("-p", one)]
        return subprocess.Popen(
            [sys.executable, "-m", "workbench", "run", notebook, *given],
            cwd=REPOSITORY,
            env=os.environ | self.addresses.environment() | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, notebook: str, *parameters: str) -> object:
        process = self.start(notebook, *parameters, **self.jvm.environment())
        # The limit of the test ends it on a slow machine.
        output, _ = process.communicate()
        assert process.returncode == 0, output
        (line,) = [line for line in output.splitlines() if line.startswith("exit value")]
        return json.loads(line.removeprefix("exit value"))

    def run_cells(self, name: str, cells: str, *parameters: str) -> object:
        """Run a notebook of the test, with the project's configuration."""
        notebook = self.home.folder / f"{name}.py"
        notebook.write_text(cells)
        if not (self.home.folder / "conf").exists():
            (self.home.folder / "conf").symlink_to(REPOSITORY / "conf")
        return self.run(str(notebook), *parameters)

    def publish(self, *parameters: str) -> None:
        """Do what gps_publish does, without a process."""
        with pytest.MonkeyPatch.context() as environment:
            for name, value in self.addresses.environment().items():
                environment.setenv(name, value)
            given = dict(parameter.split("=", 1) for parameter in parameters)
            settings = tl.load_settings("gps", given, secrets=environment_secret, conf=REPOSITORY / "conf")
        publish_tracks(settings, REPOSITORY / "data" / "gps_tracks.csv", devices=3)

    def storage(self, bucket: str, **more: object) -> StorageSettings:
        key = self.addresses.extras
        values = {
            "access_key": key["TOPICLAKE_SECRET_WORKBENCH_S3_ACCESS_KEY"],
            "secret_key": key["TOPICLAKE_SECRET_WORKBENCH_S3_SECRET_KEY"],
        }
        values |= {name: str(more.pop(name)) for name in tuple(more) if name in values}
        section = {
            "source": f"s3a://{bucket}/x",
            "mount_point": "/mnt/x",
            "mounted": False,
            "access_key": "{{secrets/s/access_key}}",
            "secret_key": "{{secrets/s/secret_key}}",
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "path_style_access": True,
        }
        return StorageSettings.model_validate(
            section | more, context={"secrets": lambda _, name: values[name]}
        )


def environment_secret(scope: str, key: str) -> str:
    """Read a secret as the workbench's dbutils does."""
    return os.environ[f"TOPICLAKE_SECRET_{scope}_{key}".upper().replace("-", "_")]


@pytest.fixture(scope="module")
def lake(embedded: tuple[Home, Addresses], pytestconfig: pytest.Config) -> Iterator[Lake]:
    home, _ = embedded
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        addresses = services.up(home, print, extras=["s3", "azure"])  # its progress is seen
    # A notebook of this file imports the bench.
    jvm = WarmJvm(home.folder, REPOSITORY, addresses.environment() | {"PYTHONPATH": str(REPOSITORY)})
    yield Lake(home, addresses, S3Gateway(home), Azurite(home), addresses.extras["WORKBENCH_S3"], jvm)
    jvm.stop()


@pytest.mark.thorough("a kill on a folder is in test_crashes, an ingest on each store below")
@pytest.mark.slow("a notebook is killed and repeated on a store")
@pytest.mark.parametrize(
    ("store", "secret"),
    [
        ("s3", "TOPICLAKE_SECRET_WORKBENCH_S3_SECRET_KEY"),
        ("abfss", "TOPICLAKE_SECRET_WORKBENCH_AZURE_SAS"),
    ],
)
def test_the_notebooks_land_each_record_once_whatever_is_killed(lake: Lake, store: str, secret: str) -> None:
    given = lake.parameters(store)
    lake.publish(*given[:2])

    # Killed between the commit of Delta's table and that of Spark's checkpoint; or a moment later, which is
    # undone: that batch is repeated in any case.
    process = lake.start("notebooks/gps_ingest.py", *given, "trigger=1 second")
    wait_until(lambda: lake.holds(store, FIRST_BATCH) or process.poll() is not None)
    kill_all(process)
    assert process.returncode == -signal.SIGKILL
    lake.forget(store, "checkpoints/gps/commits/0")

    lake.publish(*given[:2])
    again = lake.run("notebooks/gps_ingest.py", *given)
    assert (again["table"]["rows"], again["quarantined"], again["audit"]["ok"]) == (2 * RECORDS, {}, True)

    assert lake.holds(store, "checkpoints/gps/commits/1")
    value = lake.addresses.extras[secret].rpartition("sig=")[2].encode()
    # In `data` are the stores' own files: Azure keeps the address, token too, that a blob was copied from.
    files = [file for file in lake.home.folder.rglob("*") if file.is_file()]
    ours = [file for file in files if not file.is_relative_to(lake.home.data)]
    assert ours
    assert [file for file in ours if value in file.read_bytes()] == []


@pytest.mark.slow("both stores start for this file")
@pytest.mark.parametrize("store", ["s3", "wasbs"])
def test_an_ingest_lands_on_each_store(lake: Lake, store: str) -> None:
    environment, *_ = lake.parameters(store)
    source = lake.addresses.extras[f"WORKBENCH_{'S3' if store == 's3' else 'AZURE'}_SOURCE"]
    folder = source.rpartition("/")[0] + f"/{store}_once"
    given = (environment, f"topic=gps_{store}_once", f"storage={folder}")
    lake.publish(*given[:2])
    assert lake.run_cells("ingest", INGEST_CELLS, *given) == RECORDS
    assert lake.holds(f"{store}_once", FIRST_BATCH)
    assert lake.holds(f"{store}_once", "checkpoints/gps/commits/0")


@pytest.mark.thorough("four writers for seconds")
@pytest.mark.slow("two drivers write side by side, and every row is looked for")
def test_each_row_that_many_writers_were_told_of_is_there_once(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in lake.addresses.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(writers, "DRIVERS", (OTHERS,))
    table = f"{writers.store('s3').source}/table"
    folder = Path(table.replace("s3a:/", f"{lake.gateway.folder}/buckets"))
    writers.open_store(spark, "s3")
    writers.ensure_table(spark, table)
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(writers.drivers, table, "s3", SECONDS)
        wait_until(lambda: others.done() or (folder / "_delta_log" / f"{1:020}.json").exists())
        acknowledged = writers.run_writers(spark, table, WRITERS, SECONDS) | others.result()
    assert set(acknowledged) == {*WRITERS, *OTHERS}
    assert min(acknowledged.values()) > 0
    assert writers.wrong(spark, table, acknowledged) == []
    # Each row that is not there, or is there twice, is found.
    assert writers.wrong(spark, table, acknowledged | {"append-1": acknowledged["append-1"] + 1}) != []


@pytest.mark.thorough("four writers for seconds")
@pytest.mark.slow("two drivers write side by side, and every row is looked for")
def test_on_azure_too_each_row_that_many_drivers_were_told_of_is_there_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in lake.addresses.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(writers, "DRIVERS", (OTHERS,))
    source = lake.addresses.extras["WORKBENCH_AZURE_SOURCE"].replace("wasbs:", "abfss:")
    storage, counts = f"{source.rpartition('/')[0]}/abfss_writers", tmp_path / "counts.json"
    given = {
        "env": "local-azure",
        "topic": "none",
        "storage": storage,
        "writers": " ".join(WRITERS),
        "seconds": SECONDS,
        "others": counts,
    }
    parameters = [f"{name}={value}" for name, value in given.items()]
    first = f"delta/gps/_delta_log/{0:020}.json"
    # In the JVM that finds the store, and in a driver of its own.
    with ThreadPoolExecutor(1) as pool:
        notebook = pool.submit(lake.run_cells, "writers", WRITERS_CELLS, *parameters)
        wait_until(lambda: notebook.done() or lake.holds("abfss_writers", first))
        if notebook.done():
            # Its error says why there is no table.
            notebook.result()
        counts.write_text(json.dumps(writers.drivers(f"{storage}/delta/gps", "abfss", SECONDS)))
        acknowledged, wrong, wrong_by_one = notebook.result()
    assert set(acknowledged) == {*WRITERS, *OTHERS}
    assert min(acknowledged.values()) > 0
    assert (wrong, bool(wrong_by_one)) == ([], True)


@contextmanager
def elsewhere(spark: SparkSession, settings: StorageSettings) -> Iterator[Any]:
    """Do with the store what another process does: what this one remembers of it stays as it is."""
    jvm = spark.sparkContext._jvm
    other = jvm.org.apache.hadoop.fs.s3a.S3AFileSystem()
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    other.initialize(jvm.java.net.URI(settings.source), conf)
    yield other
    other.close()


@pytest.mark.thorough("caches of a start on S3")
def test_a_table_that_was_made_anew_elsewhere_is_read_anew(lake: Lake, spark: SparkSession) -> None:
    (lake.gateway.folder / "buckets" / "anew").mkdir()
    settings = lake.storage("anew")
    mount.mount(None, settings, spark)
    for name, rows in (("first", 3), ("second", 5)):
        spark.range(rows).coalesce(1).write.format("delta").save(f"{settings.source}/{name}")
        time.sleep(1.1)  # S3 tells times in seconds, and Delta goes by them
    assert delta.read(spark, f"{settings.source}/first").count() == 3
    # Commits of the same names, by another driver.
    path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path
    first, second = (path(f"{settings.source}/{name}") for name in ("first", "second"))
    with elsewhere(spark, settings) as other:
        other.delete(first, True)
        other.rename(second, first)
    assert delta.read(spark, f"{settings.source}/first").count() == 5


@pytest.mark.thorough("caches of a start on S3")
def test_a_users_folder_that_is_named_like_a_checkpoints_is_read_whole(
    lake: Lake, spark: SparkSession
) -> None:
    (lake.gateway.folder / "buckets" / "named").mkdir()
    settings = lake.storage("named")
    mount.mount(None, settings, spark)
    rows = spark.range(0, 6, 1, 1).selectExpr("id", "id % 2 AS day")
    for name in ("commits", "metadata"):
        path = f"{settings.source}/{name}"
        rows.write.partitionBy("day").parquet(path)
        rows.write.parquet(f"{path}-plain/{name}")
        assert spark.read.schema(rows.schema).parquet(path).count() == 6
        assert spark.read.parquet(f"{path}-plain/{name}").count() == 6


@contextmanager
def stopped_clock(spark: SparkSession) -> Iterator[Callable[[int], None]]:
    """Stop the clock of what this process remembers of a store; the function moves it on by seconds."""
    java = spark.sparkContext._jvm.java
    of_name, loader = java.lang.Class.forName, java.lang.Thread.currentThread().getContextClassLoader()
    supplier = of_name("java.util.function.LongSupplier", True, loader)
    clock = of_name("io.topiclake.store.cache.Age", True, loader).getDeclaredField("clock")
    clock.setAccessible(True)
    running, now = clock.get(None), java.lang.System.nanoTime()

    def move(seconds: int) -> None:
        moment = java.lang.invoke.MethodHandles.constant(java.lang.Long.TYPE, now + seconds * 1_000_000_000)
        clock.set(None, java.lang.invoke.MethodHandleProxies.asInterfaceInstance(supplier, moment))

    move(0)
    try:
        yield move
    finally:
        clock.set(None, running)


@pytest.mark.thorough("caches of a start on S3")
@pytest.mark.slow("a store, and seven batches of one drain")
def test_a_start_costs_few_calls_and_keeps_the_topics_id_with_one(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in lake.addresses.environment().items():
        monkeypatch.setenv(name, value)
    settings = s3_calls.load("topiclake", 100_000)
    folder = settings.storage.source
    mount.mount(None, settings.storage, spark)

    def calls(rows: int) -> list[tuple[str, str]]:
        before = lake.gateway.access_log.stat().st_size
        preload(settings, 4_000)
        drain.topiclake(spark, s3_calls.load("topiclake", rows))
        time.sleep(s3_calls.LOG_SECONDS)
        called = s3_calls.calls_in(lake.gateway.access_log, before)
        found = [(name, uri if key == "-" else key) for name, key, uri in called]
        assert [name for name, _ in found if "Copy" in name or "Delete" in name] == []
        return found

    # On a slow machine, the process would forget more within a batch.
    with stopped_clock(spark) as move:
        # A table and a checkpoint are made.
        assert len(found := calls(4_000)) <= MADE_CALLS, found
        # The process forgets all, so the next start is like one of another process.
        move(11)
        assert len(found := calls(4_000)) <= START_CALLS, found
        # Up to where Delta writes a checkpoint of its log.
        found = calls(500)
    ends = [place for place, (name, key) in enumerate(found) if name == "PutObject" and "/commits/" in key]
    later = [after - before for before, after in pairwise(ends)]
    assert len(later) == 7
    assert sorted(later)[len(later) // 2] <= BATCH_CALLS
    assert max(later) <= 25
    assert drain.sums(spark, folder)[0] == 12_000
    ids = lake.gateway.folder / "buckets" / folder.removeprefix("s3a://") / "checkpoints/gps/topiclake/topics"
    assert [json.loads(file.read_text())["topic"] for file in ids.rglob("*") if file.is_file()] == [TOPIC]


@pytest.mark.thorough("caches of a start on S3")
@pytest.mark.parametrize("others", [0, 1_200], ids=["few files", "more than S3 lists at once"])
def test_a_checkpoint_that_others_change_is_read_as_it_is(
    lake: Lake, spark: SparkSession, others: int
) -> None:
    (bucket := lake.gateway.folder / "buckets" / f"tree-{others}").mkdir()
    settings = lake.storage(bucket.name)
    mount.mount(None, settings, spark)
    path, to = f"{settings.source}/c", spark.sparkContext._jvm.org.apache.hadoop.fs.Path
    with elsewhere(spark, settings) as other:

        def put(name: str, text: str) -> None:
            stream = other.create(to(f"{path}/{name}"), True)
            stream.write(text.encode())
            stream.close()

        look_while_others_change(spark, path, bucket / "x" / "c" / "state", others, put)
        other.delete(to(path), True)
    assert checkpoint.end_offsets(spark, path, 3) is None
    with pytest.raises((PySparkException, Py4JError)):
        checkpoint.query_id(spark, path, None)


def look_while_others_change(
    spark: SparkSession, path: str, state: Path, others: int, put: Callable[[str, str], None]
) -> None:
    first, anew = str(uuid4()), str(uuid4())
    assert (checkpoint.position(spark, path), checkpoint.last_planned(spark, path)) == (None, checkpoint.NONE)
    time.sleep(1.1)
    for number in range(others):
        (file := state / "0" / str(number) / "1.delta").parent.mkdir(parents=True)
        file.write_text("x")
    put("metadata", json.dumps({"id": first}, separators=(",", ":")))
    put("sources/0/0", '0\n{"gps":{"0":0}}')
    for batch in (0, 1):
        put(f"offsets/{batch}", f'v1\n{{}}\n{{"gps":{{"0":{batch + 5}}}}}')
    put("commits/0", "v1\n{}")
    assert checkpoint.last_planned(spark, path) == 1
    assert checkpoint.is_interrupted(spark, path)
    assert checkpoint.begin_offsets(spark, path, 0) == {"gps": {0: 0}}
    assert checkpoint.position(spark, path) == {"gps": {0: 5}}
    assert checkpoint.query_id(spark, path, None) == first
    # By another process, moments later.
    put("metadata", json.dumps({"id": anew}, separators=(",", ":")))
    put("offsets/2", 'v1\n{}\n{"gps":{"0":9}}')
    assert checkpoint.query_id(spark, path, None) == anew
    assert checkpoint.end_offsets(spark, path, 2) == {"gps": {0: 9}}


@pytest.mark.thorough("a folder that others write into")
@pytest.mark.parametrize("name", ["offsets", "sources/2024", "topiclake/topics"])
def test_a_users_folder_is_read_as_others_fill_it(lake: Lake, spark: SparkSession, name: str) -> None:
    (bucket := lake.gateway.folder / "buckets" / name.replace("/", "-")).mkdir()
    settings = lake.storage(bucket.name)
    mount.mount(None, settings, spark)
    path, to = f"{settings.source}/{name}", spark.sparkContext._jvm.org.apache.hadoop.fs.Path
    fs = to(path).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    with elsewhere(spark, settings) as other:
        other.mkdirs(to(path))
        assert fs.exists(to(path))
        for number in (1, 2):
            stream = other.create(to(f"{path}/part-{number}.json"), True)
            stream.write(b'{"rows": 9}')
            stream.close()
            assert spark.read.json(path).count() == number
    # By jobs of this process: with renames, and so with their mark.
    spark.range(3).write.mode("append").json(path)
    assert spark.read.json(path).count() == 5
    assert fs.exists(to(f"{path}/_SUCCESS"))
    assert not fs.exists(to(f"{path}/_temporary"))


@dataclass(frozen=True)
class Unconditional:
    """A store that takes no notice of If-None-Match, with a bucket `unconditional`."""

    folder: Path
    endpoint: str
    clock: SkewedClock

    def files(self) -> list[Path]:
        return [file for file in self.folder.rglob("*_object") if file.is_file()]


@pytest.fixture(scope="module")
def unconditional(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unconditional]:
    port = ports.choose(["s3rver"], {})["s3rver"]
    program = npm_program(REPOSITORY / ".cache", LOCKED_S3RVER, "bin/s3rver.js", lambda _: None)
    clock, folder = SkewedClock(tmp_path_factory.mktemp("clock")), tmp_path_factory.mktemp("s3rver")
    where = ["-d", str(folder), "-a", "127.0.0.1", "-p", str(port), "--configure-bucket", "unconditional"]
    process = subprocess.Popen([str(node()), *clock.options(), str(program), *where])
    wait_until(lambda: ports.answers(port))
    yield Unconditional(folder, f"http://127.0.0.1:{port}", clock)
    process.terminate()
    process.wait(120)


@pytest.mark.thorough("the refusal is tested in test_platform_check")
def test_a_store_on_which_a_second_driver_would_overwrite_commits_is_refused(
    lake: Lake, unconditional: Unconditional, spark: SparkSession
) -> None:
    settings = lake.storage("unconditional", endpoint=unconditional.endpoint, **S3RVER)
    mount.mount(None, settings, spark)
    path = f"{settings.source}/table"
    with pytest.raises(StorageError, match=r"not safe from a second driver.*If-None-Match.*logStore"):
        make_table(spark, settings, path)
    assert not delta.is_table(spark, path)
    rates = spark.readStream.format("rate").load().writeStream.option("checkpointLocation", f"{path}-stream")
    with pytest.raises(Py4JError, match="If-None-Match"):
        rates.format("parquet").start(path).awaitTermination(60)
    assert [file for file in unconditional.folder.rglob("*") if file.is_file()] == []


@contextmanager
def losing_answers(endpoint: str, to: str) -> Iterator[str]:
    """A way to the store on which the answer to the first PUT of a key that ends with `to` is lost."""
    host, _, port = endpoint.removeprefix("http://").rpartition(":")
    lost: list[str] = []

    class Way(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = HTTPConnection(host, int(port))
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "expect":
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if self.command == "PUT" and self.path.endswith(to) and not lost:
                lost.append(self.path)
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Way)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    assert len(lost) == 1


@pytest.mark.thorough("a lost response of a store")
def test_a_file_of_a_checkpoint_whose_answer_was_lost_is_its_writers_own(
    lake: Lake, spark: SparkSession
) -> None:
    (bucket := lake.gateway.folder / "buckets" / "lost").mkdir()
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path
    with losing_answers(lake.endpoint, "/offsets/7") as endpoint:
        settings = lake.storage(bucket.name, endpoint=endpoint)
        mount.mount(None, settings, spark)
        folder = path(f"{settings.source}/c/offsets")
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        first, second = (jvm.io.topiclake.store.CheckpointFiles(folder, conf) for _ in range(2))

        def put(query: Any, name: str) -> None:
            stream = query.createAtomic(path(folder, name), False)
            stream.write(b"as all write it")
            stream.close()

        put(first, "7")
        assert first.exists(path(folder, "7"))
        # Of another query the same is not its own.
        with pytest.raises(Py4JError, match="offsets/7 was there first"):
            put(second, "7")
        put(first, "8")
    assert (bucket / "x/c/offsets/7").read_bytes() == b"as all write it"


@pytest.mark.parametrize("on", ["s3", "folder"])
def test_the_second_of_two_first_starts_is_told_of_the_other(
    lake: Lake, spark: SparkSession, tmp_path: Path, on: str
) -> None:
    (lake.gateway.folder / "buckets" / "starts").mkdir(exist_ok=True)
    settings = lake.storage("starts")
    mount.mount(None, settings, spark)
    jvm: Any = spark.sparkContext._jvm
    (tmp_path / "c").mkdir()  # which Spark makes before
    path = f"{settings.source}/c" if on == "s3" else f"file:{tmp_path}/c"
    metadata = jvm.org.apache.spark.sql.execution.streaming.runtime.StreamMetadata
    conf = spark._jsparkSession.sessionState().newHadoopConf()

    def start() -> None:
        # As each query does that found none.
        file = jvm.org.apache.hadoop.fs.Path(f"{path}/metadata")
        with storage_errors(settings, path):
            metadata.write(metadata(str(uuid4())), file, conf)

    start()
    with pytest.raises(StorageError) as raised:
        start()
    assert raised.value.fields == {"path": path, "reason": "second_query"}
    assert "nothing was lost" in raised.value.cause


CONTAINER_CELLS = """\
# Databricks notebook source
import json, os
from topiclake.delta import table as delta
from topiclake.storage import mount
from topiclake.errors import StorageError
from topiclake.storage.failures import storage_errors
from topiclake.config.storage import StorageSettings
dbutils.widgets.text("env", "")
dbutils.widgets.text("topic", "")
results = []

def made(container, given):
    values = {"account_key": os.environ["CELLS_KEY"], "sas_token": os.environ["CELLS_SAS"]}
    where = {"source": f"wasbs://{container}@{os.environ['CELLS_HOST']}/key", "mount_point": "/mnt/x"}
    secret = {given: "{{secrets/s/" + given + "}}"}
    settings = StorageSettings.model_validate(
        where | secret | {"mounted": False}, context={"secrets": lambda _, name: values[name]}
    )
    mount.mount(None, settings, spark)
    return settings

# COMMAND ----------

for container in ("nowhere", "lake"):
    settings = made(container, "account_key")
    path = f"{settings.source}/table"
    try:
        with storage_errors(settings, path):
            delta.is_table(spark, path)
            delta.ensure_table(spark, path, spark.range(1).schema, {})
        results.append(delta.read(spark, path).count())
    except StorageError as error:
        results.append(str(error))

# COMMAND ----------

# It may write and nothing else: whether the container is there cannot be asked.
settings = made("writable", "sas_token")
to = spark.sparkContext._jvm.org.apache.hadoop.fs.Path(f"{settings.source}/file")
results.append(to.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).getScheme())
dbutils.notebook.exit(json.dumps(results))
"""


@pytest.mark.thorough("a further refusal of the Azure store")
def test_a_missing_container_is_not_made_by_an_account_key(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, key = lake.home.load().ports["azure"], lake.azurite.key()
    monkeypatch.setenv("CELLS_KEY", key)
    monkeypatch.setenv("CELLS_SAS", container_sas(ACCOUNT, key, "writable", permissions="w"))
    monkeypatch.setenv("CELLS_HOST", f"{HOST}:{port}")
    lake.container("PUT", "writable").raise_for_status()
    missing, rows, scheme = lake.run_cells("containers", CONTAINER_CELLS, "env=local-azure", "topic=none")
    assert "cannot be used: there is no container nowhere; try: create it" in missing
    assert (rows, scheme) == (0, "wasbs")
    assert lake.container("HEAD", "nowhere").status_code == requests.codes.not_found


@pytest.mark.thorough("a clock that is wrong")
@pytest.mark.parametrize("hours", [-9, 1])
def test_a_clock_that_is_hours_off_does_no_harm_where_the_store_tells_the_time(
    lake: Lake, unconditional: Unconditional, spark: SparkSession, hours: int
) -> None:
    settings = lake.storage("unconditional", endpoint=unconditional.endpoint, **S3RVER)
    path, conf = f"{settings.source}/skewed-{hours}", spark._jsparkSession.sessionState().newHadoopConf
    unconditional.clock.set(timedelta(hours=hours))
    try:
        mount.mount(None, settings, spark)
        with storage_errors(settings, path):
            assert not delta.is_table(spark, path)
            file = spark.sparkContext._jvm.org.apache.hadoop.fs.Path(path)
            file.getFileSystem(conf()).create(file, True).close()
    finally:
        unconditional.clock.set(timedelta())
    assert [file for file in unconditional.files() if f"skewed-{hours}" in file.name]


@pytest.mark.thorough("a clock that is wrong")
def test_a_clock_that_a_store_refuses_is_told_with_its_time_and_nothing_is_written(
    lake: Lake, unconditional: Unconditional, spark: SparkSession
) -> None:
    settings = lake.storage("unconditional", endpoint=unconditional.endpoint, **S3RVER)
    before = unconditional.files()
    # Not those of another test: what the driver has found it goes on with.
    unconditional.clock.set(timedelta(hours=3), is_visible=False)
    try:
        mount.mount(None, settings, spark)
        with pytest.raises(StorageError) as raised:
            make_table(spark, settings, f"{settings.source}/refused")
    finally:
        unconditional.clock.set(timedelta())
    assert (raised.value.fields["source"], raised.value.fields["reason"]) == (settings.source, "clock")
    assert (raised.value.remedy, "\n" in str(raised.value)) == ("set the clock", False)
    assert unconditional.files() == before


def make_table(spark: SparkSession, settings: StorageSettings, path: str) -> None:
    with storage_errors(settings, path):
        delta.is_table(spark, path)
        delta.ensure_table(spark, path, spark.range(1).schema, {})


@pytest.fixture(scope="module")
def read_only(lake: Lake) -> Iterator[str]:
    """The same buckets, behind a gateway that only reads."""
    port = ports.choose(["readonly"], {})["readonly"]
    command = lake.gateway.command(require_java(), {"s3": port})
    process = subprocess.Popen(
        [command[0], "--readonly", *command[1:]], env=os.environ | lake.gateway.environment()
    )
    wait_until(lambda: lake.gateway.problem({"s3": port}) is None)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(120)


@pytest.mark.parametrize(
    ("bucket", "given", "reason", "detail"),
    [
        ("nowhere", {}, "missing", ""),
        ("key", {"access_key": "NOBODY"}, "credential", "No user exists"),
        ("secret", {"secret_key": "wrong"}, "credential", "The request signature"),
        ("region", {"region": "eu-west-1"}, "region", ""),
        ("readonly", {}, "read_only", ""),
        pytest.param(
            "away",
            {"endpoint": "http://127.0.0.1:1"},
            "unreachable",
            "",
            marks=pytest.mark.thorough("real waiting for a store that is away"),
        ),
    ],
)
def test_what_a_store_refuses_is_told_in_a_sentence_and_nothing_is_written(
    lake: Lake,
    read_only: str,
    spark: SparkSession,
    bucket: str,
    given: dict[str, str],
    reason: str,
    detail: str,
) -> None:
    folder = lake.gateway.folder / "buckets" / bucket
    if bucket != "nowhere":
        folder.mkdir()
    settings = lake.storage(bucket, **given, **({"endpoint": read_only} if bucket == "readonly" else {}))
    mount.mount(None, settings, spark)
    path, began = f"{settings.source}/table", time.monotonic()
    with pytest.raises(StorageError) as raised:
        make_table(spark, settings, path)
    assert (raised.value.fields["source"], raised.value.fields["reason"]) == (f"s3a://{bucket}/x", reason)
    assert str(raised.value.fields["detail"]).startswith(detail)
    assert ("; try: create it" in str(raised.value)) == (bucket == "nowhere")
    assert ("eu-west-1" in raised.value.cause) == (bucket == "region")
    assert time.monotonic() - began < 180
    assert "\n" not in str(raised.value)
    assert not [file for file in folder.rglob("*") if file.is_file()]
