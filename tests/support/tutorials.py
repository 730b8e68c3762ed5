"""Runs of tutorials by the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tests.support.environment import succeeded, without_workbench

PROJECT = Path(__file__).parents[2]
MARKER = "\n# COMMAND ----------\n"
IMPORTS = "\nimport json\nfrom pyspark.sql import functions as F\n"


def shorten(tutorial: Path, titles: Collection[str], exit_value: str) -> None:
    """Remove all cells of a tutorial but those with the titles.

    Args:
        tutorial: Its file, in a copy of the project.
        titles: The titles of the cells that remain.
        exit_value: A Python expression, which the tutorial returns as JSON.
    """
    head, *cells = tutorial.read_text("utf-8").split(MARKER)
    found = [cell for cell in cells if cell.strip().partition("\n")[0].removeprefix("# DBTITLE 1,") in titles]
    assert len(found) == len(titles)
    end = f"\ndbutils.notebook.exit(json.dumps({exit_value}))\n"
    tutorial.write_text(MARKER.join([head, IMPORTS, *found, end]), "utf-8")


def figures(
    notebook: str, variables: Mapping[str, str], *options: str, project: Path = PROJECT
) -> dict[str, Any]:
    """Run a tutorial of a project, and return its exit value.

    Args:
        notebook: Its name without `.py`.
        variables: Those of the services and of the JVM.
        options: Options of `workbench run`.
        project: The folder with `notebooks/tutorials`.
    """
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "run", f"notebooks/tutorials/{notebook}.py", *options],
        cwd=project,
        env=without_workbench() | dict(variables),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return json.loads(re.search(r"^exit value +(.*)$", succeeded(done), re.MULTILINE)[1])
