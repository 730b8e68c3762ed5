"""`abfss://` on an account with a flat namespace, and account keys: what opens a container, what does not."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.services import entra
from tests.services.azurite import HOST, Azurite, install, running_azurite
from tests.services.entra import Client, running_entra
from workbench.host.java import SHORT_LIVED

pytestmark = pytest.mark.root("Azure's port 443, which the address of Microsoft Entra has")

REPOSITORY = Path(__file__).parents[3]
CONTAINER, OTHER = "lake", "other"
CELLS = """\
# Databricks notebook source
import json
from pathlib import Path
import topiclake as tl
from topiclake.delta import table as delta
from topiclake.errors import StorageError
from topiclake.storage.failures import storage_errors
from topiclake.config.storage import StorageSettings
dbutils.widgets.text("cases", "")

def opened(secrets, **given):
    settings = {"mount_point": "/mnt/x", "mounted": False, **given}
    storage = StorageSettings.model_validate(settings, context={"secrets": lambda _, key: secrets[key]})
    tl.mount(dbutils, storage, spark)
    path = f"{storage.source}/table"
    with storage_errors(storage, path):
        delta.is_table(spark, path)
        delta.ensure_table(spark, path, spark.range(1).schema, {})
    for rows in (3, 4):
        spark.range(rows).write.format("delta").mode("append").save(path)
    stream = spark.readStream.format("delta").load(path).writeStream.format("delta")
    stream = stream.option("checkpointLocation", f"{path}-checkpoint").trigger(availableNow=True)
    stream.start(f"{path}-streamed").awaitTermination()
    return delta.read(spark, f"{path}-streamed").count()

outcome = {}
for name, case in json.loads(Path(dbutils.widgets.get("cases")).read_text()).items():
    try:
        outcome[name] = opened(**case)
    except StorageError as error:
        outcome[name] = str(error)
Path("outcome.json").write_text(json.dumps(outcome))
"""


@dataclass(frozen=True)
class Outcome:
    """Results of opening tables in a notebook, and its output."""

    answers: dict[str, Any]
    text: str
    secrets: list[str]
    store: Azurite

    def blobs(self, name: str) -> list[str]:
        return [blob for container in (CONTAINER, OTHER) for blob in self.store.blobs(container, f"{name}/")]


def cases(store: Azurite, client: Client) -> dict[str, dict[str, Any]]:
    """Return what is tried, by name; each in a folder of that name."""
    wrong_key = base64.b64encode(os.urandom(64)).decode()
    token = store.container_sas(CONTAINER)
    oauth = {"tenant_id": client.tenant_id, "client_id": client.client_id}
    tried: dict[str, tuple[str, dict[str, Any]]] = {
        "token": (CONTAINER, {"sas_token": token}),
        "key": (CONTAINER, {"account_key": store.key}),
        "client": (CONTAINER, {"oauth": oauth, "client_secret": client.secret}),
        "wasbs key": (OTHER, {"account_key": store.key}),
        "wasbs on token": (CONTAINER, {"account_key": store.key}),
        "abfss on wasbs key": (OTHER, {"account_key": store.key}),
        "no container, token": ("nowhere", {"sas_token": store.container_sas("nowhere")}),
        "no container, key": ("nowhere", {"account_key": store.key}),
        "no container, client": ("nowhere", {"oauth": oauth, "client_secret": client.secret}),
        "wrong token": (CONTAINER, {"sas_token": store.container_sas(OTHER)}),
        "only reads": (CONTAINER, {"sas_token": store.container_sas(CONTAINER, permissions="rl")}),
        "wrong key": (CONTAINER, {"account_key": wrong_key}),
        "wasbs wrong key": (OTHER, {"account_key": wrong_key}),
        "wrong client": (CONTAINER, {"oauth": oauth, "client_secret": "wrong-secret-of-a-client"}),
        "away": (CONTAINER, {"account_key": store.key}),
        "wasbs only reads": (OTHER, {"sas_token": store.container_sas(OTHER, permissions="rl")}),
    }
    return {name: case(name, *what) for name, what in tried.items()}


def case(name: str, container: str, given: dict[str, Any]) -> dict[str, Any]:
    scheme = "wasbs" if name.startswith("wasbs") else "abfss"
    host = f"{HOST}:1" if name == "away" else HOST
    secrets = {key: value for key, value in given.items() if key != "oauth"}
    named = {key: f"{{{{secrets/azure/{key}}}}}" for key in secrets}
    if oauth := given.get("oauth"):
        named = {"oauth": oauth | named}
    # A folder of its own, or that of another case.
    folder = name.rpartition(" on ")[2].replace(" ", "-")
    return {"source": f"{scheme}://{container}@{host}/{folder}", "secrets": secrets, **named}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Outcome]:
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        install()  # its progress is seen
    folder = tmp_path_factory.mktemp("abfss")
    with (
        running_azurite(folder / "azurite", entra.HOST) as store,
        running_entra(store.certificate) as client,
    ):
        for container in (CONTAINER, OTHER):
            store.create_container(container)
        tried = cases(store, client)
        (folder / "cases.json").write_text(json.dumps(tried))
        (folder / "cells.py").write_text(CELLS)
        command = [sys.executable, "-m", "workbench", "run", str(folder / "cells.py")]
        hosts = {entra.HOST: client.address}
        variables = {
            "WORKBENCH_HOME": str(folder / "home"),
            "JDK_JAVA_OPTIONS": f"{store.java_options(hosts)} {SHORT_LIVED}",
        }
        ran = subprocess.run(
            [*command, "-p", f"cases={folder / 'cases.json'}"],
            cwd=REPOSITORY,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=500,
        )
        assert ran.returncode == 0, ran.stdout
        answers = json.loads((folder / "outcome.json").read_text())
        secrets = [secret for one in tried.values() for secret in one["secrets"].values()]
        yield Outcome(answers, ran.stdout, secrets, store)


@pytest.mark.parametrize("name", ["token", "key", "client", "wasbs key"])
def test_a_container_is_opened_by_what_the_store_was_told(outcome: Outcome, name: str) -> None:
    assert outcome.answers[name] == 7
    assert any("_delta_log" in blob for blob in outcome.blobs(name.replace(" ", "-")))


MISSING = "cannot be used: there is no container nowhere; try: create it, or correct storage.source"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no container, token", MISSING),
        ("no container, key", MISSING),
        ("no container, client", MISSING),
        ("wrong token", "refuses the SAS token, good until "),
        ("only reads", "refuses the SAS token: it may not write ("),
        ("wrong key", "refuses the account key ("),
        ("wasbs wrong key", "refuses the account key ("),
        ("wrong client", "refuses the OAuth client ("),
        ("away", "cannot be reached ("),
        ("wasbs only reads", "refuses the SAS token"),
    ],
)
def test_what_azure_refuses_is_told_in_a_sentence_and_nothing_is_written(
    outcome: Outcome, name: str, sentence: str
) -> None:
    answer, folder = outcome.answers[name], name.replace(" ", "-")
    assert isinstance(answer, str)
    assert f"/{folder} {sentence}" in answer
    assert "; try: " in answer
    assert answer.endswith(" [TL-STORAGE-001]")
    assert "\n" not in answer
    assert outcome.blobs(folder) == []


def test_a_table_that_abfss_wrote_is_not_opened_by_wasbs_and_it_is_told_why(outcome: Outcome) -> None:
    answer = outcome.answers["wasbs on token"]
    assert f"wasbs://{CONTAINER}@{HOST}/token holds a file that is damaged, or that abfss wrote: " in answer
    assert answer.endswith("; try: set storage.source to abfss://… [TL-STORAGE-001]")
    assert outcome.answers["abfss on wasbs key"] == 14, "the other way round it is opened"


def test_no_secret_is_told(outcome: Outcome) -> None:
    everything = outcome.text + json.dumps(outcome.answers)
    signatures = [secret.rpartition("sig=")[2] for secret in outcome.secrets]
    assert [secret for secret in signatures if secret in everything] == []
