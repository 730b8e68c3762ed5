"""The short form of `make torture-cdc`: one kill within a MERGE."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environment import without_workbench

PROJECT = Path(__file__).parents[3]
SECONDS = 1500


@pytest.mark.thorough("make torture-cdc kills 30 times")
@pytest.mark.slow("a database, Debezium, and three starts of Spark")
@pytest.mark.timeout(SECONDS + 120)
def test_tables_are_those_of_the_database_after_a_kill_within_a_merge(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "bench.torture_changes", "--statements", "1500", "--kills", "1"]
    variables = without_workbench() | {"TMPDIR": str(tmp_path)}
    torture = subprocess.Popen(
        program, cwd=PROJECT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        output, errors = torture.communicate(timeout=SECONDS)
    finally:
        # If it still runs, it stops its services.
        torture.send_signal(signal.SIGINT)
        torture.wait(60)
    assert torture.returncode == 0, f"{output[-1000:]}\n{errors[-3000:]}"
    assert "kill 1 of 1, within a MERGE" in output
    assert "rows and versions are those of the database" in output
