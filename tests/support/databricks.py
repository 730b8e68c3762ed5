"""Notebooks in a process of their own, as on Databricks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.notebooks import databricks_stand_in
from tests.support.environment import without_workbench

#: Notebooks that need PostgreSQL and Debezium, which `test_shop` starts.
OF_A_DATABASE = {"shop_change.py", "cdc_orders.py"}


def run_notebooks(
    project: Path, asked: list[tuple[str, dict[str, str]]], environment: dict[str, str], address: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run notebooks of a project in turn, on a cluster, or on the serverless compute at an address."""
    return subprocess.run(
        [sys.executable, str(Path(databricks_stand_in.__file__)), str(project), address],
        input=json.dumps(asked),
        env=without_workbench() | environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
