"""What is done behind each micro-batch of an ingest, once it is written; what fails there fails no batch.

In the process that writes, so with Spark Connect in a worker; what follows can be pickled.
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
        number: Spark's.
        began: When it began, in seconds since 1970.
        ended: When it was written.
    """

    spark: SparkSession
    checkpoint: str
    number: int
    began: float = field(default_factory=time.time)
    ended: float = field(default_factory=time.time)

    @cached_property
    def first(self) -> Offsets | None:
        """With which offsets it begins; None where the checkpoint does not tell it any more."""
        return checkpoint.begin_of(self.spark, self.checkpoint, self.number)

    @cached_property
    def end(self) -> Offsets:
        """Which offsets come behind it, by topic and partition."""
        return checkpoint.end_of(self.spark, self.checkpoint, self.number) or {}


class CommitHook(Protocol):
    """What is done with each batch that is written."""

    @property
    def what(self) -> str:
        """What it does."""

    def begin(self) -> None:
        """Is called before a batch is written."""

    def __call__(self, batch: CommittedBatch) -> None:
        """Is called behind it."""

    def close(self) -> None:
        """Is called at the end of the query, in the process that started it."""


class Backoff:
    """What is away is asked again after some seconds, then after twice as long, up to a minute."""

    SHORTEST_SECONDS, LONGEST_SECONDS = 2.0, 60.0

    def __init__(self) -> None:
        self._seconds, self._until = self.SHORTEST_SECONDS, 0.0
        self._why: Exception | None = None

    def check(self) -> None:
        """Raise the last problem once more while it is too early to try again."""
        if self._why is not None and time.monotonic() < self._until:
            raise self._why

    def begin(self, error: Exception) -> None:
        """Wait from now on, because of a problem."""
        self._why, self._until = error, time.monotonic() + self._seconds
        self._seconds = min(self.LONGEST_SECONDS, 2 * self._seconds)

    def end(self) -> None:
        """Wait no longer: it has worked."""
        self._seconds, self._why = self.SHORTEST_SECONDS, None


#: By checkpoint and hook: the start of its query, and the last problem; each is logged once a start.
_problems: dict[tuple[str, str], tuple[str, str]] = {}


def with_hooks(write_batch: WriteBatch, hooks: Sequence[CommitHook], location: str, start: str) -> WriteBatch:
    """Return what writes a micro-batch, and then calls each of the hooks.

    Args:
        write_batch: Writes it.
        hooks: What an error of theirs costs is a line in the log.
        location: The checkpoint, as Spark reads it.
        start: Names one start of the query.
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
        # Where it cannot, the call behind the batch tells why.
        with contextlib.suppress(Exception):
            hook.begin()
    write_batch(records, batch_id)
    run_hooks(hooks, start, CommittedBatch(records.sparkSession, location, batch_id, began))


def run_hooks(hooks: Sequence[CommitHook], start: str, batch: CommittedBatch) -> None:
    """Call each of the hooks; a problem is logged when it is new."""
    for hook in hooks:
        try:
            hook(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, the query goes on
            problem = " ".join(str(error).split())[:500]
            if _problems.get((batch.checkpoint, hook.what)) != (start, problem):
                _log.warning("%s failed; the query goes on: %s", hook.what, problem)
            _problems[batch.checkpoint, hook.what] = start, problem
        else:
            _problems.pop((batch.checkpoint, hook.what), None)


def close_with(query: StreamingQuery, hooks: Sequence[CommitHook]) -> None:
    """Close hooks at the end of a query, or of this process."""
    closing = partial(close, hooks)
    atexit.register(closing)
    threading.Thread(target=_close_with, args=(query, closing), name="hooks", daemon=True).start()


def _close_with(query: StreamingQuery, closing: Callable[[], None]) -> None:
    # Who waits for the query is told why it failed.
    with contextlib.suppress(Exception):
        query.awaitTermination()
    closing()
    atexit.unregister(closing)


def close(hooks: Sequence[CommitHook]) -> None:
    """Close each of them; twice does nothing."""
    for hook in hooks:
        hook.close()
