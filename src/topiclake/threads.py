"""Calls side by side, each in a thread with the local properties of the session, such as its job group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

#: Number of calls at a time.
_MAX_THREADS = 8

_Result = TypeVar("_Result")
_First = TypeVar("_First")
_Second = TypeVar("_Second")


def side_by_side(spark: SparkSession, calls: Iterable[Callable[[], _Result]]) -> list[_Result]:
    """Return the results of calls in their order, or raise the error of the first call that fails.

    Then each call has ended, or never begins.
    """
    # Each call has a copy of the properties, since threads cannot share them.
    targets = [inheritable_thread_target(spark)(call) for call in calls]
    with ThreadPoolExecutor(_MAX_THREADS) as threads:
        return list(threads.map(lambda target: target(), targets))


def both(
    spark: SparkSession, first: Callable[[], _First], second: Callable[[], _Second]
) -> tuple[_First, _Second]:
    """Return the results of two calls side by side, as `side_by_side` does."""
    results: list[Any] = side_by_side(spark, (first, second))
    return results[0], results[1]
