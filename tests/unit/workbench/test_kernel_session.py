"""The settings of a notebook's Spark session."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.host.java import short_lived
from workbench.kernel.session import INTERPRETED, NotebookSession


def test_only_a_command_with_few_rows_interprets_its_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = NotebookSession("show", tmp_path, tmp_path)
    assert not INTERPRETED.keys() & session._conf().keys()
    for name, value in short_lived().items():
        monkeypatch.setenv(name, value)
    assert session._conf().items() >= INTERPRETED.items()
