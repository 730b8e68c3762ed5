"""The test that `topiclake new` writes passes."""

from __future__ import annotations

import runpy
import sys

from workbench.commands.new import create_package
from workbench.host.home import Home


def test_the_test_of_a_new_package_passes(spark, tmp_path, monkeypatch):
    (tmp_path / "conf" / "pipelines").mkdir(parents=True)
    (tmp_path / "conf" / "base.yaml").write_text("")
    (tmp_path / "conf" / "pipelines" / "orders.yaml").write_text("")
    create_package(Home(tmp_path / "home", tmp_path), "new_orders", "orders")
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    runpy.run_path(str(tmp_path / "tests" / "test_new_orders.py"))["test_each_row_stays_a_row"]()
    assert sys.modules["new_orders.rows"].transform.__doc__.startswith("Name the pipeline")
