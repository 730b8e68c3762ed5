"""Starting streaming queries: what an earlier run began first, then the trigger, with the store kept open."""

from __future__ import annotations

import re
from functools import partial
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from topiclake.config.settings import Settings
from topiclake.errors import IngestError, require_choice
from topiclake.storage import renewal
from topiclake.storage.failures import storage_errors
from topiclake.storage.renewal import WriteBatch
from topiclake.streaming import checkpoint, progress
from topiclake.streaming.sink import Sink, SinkBatch

OUTPUT_MODES = ("append", "update", "complete")
#: What the NullPointerException says.
KAFKA_METRICS_BUG = re.compile(
    r'Cannot invoke .*because the return value of "scala\.Option\.get\(\)" is null'
)


def start_sink(
    rows: DataFrame,
    settings: Settings,
    sink: Sink,
    *,
    name: str,
    location: str,
    output_mode: str = "append",
) -> StreamingQuery:
    """Start a query that hands each micro-batch to a sink; arguments and errors as of `start_batches`."""
    start_id = uuid4().hex
    return start_batches(
        rows,
        settings,
        partial(write_to, sink, location, start_id),
        name=name,
        location=location,
        output_mode=output_mode,
        started_as=start_id,
    )


def write_to(sink: Sink, location: str, start_id: str, rows: DataFrame, batch_id: int) -> None:
    """Hand a micro-batch to a sink.

    Args:
        sink: The sink.
        location: The checkpoint, as Spark reads it.
        start_id: Names one start of the query, which reads the id of the query once.
        rows: The batch.
        batch_id: Spark's number of the batch.
    """
    query_id = checkpoint.query_id(rows.sparkSession, location, start_id)
    sink.write(rows, SinkBatch(query_id, batch_id, location))


def start_batches(
    records: DataFrame,
    settings: Settings,
    write_batch: WriteBatch,
    *,
    name: str,
    location: str,
    output_mode: str = "append",
    started_as: str | None = None,
) -> StreamingQuery:
    """Start a query that hands each micro-batch to `write_batch`.

    Args:
        records: A streaming DataFrame.
        settings: The trigger, and the store.
        write_batch: Called with each batch and its number, in an order without gaps; a batch that a crash
            interrupted comes again. Can be pickled, for Spark Connect.
        name: Of the query.
        location: The checkpoint, as Spark reads it.
        output_mode: What a batch holds of an aggregation: `append`, `update` or `complete`.
        started_as: What `write_batch` calls this start, where it asks for the id of the query.

    Raises:
        StorageError: The checkpoint cannot be written.
        TopiclakeError: The batch that was begun failed.
    """
    stream = (
        records.writeStream.queryName(name)
        .outputMode(output_mode)
        .option("checkpointLocation", location)
        .foreachBatch(renewal.kept_open(write_batch, settings.storage.source))
    )
    query = start(stream, settings, records.sparkSession, location)
    if started_as is not None:
        # A first batch that is faster reads the file.
        checkpoint.cache_query_id(location, started_as, query.id)
    return query


def start(
    stream: DataStreamWriter,
    settings: Settings,
    spark: SparkSession,
    location: str,
) -> StreamingQuery:
    """Finish the batch that an earlier run began, start the query, and keep its store open.

    Raises:
        StorageError: The checkpoint cannot be written.
        TopiclakeError: The batch that was begun failed.
    """
    with storage_errors(settings.storage, location):
        if checkpoint.is_interrupted(spark, location):
            _finish_interrupted(stream)
        query = triggered(stream, settings.pipeline.trigger).start()
    renewal.follow(partial(progress.has_ended, query), spark, settings.storage)
    return query


def require_output_mode(output_mode: str, *, usual: str = "append") -> None:
    """Raise a ConfigError for what is no output mode; it proposes the `usual` one."""
    require_choice("output_mode", output_mode, OUTPUT_MODES, usual=usual)


def triggered(stream: DataStreamWriter, trigger: str) -> DataStreamWriter:
    """Set the trigger of a configuration."""
    if trigger == "availableNow":
        return stream.trigger(availableNow=True)
    return stream.trigger(processingTime=trigger)


def _finish_interrupted(stream: DataStreamWriter) -> None:
    """Finish the batch that an earlier run began, that one alone, in a separate query.

    Spark 4.1's Kafka source ends with a NullPointerException after such a batch is done (SPARK-55271): it
    reports how far behind it is before it has asked. The batch is committed then; the next start goes on.
    """
    # Where Spark has the fix, `availableNow` would read the whole backlog here.
    query = stream.trigger(once=True).start()
    try:
        progress.await_caught_up(query, "availableNow")
    except IngestError as error:
        if not KAFKA_METRICS_BUG.search(str(error)):
            raise
