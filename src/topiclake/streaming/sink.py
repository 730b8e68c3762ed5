"""The contract of sinks that write the micro-batches of a stream: those of Topiclake and of users."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame


@dataclass(frozen=True)
class SinkBatch:
    """Identity of a micro-batch that a sink writes.

    Attributes:
        query_id: Id of the streaming query; each new checkpoint has another one.
        number: Spark's number of the batch, which rises with each batch of the query.
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
    """A destination of micro-batches. Subclasses implement `write`, and may override the other methods.

    Spark repeats a batch after a crash, with the same rows, `query_id` and `number`. So a sink keeps the last
    written `number` of each `query_id`, or overwrites the rows of the earlier attempt. A sink must be
    picklable, for Spark Connect.

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
        """Return the location that only this sink may write to; None without a single location."""
        return None

    def require_output_mode(self, output_mode: str) -> None:
        """Raise a ConfigError if the sink cannot write an output mode; by default it accepts every mode."""
        return

    @abstractmethod
    def write(self, rows: DataFrame, batch: SinkBatch) -> None:
        """Write the rows of a batch, which counts as written when this method returns."""
