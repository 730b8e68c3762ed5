"""`python -m workbench audit`, as a user runs it after an ingest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from delta.tables import DeltaTable

import topiclake as tl
from tests.support.environment import without_workbench
from topiclake_examples.gps import publish_tracks
from workbench.dbutils import DBUtils

PROJECT = Path(__file__).parents[2]
TOPIC = "audited-gps"
PARAMETERS = {
    "topic": TOPIC,
    "table_path": f"/mnt/datalake/delta/{TOPIC}",
    "checkpoint_path": f"/mnt/datalake/checkpoints/{TOPIC}",
}


@pytest.fixture
def workbench(embedded, warm_jvm):
    """Its command line on the embedded services."""
    variables = without_workbench() | embedded[1].environment() | warm_jvm.environment() | {"COLUMNS": "160"}

    def run(*arguments: str, **parameters: str) -> subprocess.CompletedProcess[str]:
        given = [part for name, value in parameters.items() for part in ("-p", f"{name}={value}")]
        return subprocess.run(
            [sys.executable, "-m", "workbench", *arguments, *given],
            cwd=PROJECT,
            env=variables,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run


@pytest.fixture
def table(embedded, spark, tmp_path, monkeypatch) -> DeltaTable:
    """The table of 993 ingested points, with a record in its quarantine."""
    for name, value in embedded[1].environment().items():
        monkeypatch.setenv(name, value)
    settings = tl.load_settings("gps", PARAMETERS, conf=PROJECT / "conf")
    publish_tracks(settings, PROJECT / "data" / "gps_tracks.csv", devices=3)
    producer = Producer({"bootstrap.servers": embedded[1].kafka_bootstrap_servers})
    producer.produce(TOPIC, value=b"{}", partition=0)
    assert producer.flush(120) == 0
    tl.mount(DBUtils(tmp_path / "home", PROJECT), settings.storage, spark)
    tl.await_caught_up(tl.start_ingest(spark, settings), settings.pipeline.trigger)
    return DeltaTable.forPath(spark, tl.table_path(settings))


@pytest.mark.thorough("the library's audit is tested in test_audit of Spark")
@pytest.mark.slow("an ingest and two audits by the command line")
def test_a_missing_row_ends_the_command_and_the_job_with_1(workbench, table) -> None:
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
