"""`python -m workbench audit`, as a user runs it after an ingest."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from delta.tables import DeltaTable

import topiclake as tl
from tests.support.environment import succeeded, without_workbench
from topiclake_examples.gps import publish_tracks

PROJECT = Path(__file__).parents[2]
TOPIC = "audited-gps"
PARAMETERS = {
    "topic": TOPIC,
    "table_path": f"/mnt/datalake/delta/{TOPIC}",
    "checkpoint_path": f"/mnt/datalake/checkpoints/{TOPIC}",
}


@dataclass(frozen=True)
class Workbench:
    """Its command line on the embedded services."""

    environment: dict[str, str]

    def __call__(self, *arguments: str, **parameters: str) -> subprocess.CompletedProcess[str]:
        given = [part for name, value in parameters.items() for part in ("-p", f"{name}={value}")]
        return subprocess.run(
            [sys.executable, "-m", "workbench", *arguments, *given],
            cwd=PROJECT,
            env=self.environment | {"COLUMNS": "160"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    @property
    def datalake(self) -> Path:
        return Path(self.environment["WORKBENCH_DATALAKE"].removeprefix("file://"))


@pytest.fixture(scope="module")
def workbench(embedded, warm_jvm) -> Workbench:
    return Workbench(without_workbench() | embedded[1].environment() | warm_jvm.environment())


@pytest.fixture(scope="module")
def ingested(workbench, embedded):
    """993 points and a record that is no Avro; the exit value of the notebook that ingested them."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in embedded[1].environment().items():
            environment.setenv(name, value)
        settings = tl.load_settings("gps", {"topic": TOPIC}, conf=PROJECT / "conf")
    publish_tracks(settings, PROJECT / "data" / "gps_tracks.csv", devices=3)
    producer = Producer({"bootstrap.servers": workbench.environment["WORKBENCH_KAFKA"]})
    producer.produce(TOPIC, value=b"{}", partition=0)
    assert producer.flush(120) == 0
    done = workbench("run", "notebooks/gps_ingest.py", **PARAMETERS)
    (line,) = [line for line in succeeded(done).splitlines() if line.startswith("exit value")]
    return json.loads(line.removeprefix("exit value"))


@pytest.mark.thorough("the library's audit is tested in test_audit of Spark")
@pytest.mark.slow("an ingest and two audits by the command line")
def test_a_right_ingest_exits_with_0_and_a_missing_row_with_1(workbench, ingested, spark) -> None:
    right = workbench("audit", "--json", **PARAMETERS)
    assert json.loads(succeeded(right)) == ingested["audit"]

    table = DeltaTable.forPath(spark, str(workbench.datalake / "delta" / TOPIC))
    table.delete("_kafka.partition = 0 AND _kafka.offset = 0")
    wrong = workbench("audit", **PARAMETERS)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert f"✗ missing: topic {TOPIC}, partition 0, offset 0\n" in wrong.stdout
    assert "missing ┃ doubled ┃ in both ┃ unknown" in wrong.stdout
    assert "✓" not in wrong.stdout

    job = workbench("run", "notebooks/audit.py", **PARAMETERS)
    assert job.returncode == 1
    cause = f"not in exactly one place: topic {TOPIC}, partition 0: 1 missing; try: "
    assert cause in job.stdout + job.stderr


@pytest.mark.thorough("a notebook of the user that breaks a rule")
def test_a_notebook_that_tells_no_report_is_named(workbench, tmp_path) -> None:
    notebook = tmp_path / "quiet.py"
    notebook.write_text("# Databricks notebook source\ndbutils.notebook.exit('[]')\n")
    done = workbench("audit", "--notebook", str(notebook))
    assert done.returncode == 1
    assert f"{notebook} ended without findings, ok, partitions; try: open " in done.stderr
