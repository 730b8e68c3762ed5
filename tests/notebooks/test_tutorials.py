"""The tutorials, each run where there is no workbench: their cells assert their own figures."""

from __future__ import annotations

import json

import pytest

from tests.notebooks.test_databricks import PROJECT, stand_in
from tests.support.environment import succeeded

#: `test_tutorial_s3` runs it by the workbench, since its last cells need a store.
WITH_A_STORE = "04_taxi"
TUTORIALS = sorted(
    file.stem for file in (PROJECT / "notebooks" / "tutorials").glob("*.py") if file.stem != WITH_A_STORE
)


@pytest.mark.thorough("each tutorial takes a minute")
@pytest.mark.slow("a tutorial")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_tutorial_runs_from_top_to_bottom(tutorial, embedded, project, warm_jvm) -> None:
    variables = embedded[1].environment() | warm_jvm.environment()
    notebook = f"tutorials/{tutorial}.py"
    done = stand_in(project, [(notebook, {"env": "local"})], variables)
    assert json.loads(succeeded(done).splitlines()[-1])[notebook]["exit"]
