"""A test that fails or hangs is named while the others run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import Running
from tests.support.waiting import wait_until

PROJECT = Path(__file__).parents[2]
TESTS = """
import time

def test_wrong():
    assert 1 == 2

def test_hangs():
    try:
        time.sleep(600)
    finally:
        time.sleep(600)

def test_right():
    pass
"""
SETTINGS = """[pytest]
timeout = 1
faulthandler_timeout = 2
faulthandler_exit_on_timeout = true
"""


@pytest.mark.thorough("real waiting for a test that hangs")
def test_what_hangs_is_ended_and_named_and_the_others_run(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_configure")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "FAILED test_it.py::test_wrong (call): test_it.py:5: AssertionError" in done.stdout, done.stdout
    assert "crashed while running 'test_it.py::test_hangs'" in done.stdout
    assert "line 11 in test_hangs" in done.stderr
    assert "2 failed, 1 passed" in done.stdout


def test_a_test_that_runs_long_is_named_again_and_again():
    said: list[str] = []
    running = Running(said.append, long_seconds=0.05)
    running.pytest_sessionstart()
    running.pytest_runtest_logstart("a.py::test_slow")
    wait_until(lambda: len(said) > 1)
    assert {line.split(" s: ")[1] for line in said} == {"a.py::test_slow"}
    running.pytest_runtest_logfinish("a.py::test_slow")
    running.pytest_sessionfinish()


def test_the_project_asks_for_it(pytestconfig: pytest.Config):
    assert pytestconfig.getini("faulthandler_exit_on_timeout")
    assert float(pytestconfig.getini("faulthandler_timeout")) > float(pytestconfig.getini("timeout"))
