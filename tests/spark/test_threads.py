"""Calls side by side."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from topiclake.threads import both, side_by_side


def test_results_are_in_the_order_of_the_calls(spark) -> None:
    second_began = threading.Event()

    def first() -> int:
        # It ends after the second call has begun, so both run at a time.
        assert second_began.wait(60)
        return 1

    def second() -> str:
        second_began.set()
        return "2"

    assert both(spark, first, second) == (1, "2")


def test_each_call_has_the_job_group_of_the_session(spark) -> None:
    context = spark.sparkContext
    context.setJobGroup("side by side", "")
    counts = side_by_side(spark, (partial(spark.range(number).count) for number in range(3)))
    context._jsc.clearJobGroup()
    assert counts == [0, 1, 2]
    assert len(context.statusTracker().getJobIdsForGroup("side by side")) >= len(counts)


def test_the_first_error_in_order_is_raised_when_all_calls_have_ended(spark) -> None:
    ended = []

    def fails(name: str, after: threading.Event, ending: threading.Event) -> None:
        assert after.wait(60)
        ended.append(name)
        ending.set()
        raise ValueError(name)

    now, later, never_used = threading.Event(), threading.Event(), threading.Event()
    now.set()
    calls = partial(fails, "first", later, never_used), partial(fails, "second", now, later)
    with pytest.raises(ValueError, match="first"):
        side_by_side(spark, calls)
    assert ended == ["second", "first"]
