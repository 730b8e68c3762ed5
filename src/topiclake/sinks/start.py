"""Several sinks from one read: each micro-batch is computed once, and handed to one sink after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from topiclake.config.settings import Settings
from topiclake.delta import log_store
from topiclake.errors import ConfigError, IngestError, TopiclakeError
from topiclake.storage import mount
from topiclake.storage.renewal import WriteBatch
from topiclake.streaming import queries

_AGAIN = "mend the sink and start again: the batch is repeated, and sinks that have it already skip it"


def start_sinks(
    rows: DataFrame,
    settings: Settings,
    sinks: Mapping[str, WriteBatch],
    *,
    checkpoint_path: str,
    output_mode: str = "append",
    name: str = "sinks",
) -> StreamingQuery:
    """Start one query that hands each micro-batch to several sinks, with the pipeline's trigger.

    A batch is done when all sinks have it. After a crash it is handed to all of them once more, so each must
    know by the batch's number what it has: `delta_batches` skips it, `topic_batches` sends the same ids.

    Args:
        rows: A streaming DataFrame; a batch that is repeated has to give the same rows.
        settings: The trigger, the store and the pipeline's name.
        sinks: By a name for errors, what takes each batch and its number, in this order.
        checkpoint_path: A folder of its own; the one that the sinks were made with.
        output_mode: What a batch holds of an aggregation: `append`, `update` or `complete`.
        name: Of the query, behind the pipeline's.

    Returns:
        The running query. It fails with a sink: the error names the sink, the pipeline and the batch.

    Raises:
        ConfigError: There is no sink, a sink has another checkpoint or does not take the output mode, or two
            write to one place.
        StorageError: The checkpoint cannot be written.
        TopiclakeError: The batch that an earlier run began failed.

    Example:
        >>> place = "/mnt/datalake/checkpoints/copy"
        >>> sinks = {
        ...     "table": tl.delta_batches(settings, spark, path="/mnt/datalake/copy", checkpoint_path=place)
        ... }
        >>> query = tl.start_sinks(
        ...     tl.read_values(spark, settings), settings, sinks, checkpoint_path=place
        ... )
        >>> tl.await_caught_up(query, "availableNow")
    """
    queries.require_output_mode(output_mode)
    location = mount.resolve(settings.storage, checkpoint_path)
    mount.require_writable(location)
    _require_apart(sinks, location)
    for sink in sinks.values():
        if refuse := getattr(sink, "require_output_mode", None):
            refuse(output_mode)
    return queries.start_batches(
        rows,
        settings,
        partial(
            _write_all, settings.name, {name: queries.with_start_id(sink) for name, sink in sinks.items()}
        ),
        name=f"{settings.name}_{name}",
        location=location,
        output_mode=output_mode,
    )


def table_and_checkpoint(
    spark: SparkSession, settings: Settings, path: str, checkpoint_path: str
) -> tuple[str, str]:
    """Return the addresses of a sink's Delta table and of its query's checkpoint.

    Raises:
        PlatformError: The table's log is not safe from a second driver.
        StorageError: The path cannot be used.
    """
    table, checkpoint = (mount.resolve(settings.storage, each) for each in (path, checkpoint_path))
    log_store.require_log_store(spark, table)
    mount.require_writable(table)
    return table, checkpoint


@contextmanager
def cached(batch: DataFrame) -> Iterator[int]:
    """Compute a micro-batch and keep it while several jobs use it; gives its number of rows."""
    if batch.storageLevel.useMemory:
        # Who keeps it already lets it go.
        yield batch.count()
        return
    batch.persist()
    try:
        # All of it now: what fails here is not the first sink's fault, and state is written by a job that
        # reads everything.
        yield batch.count()
    finally:
        batch.unpersist()


def _write_all(pipeline: str, sinks: Mapping[str, WriteBatch], batch: DataFrame, batch_id: int) -> None:
    with cached(batch):
        for name, write_batch in sinks.items():
            cause = f"sink {name} of pipeline {pipeline} did not take batch {batch_id}"
            try:
                write_batch(batch, batch_id)
            except TopiclakeError as error:
                # Without the first one, which is the one that would be told of both.
                raise type(error)(f"{cause}: {error.cause}", error.remedy or _AGAIN, **error.fields) from None
            except PySparkException as error:
                problem = " ".join(str(error).split("\n\n", maxsplit=1)[0].split())[:300]
                raise IngestError(
                    f"{cause}: {problem}", _AGAIN, pipeline=pipeline, sink=name, batch_id=batch_id
                ) from error
            except Exception as error:
                # What others' exceptions say is not known, and may hold a secret.
                raise IngestError(
                    f"{cause}: {type(error).__name__}, see the driver's log",
                    _AGAIN,
                    pipeline=pipeline,
                    sink=name,
                    batch_id=batch_id,
                ) from error


def _require_apart(sinks: Mapping[str, WriteBatch], location: str) -> None:
    if not sinks:
        raise ConfigError("there is no sink", "sinks={'table': delta_batches(…)}", parameter="sinks")
    destinations: dict[object, str] = {}
    for name, sink in sinks.items():
        if getattr(sink, "checkpoint", location) != location:
            raise ConfigError(
                f"sink {name} was made with another checkpoint_path",
                "the one of start_sinks",
                sink=name,
                parameter="checkpoint_path",
            )
        destination = getattr(sink, "destination", None)
        # The later one's batches would look like the earlier one's.
        if destination is not None and (other := destinations.setdefault(destination, name)) != name:
            raise ConfigError(
                f"the sinks {other} and {name} both write to {destination}",
                "one of them",
                sinks=(other, name),
                place=str(destination),
            )
