"""The notebooks as jobs on `wasbs://` with a SAS token, against Azurite under Azure's own host name."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote

import pytest
import requests

from tests.services.azurite import HOST, Azurite, install, running_azurite
from tests.support.warm_jvm import WarmJvm
from topiclake.config.load import load_settings
from topiclake_examples.gps import publish_tracks
from workbench.host.home import Home
from workbench.host.java import SHORT_LIVED
from workbench.services.service import Addresses

pytestmark = pytest.mark.root("Azure's port 443, which the address of the article has")

REPOSITORY = Path(__file__).parents[3]
CONTAINER = "lake"
RECORDS = 993
CELL = "\n# COMMAND ----------\n"
CONF = """\
kafka:
  bootstrap_servers: ${TOPICLAKE_KAFKA}
schema_registry:
  url: ${TOPICLAKE_SCHEMA_REGISTRY}
storage:
  source: ${TOPICLAKE_STORAGE}
  sas_token: "{{secrets/topiclake/storage-sas}}"
"""
SETTINGS = """\
dbutils.widgets.text("env", "azure")
import topiclake as tl
settings = tl.load_settings("gps", {"env": "azure", "topic": "gps_of_a_story"}, secrets=dbutils.secrets.get)
"""
OPEN = """\
tl.mount(dbutils, settings.storage)
gps = tl.create_view(spark, settings)
"""
#: Written to a file, since what a notebook prints has its secrets taken out by the kernel.
EXPLAIN = """\
import contextlib, io, pathlib
output = io.StringIO()
with contextlib.redirect_stdout(output):
    gps.explain("formatted")
    gps.explain(True)
    spark.sql("EXPLAIN EXTENDED SELECT count(*) FROM gps").show(truncate=False)
    spark.sql("SET").show(10_000, truncate=False)
pathlib.Path("../explained.txt").write_text(output.getvalue())
"""
VERSION = """\
then = spark.sql(f"SELECT count(*) AS records FROM {tl.table_identifier(settings)} VERSION AS OF 1")
dbutils.notebook.exit(str(then.first()["records"]))
"""


@dataclass(frozen=True)
class Ran:
    """A command that ended."""

    code: int
    text: str
    seconds: float

    @property
    def exit_value(self) -> str:
        (line,) = [line for line in self.text.splitlines() if line.startswith("exit value")]
        return line.removeprefix("exit value").strip()


@dataclass(frozen=True)
class Job:
    """A project with its own workbench folder, whose storage is a folder of the container."""

    project: Path
    home: Path
    environment: dict[str, str]

    def run(self, notebook: str, *parameters: str, **environment: str) -> Ran:
        given = [part for parameter in ("env=azure", *parameters) for part in ("-p", parameter)]
        command = [sys.executable, "-m", "workbench", "run", f"notebooks/{notebook}.py", *given]
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=self.project,
            env=os.environ | self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=240,
        )
        return Ran(done.returncode, done.stdout, time.monotonic() - began)

    def ingest(self, *parameters: str, **environment: str) -> Ran:
        return self.run("gps_ingest", "topic=gps_of_a_story", *parameters, **environment)

    def run_cells(self, *cells: str, **environment: str) -> Ran:
        path = self.project / "notebooks" / "cells.py"
        path.write_text(f"# Databricks notebook source\n{CELL.join((SETTINGS, *cells))}")
        return self.run("cells", **environment)

    def publish(self) -> None:
        """Do what gps_publish does, without a process."""
        with pytest.MonkeyPatch.context() as environment:
            for name, value in self.environment.items():
                environment.setenv(name, value)
            given = {"env": "azure", "topic": "gps_of_a_story"}
            token = self.environment["TOPICLAKE_SECRET_TOPICLAKE_STORAGE_SAS"]
            settings = load_settings("gps", given, secrets=lambda *_: token, conf=self.project / "conf")
        publish_tracks(settings, self.project / "data" / "gps_tracks.csv", devices=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Azurite]:
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        install()  # its progress is seen
    with running_azurite(tmp_path_factory.mktemp("azurite")) as azurite:
        azurite.create_container(CONTAINER)
        yield azurite


@pytest.fixture(scope="module")
def token(store: Azurite) -> str:
    return store.container_sas(CONTAINER)


@pytest.fixture(scope="module")
def make_job(
    embedded: tuple[Home, Addresses], store: Azurite, token: str, tmp_path_factory: pytest.TempPathFactory
):
    addresses = embedded[1]

    def make(folder: str) -> Job:
        project = tmp_path_factory.mktemp(folder) / "project"
        for name in ("notebooks", "data"):
            shutil.copytree(REPOSITORY / name, project / name)
        (project / "jars").symlink_to(REPOSITORY / "jars")
        shutil.copytree(REPOSITORY / "conf", project / "conf")
        (project / "conf" / "azure.yaml").write_text(CONF)
        home = project.parent / "home"
        environment = {
            "WORKBENCH_HOME": str(home),
            "TOPICLAKE_KAFKA": addresses.kafka_bootstrap_servers,
            "TOPICLAKE_SCHEMA_REGISTRY": addresses.schema_registry_url,
            "TOPICLAKE_STORAGE": source(folder),
            "TOPICLAKE_SECRET_TOPICLAKE_STORAGE_SAS": token,
            # Short runs gain nothing from the second compiler.
            "JDK_JAVA_OPTIONS": f"{store.java_options()} {SHORT_LIVED}",
        }
        return Job(project, home, environment)

    return make


def source(folder: str) -> str:
    return f"wasbs://{CONTAINER}@{HOST}/{folder}"


def reveals(text: bytes, token: str) -> bool:
    """Tell whether a text holds the token's signature, as it is or quoted, or a long part of it."""
    (signature,) = parse_qs(token)["sig"]
    spellings = {signature, quote(signature, safe=""), quote(signature), base64.b64decode(signature).hex()}
    parts = {part for spelling in spellings for part in (spelling, spelling[:24], spelling[-24:])}
    return any(part.encode() in text for part in parts)


def places_with(token: str, folders: list[Path], store: Azurite) -> list[str]:
    """Return the files below `folders` and the blobs of the container that reveal the token."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    found = [str(path) for path in files if reveals(path.read_bytes(), token)]
    blobs = store.blobs(CONTAINER)
    return found + [name for name in blobs if reveals(store.read(CONTAINER, name), token)]


def rows_of(ran: Ran) -> tuple[int, int, dict[str, int]]:
    assert ran.code == 0, ran.text
    summary = json.loads(ran.exit_value)
    return summary["rows_written"], summary["table"]["rows"], summary["quarantined"]


def assert_refused_in_one_sentence(ran: Ran, *parts: str) -> None:
    assert ran.code == 1
    (sentence,) = [
        line for line in ran.text.splitlines() if line.startswith("✗ gps_") and " failed: " in line
    ]
    for part in parts:
        assert part in sentence
    for trace in ("Py4J", "\tat ", "Traceback", "Exception"):
        assert trace not in ran.text
    assert ran.seconds < 180


@pytest.fixture(scope="module")
def published(make_job) -> None:
    make_job("published").publish()


@pytest.fixture(scope="module")
def story(make_job, published: None) -> Iterator[tuple[Job, list[Ran]]]:
    """One project's life: publish, ingest, publish more, ingest, explain and query."""
    job = make_job("story")
    first = job.ingest()
    job.publish()
    jvm = WarmJvm(job.project.parent, REPOSITORY, job.environment)
    second = job.ingest(**jvm.environment())
    explained = job.run_cells(OPEN, EXPLAIN, VERSION, **jvm.environment())
    yield job, [first, second, explained]
    jvm.stop()


def test_only_the_sas_token_opens_the_container(store: Azurite, token: str) -> None:
    listing = {"restype": "container", "comp": "list"}
    assert store.request("GET", CONTAINER, token, **listing).status_code == 200
    assert store.request("GET", CONTAINER, **listing).status_code in (403, 404)
    assert store.request("GET", CONTAINER, with_another_signature(token), **listing).status_code == 403
    assert store.request("GET", CONTAINER, expired(store), **listing).status_code == 403
    assert store.request("PUT", "mine", token, restype="container").status_code == 403


def test_each_run_lands_what_is_new_and_the_mount_is_made_once(story: tuple[Job, list[Ran]]) -> None:
    job, (first, second, _) = story
    assert rows_of(first) == (RECORDS, RECORDS, {})
    assert rows_of(second) == (RECORDS, 2 * RECORDS, {})
    mounts = job.home / "mounts.json"
    assert stat.S_IMODE(mounts.stat().st_mode) == 0o600
    (mount,) = json.loads(mounts.read_text())
    assert (mount["mount_point"], mount["source"]) == ("/mnt/datalake", source("story"))


def test_table_and_checkpoint_are_blobs_and_not_local_files(
    story: tuple[Job, list[Ran]], store: Azurite
) -> None:
    names = store.blobs(CONTAINER, "story/")
    assert "story/delta/gps/_delta_log/00000000000000000000.json" in names
    assert not [name for name in names if "quarantine" in name]
    assert "story/checkpoints/gps/commits/1" in names
    data = [name for name in names if name.startswith("story/delta/gps/part-") and name.endswith(".parquet")]
    assert len(data) >= 2
    assert store.read(CONTAINER, data[0]).startswith(b"PAR1")
    assert not list(story[0].project.parent.rglob("_delta_log"))


def test_a_query_travels_in_time_on_blob_storage(story: tuple[Job, list[Ran]]) -> None:
    queried = story[1][-1]
    assert queried.code == 0, queried.text
    assert queried.exit_value == str(RECORDS)


def test_a_token_stands_nowhere_but_in_the_mount_table(
    story: tuple[Job, list[Ran]], store: Azurite, token: str
) -> None:
    job, runs = story
    assert runs[-1].code == 0
    explained = (job.project / "explained.txt").read_text()
    assert "Relation" in explained
    assert f"fs.azure.sas.{CONTAINER}" in explained
    assert [ran.text for ran in runs if reveals(ran.text.encode(), token)] == []
    assert {path.suffix for path in (job.home / "runs").rglob("*") if path.is_file()} == {".ipynb", ".html"}
    assert places_with(token, [job.project, job.home], store) == [str(job.home / "mounts.json")]


def test_a_token_that_stands_in_a_file_or_a_blob_is_found(store: Azurite, token: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"opened https://{HOST}/{CONTAINER}?{token}")
    planted = store.account_sas()
    name = "planted/_delta_log/0.json"
    headers = {"Host": HOST, "x-ms-version": "2019-12-12", "x-ms-blob-type": "BlockBlob"}
    address = f"https://{store.address}/{CONTAINER}/{name}?{planted}"
    body = json.dumps({"sas": parse_qs(token)["sig"][0]})
    authority = str(store.certificate.authority)
    requests.put(address, body, headers=headers, verify=authority, timeout=120).raise_for_status()
    try:
        assert places_with(token, [tmp_path], store) == [str(tmp_path / "log"), name]
    finally:
        requests.delete(address, headers=headers, verify=authority, timeout=120).raise_for_status()


def test_a_wrong_token_is_refused_in_a_sentence_and_nothing_is_written(
    make_job, published: None, store: Azurite, token: str
) -> None:
    job = make_job("wrong")
    wrong = with_another_signature(token)
    ran = job.ingest(TOPICLAKE_SECRET_TOPICLAKE_STORAGE_SAS=wrong)
    # A token that has ended by the store's clock only is refused so, too.
    refusal = f"{source('wrong')} refuses the SAS token, good until "
    remedy = "; try: renew the secret topiclake/storage-sas, or compare the clocks"
    assert_refused_in_one_sentence(ran, refusal, " by this machine's clock, ", remedy)
    assert store.blobs(CONTAINER, "wrong") == []
    assert not reveals(ran.text.encode(), wrong)
    assert places_with(wrong, [job.project, job.home], store) == [str(job.home / "mounts.json")]


def with_another_signature(token: str) -> str:
    before, signature = token.split("sig=")
    signed = base64.b64decode(unquote(signature))
    other = bytes([signed[0] ^ 1]) + signed[1:]
    return f"{before}sig={quote(base64.b64encode(other).decode(), safe='')}"


def expired(store: Azurite) -> str:
    return store.container_sas(CONTAINER, datetime.now(timezone.utc) - timedelta(hours=1))
