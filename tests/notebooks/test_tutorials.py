"""The tutorials, each run from top to bottom: their cells assert their own figures."""

from __future__ import annotations

import pytest

from tests.support.tutorials import PROJECT, figures

#: `test_tutorial_s3` runs it, since its last cells need a store.
WITH_A_STORE = "04_taxi"
TUTORIALS = sorted(
    file.stem for file in (PROJECT / "notebooks" / "tutorials").glob("*.py") if file.stem != WITH_A_STORE
)


@pytest.mark.thorough("each tutorial takes a minute")
@pytest.mark.slow("a tutorial")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_tutorial_runs_from_top_to_bottom(tutorial, embedded, warm_jvm) -> None:
    assert figures(tutorial, embedded[1].environment() | warm_jvm.environment())
