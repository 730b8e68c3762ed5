"""The environment of commands that tests run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from workbench.kernel.session import INTERPRETED

LAST_CHARACTERS = 3000


def without_workbench() -> dict[str, str]:
    """Return this process's variables without those that tell of a workbench and its services."""
    return {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")}


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a command printed; fail with its last words, errors first, when it did not succeed."""
    words = f"{done.stderr[-LAST_CHARACTERS:]}\n-- printed:\n{done.stdout[-LAST_CHARACTERS:]}"
    assert done.returncode == 0, f"exit code {done.returncode}: {words}"
    return done.stdout


def quiet_conf(folder: Path | str) -> dict[str, str]:
    """Return the settings of a session with few rows.

    It keeps its files in a folder, and says and opens nothing. Spark interprets its plans, since to compile
    them costs more (test_tables: 113 s of CPU, and 190 s compiled).
    """
    return {
        **INTERPRETED,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": f"{folder}/tmp",
        "spark.sql.warehouse.dir": f"file://{folder}/warehouse",
    }
