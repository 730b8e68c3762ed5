"""`topiclake purge`: its parameters, and what it prints."""

from __future__ import annotations

import pytest

from workbench.commands.cli import main
from workbench.commands.purge import KEYS
from workbench.runner import run

REMOVED = {"table": "/lake/orders", "removed": 1_200}


@pytest.mark.parametrize(("options", "days"), [([], ""), (["--retention-days", "0.5"], "0.5")])
def test_a_purge_passes_its_days_and_prints_the_number(
    options: list[str], days: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def run_for_value(notebook, parameters, home, keys, environment):
        asked.append((notebook.name, parameters, keys))
        return REMOVED

    monkeypatch.setattr(run, "run_for_value", run_for_value)
    assert main(["purge", "orders", *options]) == 0
    assert asked == [("purge.py", {"pipeline": "orders", "retention_days": days}, KEYS)]
    assert capsys.readouterr().out == "✓ 1,200 old deletions removed from /lake/orders\n"


def test_negative_days_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["purge", "orders", "--retention-days", "-1"]) == 1
    assert "-1" in capsys.readouterr().err
