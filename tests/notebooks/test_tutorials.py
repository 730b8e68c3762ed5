"""The tutorials, each run from top to bottom: their cells assert their own figures."""

from __future__ import annotations

import pytest

from tests.support.tutorials import PROJECT, figures

TUTORIALS = sorted(file.stem for file in (PROJECT / "notebooks" / "tutorials").glob("*.py"))
#: The tutorial of which a second run has the same figures.
TWICE = "05_wikimedia"


@pytest.mark.thorough("each tutorial takes minutes")
@pytest.mark.slow("a tutorial")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_tutorial_runs_from_top_to_bottom(tutorial, embedded, warm_jvm) -> None:
    def run():
        return figures(tutorial, embedded[1].environment() | warm_jvm.environment())

    found = run()
    assert found
    if tutorial == TWICE:
        assert run() == found
    if tutorial == "04_taxi":
        assert (found["trips"], found["archived"], found["restarts"]) == (1_000_000, 1_001_000, 1)
