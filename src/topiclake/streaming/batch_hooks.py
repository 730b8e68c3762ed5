"""Commit hooks: calls after each written micro-batch of an ingest, whose errors do not fail the batch.

The process that writes calls them. With Spark Connect that is a worker, so hooks must be picklable.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from topiclake.storage.renewal import WriteBatch
from topiclake.streaming import checkpoint
from topiclake.streaming.checkpoint import Offsets

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CommittedBatch:
    """A micro-batch whose commits are done.

    Attributes:
        spark: The query's session.
        checkpoint: Resolved location of its checkpoint.
        number: Spark's number of the batch.
        began: Time at which it began, in seconds since 1970.
        ended: Time at which it was written, in seconds since 1970.
    """

    spark: SparkSession
    checkpoint: str
    number: int
    began: float = field(default_factory=time.time)
    ended: float = field(default_factory=time.time)

    @cached_property
    def first(self) -> Offsets | None:
        """Its first offsets by topic and partition, or None if the checkpoint no longer has them."""
        return checkpoint.begin_offsets(self.spark, self.checkpoint, self.number)

    @cached_property
    def end(self) -> Offsets:
        """Its end offsets by topic and partition, exclusive."""
        return checkpoint.end_offsets(self.spark, self.checkpoint, self.number) or {}


class CommitHook(Protocol):
    """A call for each batch that is written."""

    @property
    def action(self) -> str:
        """Name of the action, for the log."""

    def begin(self) -> None:
        """Prepare the hook for a batch that is about to be written."""

    def __call__(self, batch: CommittedBatch) -> None:
        """Run the hook for a batch that was written."""

    def close(self) -> None:
        """Close the hook at the end of the query, in the process that started the query."""


class Backoff:
    """A pause after a failed call of a service: two seconds, then twice as long each time, up to a minute."""

    SHORTEST_SECONDS, LONGEST_SECONDS = 2.0, 60.0

    def __init__(self) -> None:
        self._seconds, self._until = self.SHORTEST_SECONDS, 0.0
        self._error: Exception | None = None

    def check(self) -> None:
        """Raise the last error again while the pause lasts."""
        if self._error is not None and time.monotonic() < self._until:
            raise self._error

    def begin(self, error: Exception) -> None:
        """Begin a pause because of an error."""
        self._error, self._until = error, time.monotonic() + self._seconds
        self._seconds = min(self.LONGEST_SECONDS, 2 * self._seconds)

    def end(self) -> None:
        """End the pause, since a call has succeeded."""
        self._seconds, self._error = self.SHORTEST_SECONDS, None


#: By checkpoint and hook: the start of its query, and the last problem. A start logs each problem once.
_problems: dict[tuple[str, str], tuple[str, str]] = {}


def with_hooks(write_batch: WriteBatch, hooks: Sequence[CommitHook], location: str, start: str) -> WriteBatch:
    """Return a function that writes a micro-batch and then calls each hook.

    Args:
        write_batch: Writes a micro-batch.
        hooks: The hooks, whose errors are only logged.
        location: Location of the checkpoint, as Spark reads it.
        start: Id of this start of the query.
    """
    return partial(_write, write_batch, hooks, location, start)


def _write(
    write_batch: WriteBatch,
    hooks: Sequence[CommitHook],
    location: str,
    start: str,
    records: DataFrame,
    batch_id: int,
) -> None:
    began = time.time()
    for hook in hooks:
        # If the hook cannot begin, its call after the batch fails, too, and that error is logged.
        with contextlib.suppress(Exception):
            hook.begin()
    write_batch(records, batch_id)
    run_hooks(hooks, start, CommittedBatch(records.sparkSession, location, batch_id, began))


def run_hooks(hooks: Sequence[CommitHook], start: str, batch: CommittedBatch) -> None:
    """Call each hook, and log its error unless the previous call logged the same one."""
    for hook in hooks:
        try:
            hook(batch)
        except Exception as error:  # noqa: BLE001 - no error of a hook stops the query
            problem = " ".join(str(error).split())[:500]
            if _problems.get((batch.checkpoint, hook.action)) != (start, problem):
                _log.warning("%s failed; the query continues: %s", hook.action, problem)
            _problems[batch.checkpoint, hook.action] = start, problem
        else:
            _problems.pop((batch.checkpoint, hook.action), None)


def close_with(query: StreamingQuery, hooks: Sequence[CommitHook]) -> None:
    """Close the hooks when the query or this process ends."""
    closing = partial(close, hooks)
    atexit.register(closing)
    threading.Thread(target=_close_with, args=(query, closing), name="hooks", daemon=True).start()


def _close_with(query: StreamingQuery, closing: Callable[[], None]) -> None:
    # The caller that waits for the query gets its error.
    with contextlib.suppress(Exception):
        query.awaitTermination()
    closing()
    atexit.unregister(closing)


def close(hooks: Sequence[CommitHook]) -> None:
    """Close each hook; a second call does nothing."""
    for hook in hooks:
        hook.close()
