"""Notebooks in a process of their own, as on Databricks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml

from tests.notebooks import databricks_stand_in
from tests.support.environment import without_workbench
from workbench.services.service import Addresses

#: Notebooks that need PostgreSQL and Debezium, which `test_shop` starts.
OF_A_DATABASE = {"shop_change.py", "cdc_orders.py"}


#: Runtimes whose sessions are those of Spark Connect: of serverless, and of clusters with standard access.
SERVERLESS, STANDARD = "client.5.0", "18.0"


def run_notebooks(
    project: Path, asked: list[tuple[str, dict[str, str]]], environment: dict[str, str], *connection: str
) -> subprocess.CompletedProcess[str]:
    """Run notebooks of a project in turn, on a cluster with dedicated access.

    Args:
        project: The folder with `notebooks`.
        asked: Each notebook with its parameters.
        environment: Variables of the process.
        connection: The address of a Spark Connect server and the runtime, for the other kinds of compute.
    """
    return subprocess.run(
        [sys.executable, str(Path(databricks_stand_in.__file__)), str(project), *connection],
        input=json.dumps(asked),
        env=without_workbench() | environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def name_services(project: Path, addresses: Addresses, lake: Path) -> None:
    """Write the addresses and the store into `conf/local.yaml`, for a session without variables of ours."""
    file = project / "conf" / "local.yaml"
    environment = yaml.safe_load(file.read_text())
    environment["kafka"]["bootstrap_servers"] = addresses.kafka_bootstrap_servers
    environment["schema_registry"]["url"] = addresses.schema_registry_url
    environment["storage"]["source"] = lake.as_uri()
    file.write_text(yaml.safe_dump(environment))
