"""The tutorials, each run from top to bottom: their cells assert their own figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.databricks import STANDARD, name_services, run_notebooks
from tests.support.environment import succeeded
from tests.support.tutorials import figures, shorten

PROJECT = Path(__file__).parents[2]
#: `test_tutorial_s3` runs it, since its last cells need a store.
WITH_A_STORE = "04_taxi"
TUTORIALS = sorted(
    file.stem for file in (PROJECT / "notebooks" / "tutorials").glob("*.py") if file.stem != WITH_A_STORE
)
#: The first one, and the one that asks for its access. Standard access allows less: the others need no more.
DEDICATED = ("01_gps", "02_hits")


@pytest.mark.thorough("each tutorial takes a minute")
@pytest.mark.slow("a tutorial")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tutorial", DEDICATED)
def test_a_tutorial_runs_where_there_is_no_workbench(tutorial, embedded, project, warm_jvm) -> None:
    variables = embedded[1].environment() | warm_jvm.environment()
    notebook = f"tutorials/{tutorial}.py"
    done = run_notebooks(project, [(notebook, {"env": "local"})], variables)
    assert json.loads(succeeded(done).splitlines()[-1])[notebook]["exit"]


@pytest.mark.thorough("each tutorial takes a minute")
@pytest.mark.slow("a tutorial")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tutorial", [*TUTORIALS, WITH_A_STORE])
def test_a_tutorial_runs_with_standard_access(tutorial, embedded, connect_server, project, tmp_path) -> None:
    """Serverless compute has no interval as trigger, which the tutorials show."""
    name_services(project, embedded[1], tmp_path / "lake")
    notebook = f"tutorials/{tutorial}.py"
    given = {"env": "local"} | ({"trips": "2000"} if tutorial == WITH_A_STORE else {})
    done = run_notebooks(project, [(notebook, given)], {}, connect_server.url, STANDARD)
    assert json.loads(succeeded(done).splitlines()[-1])[notebook]["exit"]


#: The cells of the fifth tutorial that run the console consumer, and the cells that they need.
CONSUMER_CELLS = (
    "Settings and storage",
    "Topic and folder of this run",
    "The schema by REST",
    "Events to Kafka",
    "Kafka's console consumer",
    "Wrong: bytes as text",
    "Topiclake: records as JSON",
)


@pytest.mark.thorough("the console consumer has its tests")
@pytest.mark.slow("seven cells of a tutorial")
def test_the_fifth_tutorial_compares_what_the_console_consumer_prints(embedded, project, warm_jvm) -> None:
    """The workbench has the consumer. `test_tutorial_database` runs the second tutorial with it."""
    tutorial = project / "notebooks" / "tutorials" / "05_wikimedia.py"
    shorten(tutorial, CONSUMER_CELLS, '{"bytes": len(printed), "events": len(events)}')
    variables = embedded[1].environment() | warm_jvm.environment()
    found = figures("05_wikimedia", variables, "-p", "env=local", project=project)
    assert found["bytes"] > 0
    assert found["events"] == 3
