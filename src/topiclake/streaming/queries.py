"""Start streaming queries: finish the batch of an earlier run, set the trigger, renew credentials."""

from __future__ import annotations

import re
from functools import partial
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from topiclake.config.settings import Settings
from topiclake.errors import ConfigError, IngestError, require_choice
from topiclake.session import is_serverless
from topiclake.storage import renewal
from topiclake.storage.failures import storage_errors
from topiclake.storage.renewal import WriteBatch
from topiclake.streaming import checkpoint, progress
from topiclake.streaming.sink import Sink, SinkBatch

OUTPUT_MODES = ("append", "update", "complete")
#: Text of the NullPointerException of SPARK-55271.
KAFKA_METRICS_BUG = re.compile(
    r'Cannot invoke .*because the return value of "scala\.Option\.get\(\)" is null'
)

#: Text of Spark's error after ten seconds (`PythonWorkerFactory`). The worker of a query on Spark Connect
#: imports its client first, which takes more than four seconds of CPU.
SLOW_WORKER = "Timed out while waiting for the Python worker to connect back"
_STARTS = 5


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
        location: Location of the checkpoint, as Spark reads it.
        start_id: Id of one start of the query, which reads the query id once.
        rows: The rows of the batch.
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
    is_interrupted: bool | None = None,
) -> StreamingQuery:
    """Start a query that hands each micro-batch to `write_batch`.

    Args:
        records: A streaming DataFrame.
        settings: The trigger, and the store.
        write_batch: Called with each batch and its number, in an order without gaps. Spark repeats a batch
            that a crash interrupted. Picklable, for Spark Connect.
        name: Name of the query.
        location: Location of the checkpoint, as Spark reads it.
        output_mode: Spark's output mode for aggregations: `append`, `update` or `complete`.
        started_as: Id of this start, if `write_batch` reads the query id by it.
        is_interrupted: Whether the checkpoint has an unfinished batch; None if it is not known.

    Raises:
        IngestError: A query of this name runs in the session.
        StorageError: The checkpoint cannot be written.
        TopiclakeError: The interrupted batch of an earlier run failed.
    """
    if any(query.name == name for query in records.sparkSession.streams.active):
        raise IngestError(
            f"query {name} runs in this session, and a session has one query of a name",
            "stop the query first, or give this one another name",
            query=name,
            reason="runs",
        )
    stream = (
        records.writeStream.queryName(name)
        .outputMode(output_mode)
        .option("checkpointLocation", location)
        .foreachBatch(renewal.with_newest_credential(write_batch, settings.storage.source))
    )
    query = start(stream, settings, records.sparkSession, location, is_interrupted)
    if started_as is not None:
        # If the first batch is faster than this call, it reads the id from the file.
        checkpoint.cache_query_id(location, started_as, query.id)
    return query


def start(
    stream: DataStreamWriter,
    settings: Settings,
    spark: SparkSession,
    location: str,
    is_interrupted: bool | None = None,
) -> StreamingQuery:
    """Finish the batch that an earlier run began, start the query, and keep its store open.

    Raises:
        StorageError: The checkpoint cannot be written.
        TopiclakeError: The interrupted batch of an earlier run failed.
    """
    with storage_errors(settings.storage, location):
        # Serverless compute knows no other trigger than `availableNow`.
        if not is_serverless() and (
            checkpoint.is_interrupted(spark, location) if is_interrupted is None else is_interrupted
        ):
            _finish_interrupted(stream)
        query = started(triggered(stream, settings.pipeline.trigger))
    renewal.follow(partial(progress.has_ended, query), spark, settings.storage)
    return query


def require_output_mode(output_mode: str, *, default: str = "append") -> None:
    """Raise a ConfigError if `output_mode` is not an output mode; the error proposes the `default` one."""
    require_choice("output_mode", output_mode, OUTPUT_MODES, usual=default)


def require_trigger(trigger: str) -> None:
    """Check that this compute can run a query with the trigger of a configuration.

    Source: https://docs.databricks.com/aws/en/compute/serverless/limitations (streaming)

    Raises:
        ConfigError: It is an interval, on serverless compute.
    """
    if trigger != "availableNow" and is_serverless():
        raise ConfigError(
            f"trigger is {trigger}, but serverless compute runs a query only with availableNow",
            "trigger: availableNow in a job that runs often, or a cluster",
            parameter="trigger",
            found=trigger,
        )


def triggered(stream: DataStreamWriter, trigger: str) -> DataStreamWriter:
    """Set the trigger of a configuration; raises as `require_trigger`."""
    require_trigger(trigger)
    if trigger == "availableNow":
        return stream.trigger(availableNow=True)
    return stream.trigger(processingTime=trigger)


def started(stream: DataStreamWriter) -> StreamingQuery:
    """Start a query, and start it again if its Python worker was too slow to start."""
    tries = Retrying(retry=retry_if_exception(_was_too_slow), stop=stop_after_attempt(_STARTS), reraise=True)
    return tries(stream.start)


def _was_too_slow(error: BaseException) -> bool:
    return isinstance(error, PySparkException) and SLOW_WORKER in str(error)


def _finish_interrupted(stream: DataStreamWriter) -> None:
    """Finish only the batch that an earlier run began, in a separate query.

    After such a batch, Spark 4.1's Kafka source ends with a NullPointerException (SPARK-55271). It reports
    its lag before it has read Kafka's end offsets. The batch is committed then, so the next start continues.
    """
    # With a Spark version that has the fix, `availableNow` would read the whole backlog here.
    query = started(stream.trigger(once=True))
    try:
        progress.await_caught_up(query, "availableNow")
    except IngestError as error:
        if not KAFKA_METRICS_BUG.search(str(error)):
            raise
