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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote

import pytest
import requests

from tests.services.azurite import HOST, Azurite, install, running_azurite
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
settings = tl.load_settings("gps", {"env": "azure", "topic": "gps_wasbs"}, secrets=dbutils.secrets.get)
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
        return self.run("gps_ingest", "topic=gps_wasbs", *parameters, **environment)

    def run_cells(self, *cells: str) -> Ran:
        path = self.project / "notebooks" / "cells.py"
        path.write_text(f"# Databricks notebook source\n{CELL.join((SETTINGS, *cells))}")
        return self.run("cells")


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
def published(make_job) -> Ran:
    ran = make_job("published").run("gps_publish", "topic=gps_wasbs")
    assert ran.code == 0, ran.text
    return ran


@pytest.fixture(scope="module")
def story(make_job, published: Ran) -> tuple[Job, list[Ran]]:
    """One project's life: publish, ingest, ingest again, publish more, ingest, query, explain."""
    job = make_job("story")
    runs = [published, job.ingest(), job.ingest(), job.run("gps_publish", "topic=gps_wasbs"), job.ingest()]
    # Both only read.
    with ThreadPoolExecutor() as both:
        queried = both.submit(job.run, "gps_query", "version=1")
        explained = both.submit(job.run_cells, OPEN, EXPLAIN)
    return job, [*runs, queried.result(), explained.result()]


def test_only_the_sas_token_opens_the_container(store: Azurite, token: str) -> None:
    listing = {"restype": "container", "comp": "list"}
    assert store.request("GET", CONTAINER, token, **listing).status_code == 200
    assert store.request("GET", CONTAINER, **listing).status_code in (403, 404)
    assert store.request("GET", CONTAINER, with_another_signature(token), **listing).status_code == 403
    assert store.request("GET", CONTAINER, expired(store), **listing).status_code == 403
    assert store.request("PUT", "mine", token, restype="container").status_code == 403


def test_each_run_lands_what_is_new_and_the_mount_is_made_once(story: tuple[Job, list[Ran]]) -> None:
    job, (published, first, second, _, third, _, _) = story
    assert json.loads(published.exit_value)["records"] == RECORDS
    assert rows_of(first) == (RECORDS, RECORDS, {})
    assert rows_of(second) == (0, RECORDS, {})
    assert rows_of(third) == (RECORDS, 2 * RECORDS, {})
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


def test_the_query_notebook_travels_in_time_on_blob_storage(story: tuple[Job, list[Ran]]) -> None:
    queried = story[1][5]
    assert queried.code == 0
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


def test_a_mount_of_something_else_is_refused_with_both_sources(story: tuple[Job, list[Ran]]) -> None:
    job, _ = story
    other = f"wasbs://other@{HOST}/elsewhere"
    ran = job.ingest(f"storage={other}")
    assert_refused_in_one_sentence(ran, other, source("story"), "dbutils.fs.unmount")
    (mount,) = json.loads((job.home / "mounts.json").read_text())
    assert mount["source"] == source("story")


def test_a_wrong_token_is_refused_and_what_the_error_says_to_try_mends_it(
    make_job, published: Ran, store: Azurite, token: str
) -> None:
    job = make_job("wrong")
    wrong = with_another_signature(token)
    refusal = (f"{source('wrong')} refuses the SAS token", "renew the secret topiclake/storage-sas")
    ran = job.ingest(TOPICLAKE_SECRET_TOPICLAKE_STORAGE_SAS=wrong)
    assert_refused_in_one_sentence(ran, *refusal)
    assert store.blobs(CONTAINER, "wrong") == []
    assert not reveals(ran.text.encode(), wrong)
    assert places_with(wrong, [job.project, job.home], store) == [str(job.home / "mounts.json")]
    # The secret is renewed now, and with it the mount.
    mended = job.run_cells(OPEN)
    assert "there is no Delta table at /mnt/datalake/delta/gps" in mended.text
    (mount,) = json.loads((job.home / "mounts.json").read_text())
    assert list(mount["configs"].values()) == [token]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "expired",
            ("cannot be opened: its SAS token, the secret topiclake/storage-sas, ended at", "1 h 0 min"),
        ),
        ("readonly", ("refuses the SAS token", "; try: renew the secret")),
    ],
)
def test_a_token_that_has_expired_or_may_only_read_is_refused_and_nothing_is_written(
    make_job, published: Ran, store: Azurite, setting: str, message: tuple[str, str]
) -> None:
    given = expired(store) if setting == "expired" else store.container_sas(CONTAINER, permissions="rl")
    job = make_job(setting)
    ran = job.ingest(TOPICLAKE_SECRET_TOPICLAKE_STORAGE_SAS=given)
    assert_refused_in_one_sentence(ran, source(setting), *message)
    assert not reveals(ran.text.encode(), given)
    assert store.blobs(CONTAINER, setting) == []
    assert (job.home / "mounts.json").exists() == (setting == "readonly")


def test_a_token_that_has_ended_by_the_stores_clock_only_is_refused_with_this_machines(
    make_job, published: Ran, store: Azurite
) -> None:
    end = datetime.now(timezone.utc) + timedelta(hours=1)
    token, job = store.container_sas(CONTAINER, end), make_job("skewed")
    store.clock.set(timedelta(hours=2))
    try:
        ran = job.ingest(TOPICLAKE_SECRET_TOPICLAKE_STORAGE_SAS=token)
    finally:
        store.clock.set(timedelta())
    cause = f"refuses the SAS token, good until {end:%Y-%m-%d %H:%M:%S} UTC by this machine's clock, "
    assert_refused_in_one_sentence(
        ran, f"{source('skewed')} {cause}", "; try: renew the secret", "the clocks"
    )
    assert not reveals(ran.text.encode(), token)
    assert store.blobs(CONTAINER, "skewed") == []


def test_a_local_folder_that_cannot_be_made_is_refused_and_nothing_is_written(
    make_job, published: Ran, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    before = sorted(tmp_path.rglob("*"))
    job = make_job("local")
    ran = job.ingest(
        f"storage={tmp_path.as_uri()}", f"checkpoint_path={(tmp_path / 'file' / 'checkpoint').as_uri()}"
    )
    assert_refused_in_one_sentence(ran, str(tmp_path / "file"), "is not a folder")
    assert sorted(tmp_path.rglob("*")) == before


def with_another_signature(token: str) -> str:
    before, signature = token.split("sig=")
    signed = base64.b64decode(unquote(signature))
    other = bytes([signed[0] ^ 1]) + signed[1:]
    return f"{before}sig={quote(base64.b64encode(other).decode(), safe='')}"


def expired(store: Azurite) -> str:
    return store.container_sas(CONTAINER, datetime.now(timezone.utc) - timedelta(hours=1))
