"""The tutorials, each run from top to bottom twice: their cells assert their own figures."""

from __future__ import annotations

import pytest

from tests.support.tutorials import PROJECT, figures

#: Two runs with the tutorial's million trips would take minutes; the last test has one.
PARAMETERS = {"04_taxi": ("-p", "trips=20000")}
TUTORIALS = sorted(file.stem for file in (PROJECT / "notebooks" / "tutorials").glob("*.py"))


@pytest.mark.thorough("each tutorial takes minutes")
@pytest.mark.slow("two runs of a tutorial")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_tutorial_runs_twice_with_the_same_figures(tutorial, embedded, warm_jvm) -> None:
    def run():
        variables = embedded[1].environment() | warm_jvm.environment()
        return figures(tutorial, variables, *PARAMETERS.get(tutorial, ()))

    first, second = run(), run()
    assert first
    assert first == second


@pytest.mark.thorough("a million trips")
@pytest.mark.slow("a run of a tutorial with a million trips")
@pytest.mark.timeout(1200)
def test_the_taxi_tutorial_runs_with_its_million_trips(embedded, warm_jvm) -> None:
    found = figures("04_taxi", embedded[1].environment() | warm_jvm.environment())
    assert (found["trips"], found["archived"], found["restarts"]) == (1_000_000, 1_001_000, 1)
