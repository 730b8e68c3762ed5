"""Functions that wait for a streaming query, and report the error that ended it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from topiclake import errors
from topiclake.errors import OffsetsLostError, TopiclakeError
from topiclake.streaming.failure import query_failure

_Call = TypeVar("_Call")

#: By run of a query, in the process that started it: functions that draw it and that look for lost offsets.
#: Only this number of runs is kept, the newest.
_NEWEST = 1000
_drawings: dict[str, Callable[[], None]] = {}
_losses: dict[str, Callable[[], OffsetsLostError | None]] = {}


def await_caught_up(query: StreamingQuery, trigger: str) -> None:
    """Wait until the query has processed all records that Kafka holds.

    Args:
        query: A running query.
        trigger: `availableNow`, with which the query ends, or an interval, with which it continues to run.

    Raises:
        TopiclakeError: The query failed; the error names the cause, not the stack.

    Example:
        >>> query = tl.start_ingest(spark, settings)
        >>> tl.await_caught_up(query, settings.pipeline.trigger)
    """
    # Read `runId` only if a drawing exists: if the JVM has ended, or after Ctrl-C, its error would hide the
    # cause.
    draw = _drawings.get(str(query.runId)) if _drawings else None
    try:
        _wait(query, query.awaitTermination if trigger == "availableNow" else query.processAllAvailable)
    finally:
        if draw is not None:
            draw()


def draw_when_caught_up(query: StreamingQuery, draw: Callable[[], None]) -> None:
    """Register a function that draws a query once more when it has caught up, as a notebook may end then."""
    _note(_drawings, query, draw)


def _note(notes: dict[str, _Call], query: StreamingQuery, call: _Call) -> None:
    notes[str(query.runId)] = call
    if len(notes) > _NEWEST:
        del notes[next(iter(notes))]


def keep_running(query: StreamingQuery, seconds: float | str) -> None:
    """Wait for `seconds`, or until the query ends. Text is accepted, since widgets return text.

    Raises:
        ConfigError: `seconds` is not a number.
        TopiclakeError: The query failed; the error names the cause, not the stack.

    Example:
        >>> query = tl.start_ingest(spark, settings)
        >>> tl.keep_running(query, "60")
    """
    if not re.fullmatch(r"\d+(\.\d+)?", str(seconds)):
        raise errors.ConfigError(
            f"{seconds!r} is no number of seconds",
            "pass 0, or 3600 for an hour",
            parameter="seconds",
            found=seconds,
        )
    if float(seconds):
        _wait(query, partial(query.awaitTermination, math.ceil(float(seconds))))


def _wait(query: StreamingQuery, wait: Callable[[], object]) -> None:
    """Call `wait`; raise the cause of the query's failure, and stop the query after Ctrl-C."""
    try:
        wait()
    except StreamingQueryException as error:
        raise _failure(query, error) from None
    except KeyboardInterrupt:
        query.stop()
        raise


def has_ended(query: StreamingQuery, seconds: int) -> bool:
    """Wait for `seconds`, or until the query ends. Return whether it has ended, for any reason."""
    try:
        return bool(query.awaitTermination(seconds))
    except Exception:  # noqa: BLE001 (the caller that awaits the query gets its error; or Spark is gone)
        return True


def on_data_loss(query: StreamingQuery, find: Callable[[], OffsetsLostError | None]) -> None:
    """Report the lost offsets if a query ends because of data loss.

    Args:
        query: A running query.
        find: Finds the lost offsets, after the failure.
    """
    _note(_losses, query, find)


def _failure(query: StreamingQuery, error: StreamingQueryException) -> TopiclakeError:
    failure = query_failure(query.name, str(error))
    find = _losses.get(str(query.runId))
    if not isinstance(failure, OffsetsLostError) or find is None:
        return failure
    return find() or failure
