"""The settings of a notebook's Spark session."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.host.java import short_lived
from workbench.kernel.session import INTERPRETED, ONE_TASK, NotebookSession


def test_only_a_command_with_few_rows_interprets_its_plans_in_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = NotebookSession("show", tmp_path, tmp_path)
    few_rows = INTERPRETED | ONE_TASK
    assert not few_rows.keys() & session._conf().keys()
    for name, value in short_lived().items():
        monkeypatch.setenv(name, value)
    assert session._conf().items() >= few_rows.items()
