"""Several sinks from one read: each micro-batch is computed once, and written to one sink after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from topiclake.config import table_name
from topiclake.config.settings import Settings
from topiclake.delta import catalog, log_store
from topiclake.errors import ConfigError, IngestError, TopiclakeError
from topiclake.storage import mount
from topiclake.streaming import queries, row_cache
from topiclake.streaming.sink import Sink, SinkBatch

_AGAIN = "fix the sink and start again: the batch is repeated, and sinks that have it already skip it"


def start_sinks(
    rows: DataFrame,
    settings: Settings,
    sinks: Mapping[str, Sink],
    *,
    checkpoint_path: str,
    output_mode: str = "append",
    name: str = "sinks",
) -> StreamingQuery:
    """Start one query that writes each micro-batch to several sinks, with the pipeline's trigger.

    A batch is complete when all sinks have it. After a crash, all sinks receive the batch again. So each sink
    must recognize it by its number: `delta_batches` skips it, and `topic_batches` sends the same ids.

    Args:
        rows: A streaming DataFrame; a batch that is repeated has to have the same rows.
        settings: The trigger, the store and the pipeline's name.
        sinks: The sinks that receive each batch, in this order, by a name for errors.
        checkpoint_path: A dedicated folder.
        output_mode: Of an aggregation: `append`, `update` or `complete`.
        name: Last part of the query's name, after the pipeline's name.

    Returns:
        The running query. It fails if a sink fails; the error names the sink, the pipeline and the batch.

    Raises:
        ConfigError: There is no sink, one of them is no `Sink` or does not support the output mode, or two
            write to the same destination.
        StorageError: The checkpoint cannot be written.
        TopiclakeError: The unfinished batch of an earlier run failed.

    Example:
        >>> sinks = {"table": tl.delta_batches(settings, spark, path="/mnt/datalake/copy")}
        >>> query = tl.start_sinks(
        ...     tl.read_values(spark, settings),
        ...     settings,
        ...     sinks,
        ...     checkpoint_path="/mnt/datalake/checkpoints/copy",
        ... )
        >>> tl.await_caught_up(query, "availableNow")
    """
    queries.require_output_mode(output_mode)
    location = mount.resolve(settings.storage, checkpoint_path)
    mount.require_writable(location)
    _require_apart(sinks)
    all_sinks = _Sinks(settings.name, sinks)
    all_sinks.require_output_mode(output_mode)
    return queries.start_sink(
        rows,
        settings,
        all_sinks,
        name=f"{settings.name}_{name}",
        location=location,
        output_mode=output_mode,
    )


def table_of_sink(spark: SparkSession, settings: Settings, path: str) -> str:
    """Return the location of a sink's Delta table: its name, or its address.

    Raises:
        PlatformError: The table's log is not safe from a second driver.
        StorageError: The path cannot be used, or the schema of the name does not exist.
    """
    table = mount.resolve_table(settings.storage, path)
    log_store.require_log_store(spark, table)
    if table_name.is_name(table) and catalog.exists(spark, table):
        # A table of another format would ignore the number of a batch, and take a repeated batch twice.
        catalog.history(spark, table, 1)
    mount.require_writable(table)
    return table


@contextmanager
def cached(batch: DataFrame) -> Iterator[int]:
    """Compute a micro-batch and cache it while several jobs use it; yields its number of rows."""
    with row_cache.cached(batch):
        # All rows are computed here, so that an error is not attributed to the first sink. Spark writes state
        # only in a job that reads all rows.
        yield batch.count()


@dataclass(frozen=True)
class _Sinks(Sink):
    """Writes each micro-batch to one sink after the other.

    Attributes:
        pipeline: Its name.
        sinks: The sinks, by a name for errors.
    """

    pipeline: str
    sinks: Mapping[str, Sink]

    def require_output_mode(self, output_mode: str) -> None:
        """Raise a ConfigError for an output mode that one of them cannot write."""
        for sink in self.sinks.values():
            sink.require_output_mode(output_mode)

    def write(self, rows: DataFrame, batch: SinkBatch) -> None:
        """Write a batch to all sinks."""
        with cached(rows):
            for name, sink in self.sinks.items():
                with self._errors(name, batch.number):
                    sink.write(rows, batch)

    @contextmanager
    def _errors(self, name: str, batch_id: int) -> Iterator[None]:
        """Name the sink, the pipeline and the batch in an error of a sink."""
        cause = f"sink {name} of pipeline {self.pipeline} did not write batch {batch_id}"
        fields: dict[str, object] = {"pipeline": self.pipeline, "sink": name, "batch_id": batch_id}
        try:
            yield
        except TopiclakeError as error:
            # Not chained: of two errors, Spark would report the original one.
            raise type(error)(f"{cause}: {error.cause}", error.remedy or _AGAIN, **error.fields) from None
        except PySparkException as error:
            problem = " ".join(str(error).split("\n\n", maxsplit=1)[0].split())[:300]
            raise IngestError(f"{cause}: {problem}", _AGAIN, **fields) from error
        except Exception as error:
            # The text of an unknown exception may hold a secret.
            problem = f"{type(error).__name__}, see the driver's log"
            raise IngestError(f"{cause}: {problem}", _AGAIN, **fields) from error


def _require_apart(sinks: Mapping[str, Sink]) -> None:
    if not sinks:
        raise ConfigError("there is no sink", "pass sinks={'table': delta_batches(…)}", parameter="sinks")
    destinations: dict[str, str] = {}
    for name, sink in sinks.items():
        if not isinstance(sink, Sink):
            raise ConfigError(
                f"sink {name} is a {type(sink).__name__}, where a topiclake.Sink is expected",
                "pass a subclass of topiclake.Sink with the method write(rows, batch) (docs/own_sinks.md)",
                sink=name,
                parameter="sinks",
            )
        # The batches of the second sink would look like those of the first, and be skipped.
        destination = sink.destination()
        if destination is None:
            continue
        if (other_sink := destinations.setdefault(table_name.folded(destination), name)) != name:
            raise ConfigError(
                f"the sinks {other_sink} and {name} both write to {destination}",
                "pass one of them",
                sinks=(other_sink, name),
                destination=destination,
            )
