"""Tutorial 4 on a real S3 store: its archive, and the table of calls from the access log."""

from __future__ import annotations

import json

import pytest

from tests.support.databricks import run_notebooks
from tests.support.environment import succeeded
from workbench.host import processes
from workbench.services import control as services
from workbench.services.s3_gateway import S3Gateway


@pytest.fixture
def store(embedded):
    """The variables of the services and of the store."""
    home, addresses = embedded
    gateway = S3Gateway(home)
    gateway.program()
    services.start_services(home, [gateway])
    yield addresses.environment() | dict(gateway.exports(home.load().ports))
    processes.stop(processes.marked(home, gateway.name))


@pytest.mark.thorough("the calls of the archive on S3 are in test_stores")
@pytest.mark.slow("a run of a tutorial on S3")
@pytest.mark.timeout(1200)
def test_the_trips_are_archived_and_the_calls_of_a_checkpoint_are_counted(store, project, warm_jvm) -> None:
    notebook = "tutorials/04_taxi.py"
    given = {"env": "local-s3", "trips": "20000", "access_log": store.pop("WORKBENCH_S3_ACCESS_LOG")}
    done = run_notebooks(project, [(notebook, given)], store | warm_jvm.environment())
    found = json.loads(json.loads(succeeded(done).splitlines()[-1])[notebook]["exit"])
    assert (found["trips"], found["archived"], found["restarts"]) == (20_000, 21_000, 1)
    assert found["calls_counted"]
