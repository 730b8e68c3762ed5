"""The tutorials, each run from top to bottom: their cells assert their own figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.databricks import run_notebooks
from tests.support.environment import succeeded
from tests.support.tutorials import figures

PROJECT = Path(__file__).parents[2]
#: `test_tutorial_s3` runs it by the workbench, since its last cells need a store.
WITH_A_STORE = "04_taxi"
TUTORIALS = sorted(
    file.stem for file in (PROJECT / "notebooks" / "tutorials").glob("*.py") if file.stem != WITH_A_STORE
)


@pytest.mark.thorough("each tutorial takes a minute")
@pytest.mark.slow("a tutorial")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_tutorial_runs_where_there_is_no_workbench(tutorial, embedded, project, warm_jvm) -> None:
    variables = embedded[1].environment() | warm_jvm.environment()
    notebook = f"tutorials/{tutorial}.py"
    done = run_notebooks(project, [(notebook, {"env": "local"})], variables)
    assert json.loads(succeeded(done).splitlines()[-1])[notebook]["exit"]


@pytest.mark.thorough("each tutorial takes a minute")
@pytest.mark.slow("a tutorial")
@pytest.mark.timeout(1200)
def test_the_fifth_tutorial_compares_what_the_console_consumer_prints(embedded, warm_jvm) -> None:
    """The workbench has the consumer. `test_tutorial_database` runs the second tutorial with it."""
    assert figures("05_wikimedia", embedded[1].environment() | warm_jvm.environment())
