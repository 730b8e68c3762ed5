"""Where the micro-batches of a stream go: the contract of each sink, of Topiclake's and of a user's own."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame


@dataclass(frozen=True)
class SinkBatch:
    """Which micro-batch a sink writes.

    Attributes:
        query_id: Id of the streaming query. A new checkpoint has another one.
        number: Spark's number of the batch. It rises with each batch of the query.
        checkpoint: Resolved location of the query's checkpoint.

    Example:
        >>> tl.SinkBatch("0b3f", 4, "file:/tmp/checkpoint").number
        4
    """

    query_id: str
    number: int
    checkpoint: str


@runtime_checkable
class Sink(Protocol):
    """Where micro-batches go. A subclass has `write`, and the other two methods where they differ.

    Spark repeats a batch after a crash, with the same rows, `query_id` and `number`. So a sink keeps the
    `number` that it wrote last of each `query_id`, or writes what overwrites itself. It can be pickled, for
    Spark Connect.

    Example:
        >>> class Printed(tl.Sink):
        ...     def write(self, rows, batch):
        ...         print(f"batch {batch.number}: {rows.count()} rows")
        >>> query = tl.start_sinks(
        ...     tl.read_values(spark, settings),
        ...     settings,
        ...     {"printed": Printed()},
        ...     checkpoint_path="/mnt/datalake/checkpoints/printed",
        ... )
        >>> tl.await_caught_up(query, "availableNow")
        batch 0: 4 rows
    """

    def destination(self) -> str | None:
        """Return the place that it writes to, for itself alone in its query; None: no single place."""
        return None

    def require_output_mode(self, output_mode: str) -> None:
        """Raise a ConfigError for an output mode that the sink cannot write; by default it writes each."""
        return

    @abstractmethod
    def write(self, rows: DataFrame, batch: SinkBatch) -> None:
        """Write the rows of a batch; the batch is done when this returns."""
