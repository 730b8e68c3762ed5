"""The test that `topiclake new` writes passes in a project without any other file."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.environment import succeeded, without_workbench
from workbench.commands.new import create_package
from workbench.host.home import Home


@pytest.mark.thorough("the files of a package are tested in test_new_command")
@pytest.mark.slow("pytest with a JVM in another process")
def test_the_test_of_a_new_package_passes(tmp_path):
    (tmp_path / "conf" / "pipelines").mkdir(parents=True)
    (tmp_path / "conf" / "base.yaml").write_text("")
    (tmp_path / "conf" / "pipelines" / "orders.yaml").write_text("")
    create_package(Home(tmp_path / "home", tmp_path), "new_orders", "orders")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=without_workbench(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "1 passed" in succeeded(done)
