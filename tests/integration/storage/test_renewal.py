"""A stream whose token ends, or whose key is revoked: the secret is replaced before, and it goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import topiclake as tl
from tests.support.waiting import wait_until
from topiclake.storage import renewal
from topiclake_examples.gps import publish_tracks
from workbench.host import processes
from workbench.host.home import Home
from workbench.host.java import SHORT_LIVED, require_java
from workbench.kernel.session import MASTER_VARIABLE
from workbench.services import control as services
from workbench.services.azurite import JAVA_OPTIONS_VARIABLE
from workbench.services.s3_gateway import S3Gateway
from workbench.services.service import Addresses

#: Ample for the first batches of two warm drivers; the test waits until it has ended.
TOKEN_SECONDS = 60
REPOSITORY = Path(__file__).parents[3]
RECORDS = 993
CONF = """\
kafka:
  bootstrap_servers: ${WORKBENCH_KAFKA}
schema_registry:
  url: ${WORKBENCH_SCHEMA_REGISTRY}
storage:
  source: ${RENEWAL_SOURCE}/${RENEWAL_NAME}
  mounted: ${RENEWAL_MOUNTED}
  sas_token: "{{secrets/renewal/sas}}"
"""
S3_CONF = """\
kafka:
  bootstrap_servers: ${WORKBENCH_KAFKA}
schema_registry:
  url: ${WORKBENCH_SCHEMA_REGISTRY}
storage:
  mounted: false
  access_key: "{{secrets/renewal/access_key}}"
  secret_key: "{{secrets/renewal/secret_key}}"
  endpoint: ${RENEWAL_S3}
  region: us-east-1
  path_style_access: true
"""
#: Spark and Delta run before the token is made, so that their start takes nothing off the token's time.
CELLS = """\
# Databricks notebook source
import json, time
from datetime import datetime, timedelta, timezone
from pathlib import Path
import topiclake as tl
from topiclake_examples.gps import publish_tracks
from topiclake.storage import renewal
from topiclake.errors import IngestError
from tests.services.azure_sas import container_sas
from workbench.services.azurite import ACCOUNT, CONTAINER, Azurite
from workbench.host.home import Home
for name in ("env", "topic", "home", "secret", "data", "seconds"):
    dbutils.widgets.text(name, "")
renewal.EVERY_SECONDS = 1
secret, home = Path(dbutils.widgets.get("secret")), Path(dbutils.widgets.get("home"))
key = Azurite(Home(home, Path())).key()
spark.range(1).write.format("delta").save((home / dbutils.widgets.get("topic")).as_uri())

def replace_secret(end):
    secret.touch(0o600)
    secret.write_text(container_sas(ACCOUNT, key, CONTAINER, end))

# COMMAND ----------

seconds = timedelta(seconds=int(dbutils.widgets.get("seconds")))
end = datetime.now(timezone.utc).replace(microsecond=0) + seconds
replace_secret(end)
parameters = {"env": "renewal", "topic": dbutils.widgets.get("topic"), "trigger": "1 second"}
settings = tl.load_settings("gps", parameters, secrets=dbutils.secrets.get)
publish_tracks(settings, dbutils.widgets.get("data"), devices=3)
tl.mount(dbutils, settings.storage, spark)
query = tl.start_ingest(spark, settings)
tl.await_caught_up(query, "1 second")

# COMMAND ----------

caught_up = (end - datetime.now(timezone.utc)).total_seconds()
secret.unlink()
time.sleep(3)
replace_secret(end + timedelta(days=1))
time.sleep((end - datetime.now(timezone.utc)).total_seconds() + 3)
publish_tracks(settings, dbutils.widgets.get("data"), devices=3)
failure = ""
try:
    tl.await_caught_up(query, "1 second")
except Exception as error:
    failure = str(error)

# COMMAND ----------

runs = {progress["runId"] for progress in query.recentProgress}
query.stop()
tl.mount(dbutils, settings.storage, spark)
summary = tl.summarize(spark, settings, query)
audit = tl.audit_ingest(spark, settings)
result = [caught_up, failure, len(runs), summary.table.rows, audit.ok]
dbutils.notebook.exit(json.dumps(result))
"""


@dataclass(frozen=True)
class Result:
    """Output and exit value of a notebook."""

    text: str
    #: So long before the token's end all of the first records were there.
    caught_up_seconds: float
    failure: str
    runs: int
    rows: int
    is_audit_ok: bool


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[tuple[Home, Addresses]]:
    home = Home(tmp_path_factory.mktemp("renewal"), REPOSITORY)
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        addresses = services.up(home, print, extras=["azure"])  # its progress is seen
    shutil.copytree(REPOSITORY / "conf", home.folder / "conf")
    (home.folder / "conf" / "renewal.yaml").write_text(CONF)
    (home.folder / "conf" / "renewal-s3.yaml").write_text(S3_CONF)
    (home.folder / "cells.py").write_text(CELLS)
    yield home, addresses
    services.down(home)


@dataclass(frozen=True)
class Run:
    """A notebook that runs in a process of its own."""

    name: str
    process: subprocess.Popen[str]

    def result(self) -> Result:
        text, _ = self.process.communicate(timeout=500)
        assert self.process.returncode == 0, text
        assert "sig=" not in text
        (line,) = [line for line in text.splitlines() if line.startswith("exit value")]
        result = Result(text, *json.loads(line.removeprefix("exit value")))
        assert result.caught_up_seconds > 0, "a longer token"
        return result


def start(running: tuple[Home, Addresses], name: str, **variables: str) -> Run:
    home, addresses = running
    secrets = home.folder / f"secrets-{name}"
    (secrets / "renewal").mkdir(parents=True)
    given = {
        "env": "renewal",
        "topic": f"gps_{name}",
        "home": home.folder,
        "secret": secrets / "renewal" / "sas",
        "data": REPOSITORY / "data" / "gps_tracks.csv",
        "seconds": TOKEN_SECONDS,
    }
    options = [part for key, value in given.items() for part in ("-p", f"{key}={value}")]
    names = {"TOPICLAKE_SECRETS_FOLDER": str(secrets), "RENEWAL_NAME": name, "RENEWAL_MOUNTED": "false"}
    names |= {"RENEWAL_SOURCE": wasbs(addresses), "PYTHONPATH": str(REPOSITORY)}
    return Run(
        name,
        subprocess.Popen(
            [sys.executable, "-m", "workbench", "run", str(home.folder / "cells.py"), *options],
            cwd=REPOSITORY,
            env=os.environ | addresses.environment() | names | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ),
    )


def wasbs(addresses: Addresses) -> str:
    return addresses.environment()["WORKBENCH_AZURE_SOURCE"]


@pytest.mark.thorough("real waiting")
@pytest.mark.slow("waits for the end of a token of 60 s")
def test_streams_go_on_beyond_the_end_of_their_token(running: tuple[Home, Addresses]) -> None:
    options = running[1].environment()[JAVA_OPTIONS_VARIABLE]
    cluster = {MASTER_VARIABLE: "local-cluster[1,2,1024]", "JDK_JAVA_OPTIONS": f"{options} {SHORT_LIVED}"}
    cluster["RENEWAL_SOURCE"] = wasbs(running[1]).replace("wasbs:", "abfss:")
    # Side by side: most of the time each waits for the end.
    runs = [start(running, "mounted", RENEWAL_MOUNTED="true"), start(running, "executors", **cluster)]
    try:
        of_mount, of_executors = [run.result() for run in runs]
    finally:
        processes.stop([psutil.Process(one.process.pid) for one in runs if one.process.poll() is None])
    for result in (of_mount, of_executors):
        assert (result.failure, result.runs, result.rows, result.is_audit_ok) == ("", 1, 2 * RECORDS, True)
    # By the mount and, however often it looks, once by the stream; of the new token, by none.
    assert of_mount.text.count("its SAS token, the secret renewal/sas, ends at") == 2
    missing = "is not renewed, and tried again: secret 'sas' of scope 'renewal' exists"
    assert of_mount.text.count(missing) == 1


@dataclass
class Users:
    """An S3 store with a user for each key, and the secret store that holds one of them."""

    gateway: S3Gateway
    port: int
    secrets: dict[str, str] = field(default_factory=dict)
    #: Read next in the place of what is stored: one of two secrets was replaced, and the other one not yet.
    halves: list[str] = field(default_factory=list)

    def read(self, _scope: str, key: str) -> str:
        return self.halves.pop() if self.halves and key == "secret_key" else self.secrets[key]

    def create(self, access_key: str) -> None:
        self._admin("create-user", "--access", access_key, "--secret", f"{access_key}'s", "--role", "admin")

    def delete(self, access_key: str) -> None:
        self._admin("delete-user", "--access", access_key)

    def store(self, access_key: str) -> None:
        self.secrets |= {"access_key": access_key, "secret_key": f"{access_key}'s"}

    def _admin(self, *arguments: str) -> None:
        root = self.gateway.environment()
        program = self.gateway.command(require_java(), {"s3": self.port})[0]
        of_root = {f"ADMIN_{name}_KEY": root[f"ROOT_{name}_KEY"] for name in ("ACCESS", "SECRET")}
        where = {"ADMIN_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}
        subprocess.run(
            [program, "admin", *arguments], env=os.environ | of_root | where, check=True, timeout=240
        )


@pytest.fixture
def users(tmp_path: Path, free_port: int) -> Iterator[Users]:
    gateway = S3Gateway(Home(tmp_path, REPOSITORY))
    gateway.program(print)
    gateway.prepare(require_java(), {})
    (tmp_path / "iam").mkdir()
    program, *arguments = gateway.command(require_java(), {"s3": free_port})
    command = [program, "--iam-dir", str(tmp_path / "iam"), "--iam-cache-disable", *arguments]
    process = subprocess.Popen(command, env=os.environ | gateway.environment())
    wait_until(lambda: gateway.problem({"s3": free_port}) is None)
    yield Users(gateway, free_port)
    process.terminate()
    process.wait(120)


@pytest.mark.slow("broker, registry and store start for this file")
@pytest.mark.thorough("a broker, a registry and a store for a key that changes")
def test_a_stream_goes_on_with_another_key_of_s3(
    running: tuple[Home, Addresses],
    users: Users,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = running[1].environment() | {"RENEWAL_S3": f"http://127.0.0.1:{users.port}"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(renewal, "EVERY_SECONDS", 1)
    bucket = f"bucket-{users.port}"
    (users.gateway.folder / "buckets" / bucket).mkdir()
    users.create("FIRST")
    users.create("SECOND")
    users.store("FIRST")
    parameters = {"env": "renewal-s3", "topic": bucket, "trigger": "1 second", "storage": f"s3a://{bucket}/x"}
    conf = running[0].folder / "conf"
    settings = tl.load_settings("gps", parameters, secrets=users.read, conf=conf)
    publish_tracks(settings, REPOSITORY / "data" / "gps_tracks.csv", devices=3)
    tl.mount(None, settings.storage, spark)
    query = tl.start_ingest(spark, settings)
    with stopped(query):
        tl.await_caught_up(query, "1 second")
        users.halves.append(users.secrets["secret_key"])
        users.store("SECOND")
        wait_until(lambda: renewal._renewed.get(settings.storage.source))
        assert users.halves == []
        users.delete("FIRST")
        publish_tracks(settings, REPOSITORY / "data" / "gps_tracks.csv", devices=3)
        tl.await_caught_up(query, "1 second")
        runs = {progress["runId"] for progress in query.recentProgress}
    users.halves.clear()
    tl.mount(None, settings.storage, spark)
    assert tl.summarize(spark, settings, query).table.rows == 2 * RECORDS
    assert runs == {str(query.runId)}
    tl.audit_ingest(spark, settings).require_ok()


@contextmanager
def stopped(query: StreamingQuery) -> Iterator[None]:
    """Stop a query at the end, whatever happens."""
    try:
        yield
    finally:
        query.stop()
