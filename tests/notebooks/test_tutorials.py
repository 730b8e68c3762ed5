"""The tutorials, each run from top to bottom twice: their cells assert their own figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.environment import succeeded, without_workbench

PROJECT = Path(__file__).parents[2]
#: The article's tutorial runs a million trips.
PARAMETERS = {"04_taxi": ("-p", "trips=20000")}
TUTORIALS = sorted((PROJECT / "notebooks" / "tutorials").glob("*.py"))


def figures(tutorial: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Run a tutorial, and return its exit value."""
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "run", str(tutorial), *PARAMETERS.get(tutorial.stem, ())],
        cwd=PROJECT,
        env=without_workbench() | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return json.loads(re.search(r"^exit value +(.*)$", succeeded(done), re.MULTILINE)[1])


@pytest.mark.thorough("each tutorial takes minutes")
@pytest.mark.slow("two runs of a tutorial")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_twice_with_the_same_figures(tutorial, embedded, warm_jvm) -> None:
    _, addresses = embedded
    first, second = (figures(tutorial, addresses.environment() | warm_jvm.environment()) for _ in range(2))
    assert first
    assert first == second
