"""Each notebook, run where there is no workbench: cells, library, and only what Databricks documents."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.notebooks import databricks_stand_in
from tests.support.databricks import OF_A_DATABASE, SERVERLESS, run_notebooks
from tests.support.environment import succeeded

PROJECT = Path(__file__).parents[2]

#: Documented for Databricks Runtime 13.3 and newer; the SDK's stub does not have it yet:
#: https://docs.databricks.com/en/dev-tools/databricks-utils.html#dbutils-widgets-getall
NEWER = {"widgets.getAll"}


def names(part: object, above: str = "") -> set[str]:
    """What a part of the stand-in offers, with dots."""
    found = set()
    for name in (name for name in dir(part) if not name.startswith("_")):
        value = getattr(part, name)
        found |= {above + name} if callable(value) else names(value, f"{above}{name}.")
    return found


def test_the_stand_in_has_only_documented_names(stub) -> None:
    for name in names(databricks_stand_in.DBUtils({})) - NEWER:
        part = stub.dbutils
        for step in name.split("."):
            part = getattr(part, step)
        assert callable(part)


#: A pipeline of changes, which conf/ has for a database only: the newest position of each device.
NEWEST = """
topic: gps
trigger: availableNow
view: newest
starting_offsets: earliest
apply: upsert
changes: {keys: [deviceId], order: [timestamp], deletes: deviceId = 'Mojstrovka'}
"""


def notebooks(topic: str, folder: Path) -> list[tuple[str, dict[str, str]]]:
    """Return each notebook with its parameters: topics whose names begin with `topic`, tables in a folder."""
    ingest = {
        "topic": topic,
        "table_path": (folder / "gps").as_uri(),
        "checkpoint_path": (folder / "checkpoint").as_uri(),
    }
    table = {"table_path": ingest["table_path"]}
    newest = {
        "pipeline": "newest",
        "topic": topic,
        "table_path": (folder / "newest").as_uri(),
        "checkpoint_path": (folder / "newest_checkpoint").as_uri(),
    }
    taxi = {
        "topic": f"{topic}-taxi",
        "table_path": (folder / "taxi").as_uri(),
        "checkpoint_path": (folder / "taxi_checkpoint").as_uri(),
    }
    isp = {
        "topic": f"{topic}-isp",
        "table_path": (folder / "hits").as_uri(),
        "checkpoint_path": (folder / "hits_checkpoint").as_uri(),
    }
    nest = {
        "topic": f"{topic}-nest",
        "table_path": (folder / "nest").as_uri(),
        "checkpoint_path": (folder / "nest_checkpoint").as_uri(),
        "more_than": "0",
    }
    wikimedia = {
        "topic": f"{topic}-wikimedia",
        "table_path": (folder / "edits").as_uri(),
        "checkpoint_path": (folder / "edits_checkpoint").as_uri(),
    }
    asked = [
        ("gps_publish.py", {"topic": topic}),
        ("plan.py", {name: ingest[name] for name in ("topic", "table_path", "checkpoint_path")}),
        # A job gives its parameters to all of its tasks, also to those that declare no devices.
        ("gps_ingest.py", ingest | {"devices": "3"}),
        ("ingest.py", newest),
        ("purge.py", newest | {"retention_days": "0"}),
        ("ingest.py", ingest | {"max_offsets_per_trigger": "1000"}),
        ("query.py", table | {"sql": "SELECT count(*) AS records FROM gps"}),
        ("gps_query.py", table | {"version": "1"}),
        ("quarantine.py", table | {"topic": topic, "action": "replay"}),
        ("taxi_publish.py", {"topic": f"{topic}-taxi", "trips": "500"}),
        ("taxi_archive.py", taxi),
        ("isp_publish.py", {"topic": f"{topic}-isp", "hits": "400", "damaged": "3"}),
        ("isp_hits.py", isp),
        ("nest_publish.py", {"topic": f"{topic}-nest", "logs": "60", "homes": "6", "damaged": "3"}),
        ("nest_cameras.py", nest),
        ("wikimedia_publish.py", {"topic": f"{topic}-wikimedia", "events": "150"}),
        ("wikimedia_edits.py", wikimedia),
        ("wikimedia_bronze.py", wikimedia),
        ("audit.py", wikimedia | {"pipeline": "wikimedia"}),
        ("wikimedia_silver.py", wikimedia),
        ("wikimedia_gold.py", wikimedia),
    ]
    names = {name for name, _ in asked}
    assert names | OF_A_DATABASE == {path.name for path in (PROJECT / "notebooks").glob("*.py")}
    return asked


def check_results(done: subprocess.CompletedProcess[str], topic: str) -> None:
    """Check what the notebooks of `notebooks` returned and displayed."""
    results = json.loads(succeeded(done).splitlines()[-1])
    exits = {name: json.loads(result["exit"]) for name, result in results.items()}
    assert exits["gps_publish.py"]["records"] == exits["gps_ingest.py"]["rows_written"] == 993
    # Two partitions have records, 697 and 296. A sample has at most 500 of each.
    assert (exits["plan.py"]["records"], exits["plan.py"]["tables"][0]["sample"]) == (993, {"ok": 796})
    assert exits["purge.py"]["removed"] == 1
    # A second run, by the notebook of all pipelines, has nothing to do.
    assert (exits["ingest.py"]["rows_written"], exits["ingest.py"]["audit"]["ok"]) == (0, True)
    assert (exits["query.py"]["records"], exits["query.py"]["rows"]) == (993, [{"records": 993}])
    assert exits["gps_query.py"] == 993
    assert exits["audit.py"]["ok"]
    audited = exits["audit.py"]["partitions"]
    assert {each["topic"] for each in audited} == {f"{topic}-wikimedia"}
    assert sum(each["in_table"] for each in audited) == 150
    assert exits["taxi_publish.py"]["records"] == exits["taxi_archive.py"]["rows"] == 500
    assert exits["isp_hits.py"]["hits"] == exits["isp_publish.py"]["records"] - 3 == 397
    assert exits["isp_hits.py"]["in_files"] == 397
    assert exits["nest_publish.py"]["cameras"] == exits["nest_cameras.py"]["cameras"] == 12
    assert exits["nest_cameras.py"]["offline"] == 3
    assert exits["nest_cameras.py"]["reported"] > 0
    assert exits["wikimedia_publish.py"]["records"] == 150
    assert exits["wikimedia_bronze.py"]["rows_written"] == exits["wikimedia_silver.py"]["edits"] == 150
    assert exits["wikimedia_gold.py"]["windows"] == exits["wikimedia_edits.py"]["records"] > 0
    assert {name: result["displayed"] for name, result in results.items()} == {
        "gps_publish.py": 0,
        "plan.py": 3,
        "gps_ingest.py": 5,
        "purge.py": 1,
        "ingest.py": 4,
        "query.py": 2,
        "gps_query.py": 4,
        "quarantine.py": 3,
        "taxi_publish.py": 0,
        "taxi_archive.py": 5,
        "isp_publish.py": 0,
        "isp_hits.py": 5,
        "nest_publish.py": 0,
        "nest_cameras.py": 6,
        "wikimedia_publish.py": 0,
        "wikimedia_edits.py": 2,
        "wikimedia_bronze.py": 1,
        "audit.py": 2,
        "wikimedia_silver.py": 1,
        "wikimedia_gold.py": 1,
    }


@pytest.mark.slow("all notebooks")
@pytest.mark.timeout(1200)
def test_each_notebook_runs_where_there_is_no_workbench(embedded, warm_jvm, project, tmp_path) -> None:
    _, addresses = embedded
    (project / "conf" / "pipelines" / "newest.yaml").write_text(NEWEST)
    # The store is mounted.
    shutil.copy(PROJECT / "conf" / "local.yaml", project / "conf")
    # The default on Databricks is an environment with other services.
    asked = [(name, {"env": "local"} | given) for name, given in notebooks("stand-in", tmp_path)]
    done = run_notebooks(project, asked, addresses.environment() | warm_jvm.environment())
    check_results(done, "stand-in")


@pytest.mark.thorough("the same notebooks as on a cluster")
@pytest.mark.slow("all notebooks")
@pytest.mark.timeout(1200)
def test_each_notebook_runs_on_serverless_compute(
    embedded, connect_server, project, catalog_schema, tmp_path
) -> None:
    """Tables and files are where conf/databricks.yaml has them: in a catalog and in a volume."""
    _, addresses = embedded
    places = f"table: {catalog_schema}.newest\ncheckpoint_path: /mnt/datalake/checkpoints/newest\n"
    (project / "conf" / "pipelines" / "newest.yaml").write_text(NEWEST + places)
    file = project / "conf" / "databricks.yaml"
    environment = yaml.safe_load(file.read_text().replace("main.topiclake.", f"{catalog_schema}."))
    environment["kafka"] = {"bootstrap_servers": addresses.kafka_bootstrap_servers}
    environment["schema_registry"] = {"url": addresses.schema_registry_url, "new_id_seconds": 0}
    # A volume is not mounted, either.
    environment["storage"] = {"source": (tmp_path / "volume").as_uri(), "mounted": False}
    file.write_text(yaml.safe_dump(environment))
    asked = [
        (name, {key: value for key, value in given.items() if not key.endswith("_path")})
        for name, given in notebooks("serverless", tmp_path)
    ]
    done = run_notebooks(project, asked, {}, connect_server.url, SERVERLESS)
    check_results(done, "serverless")


@pytest.mark.parametrize("line", ["import workbench.runner.runner", "dbutils.fs.unmountAll()"])
def test_what_databricks_has_not_fails_there(tmp_path, line) -> None:
    (tmp_path / "notebooks").mkdir()
    notebook = f"# Databricks notebook source\n\n# COMMAND ----------\n\n{line}\n"
    (tmp_path / "notebooks" / "wrong.py").write_text(notebook)
    done = run_notebooks(tmp_path, [("wrong.py", {})], {})
    assert done.returncode == 1
    assert "No module named 'workbench'" in done.stderr or "no attribute 'unmountAll'" in done.stderr
