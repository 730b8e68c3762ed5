"""Runs of tutorials by the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.environment import succeeded, without_workbench

PROJECT = Path(__file__).parents[2]


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
