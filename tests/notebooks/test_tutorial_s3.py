"""The table of calls of tutorial 4, counted from the access log of a real S3 store."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environment import succeeded, without_workbench
from workbench.host import processes
from workbench.services import control as services
from workbench.services.s3_gateway import S3Gateway

PROJECT = Path(__file__).parents[2]


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
def test_the_calls_of_a_checkpoint_are_counted(store, warm_jvm) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "workbench", "run", "notebooks/tutorials/04_taxi.py"),
            *("-p", "env=local-s3", "-p", "trips=20000"),
        ],
        cwd=PROJECT,
        env=without_workbench() | store | warm_jvm.environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    figures = json.loads(re.search(r"^exit value +(.*)$", succeeded(done), re.MULTILINE)[1])
    assert (figures["calls_counted"], figures["archived"]) == (True, 21_000)
