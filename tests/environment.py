"""The environment of commands that tests run."""

from __future__ import annotations

import os
from pathlib import Path


def without_workbench() -> dict[str, str]:
    """Return this process's variables without those that tell of a workbench and its services."""
    return {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")}


def quiet_conf(folder: Path | str) -> dict[str, str]:
    """Return the settings of a session that keeps its files in a folder, and says and opens nothing."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": f"{folder}/tmp",
        "spark.sql.warehouse.dir": f"file://{folder}/warehouse",
    }


class Unmounted:
    """Stand in for dbutils: paths are folders of the test already."""

    def __init__(self) -> None:
        self.fs = self

    def mounts(self) -> list[object]:
        """Nothing is mounted."""
        return []
