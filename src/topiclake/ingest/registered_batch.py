"""One micro-batch of one topic: every record into exactly one place, exactly once.

A batch makes at most three commits, each with Delta's transaction id, in this order.

1. The table gets the records whose schemas were in the plan when the batch began.
2. Rarely, the table gets the records of other schemas: those that had to be looked up by id, and those of
   old versions. This commit is also made, without rows, if schemas stay unknown or a constraint refuses rows.
3. The quarantine gets the remaining records, if any.

A batch that Spark repeats after a crash makes the missing commits, and keeps earlier classifications of
records. If two drivers write one batch, commit 2 of the first decides which records are rows for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import uuid4

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from topiclake.delta import table as delta
from topiclake.formats.codec import Codecs
from topiclake.ingest import rejected_records
from topiclake.ingest.batch import offsets_of
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.ingest.registered_records import RegisteredBatch, TopicState
from topiclake.ingest.targets import LATE, Target, report_earlier_counts, writer_name
from topiclake.schema_registry.wire_format import SchemaKey
from topiclake.sources import registered_rows
from topiclake.streaming import batch_offsets, observation
from topiclake.streaming.batch_counts import TableCount
from topiclake.streaming.checkpoint import Ranges

#: By checkpoint and topic: the state, in the process that runs the micro-batches (a worker on Spark Connect).
_states: dict[tuple[str, str | None], TopicState] = {}


def write(
    target: Target, records: DataFrame, batch_id: int, *, resumed_offsets: Ranges | None = None
) -> None:
    """Write one micro-batch of Kafka's records.

    Args:
        target: The tables of the topic.
        records: The records, with Kafka's columns.
        batch_id: Spark's number of the batch.
        resumed_offsets: The offsets, if this is an older batch and not one of the running query.

    Raises:
        SchemaRegistryError: The registry cannot be used; no record was classified.
        DecodeError: A record cannot be decoded, in mode FAILFAST.
        IngestError: The table has a batch of this number with other offsets.
    """
    spark = records.sparkSession
    state = _state_of(target, spark)
    offsets = offsets_of(target, spark, batch_id, resumed_offsets)
    batch = RegisteredBatch(
        target, state.writer, records, batch_id, offsets, state, is_resumed=resumed_offsets is not None
    )
    delta.write_with_retries(partial(_write, batch), batch.state.schemas.forget)


def require_ready(target: Target, spark: SparkSession) -> None:
    """Raise the errors that a batch of the target would raise before it writes anything."""
    schemas = _state_of(target, spark).schemas
    schemas.source.require_usable(schemas.current(spark))


def _state_of(target: Target, spark: SparkSession) -> TopicState:
    key = target.checkpoint, target.topic
    if key not in _states or _states[key].name != target.start:
        writer = writer_name(target, spark)
        _states[key] = TopicState(target.start, writer, BatchSchemas(target), has_written=target.is_new)
    return _states[key]


def _write(batch: RegisteredBatch) -> None:
    codecs = batch.state.schemas.current(batch.spark)
    if batch.target.topic is not None:
        # A query of one topic makes this check when it starts.
        batch.state.schemas.source.require_usable(codecs)
    # Until the batch is completely written: its next attempt must look for its earlier commits.
    had_written, batch.state.has_written = batch.state.has_written, False
    plain = batch.state.schemas.plain(codecs)
    rejected_count = _write_valid_rows(
        batch, codecs, plain, may_be_repeated=batch.is_resumed or not had_written
    )
    if rejected_count is None:
        _resume_batch(batch, codecs)
        return
    if rejected_count:
        rejected_records.write_rejected(batch, batch.rejected(batch.records, codecs, plain), codecs)
    # Not after a repeated batch: a checkpoint that was restored from a copy repeats several. And an older
    # batch says nothing about the batches of the running query.
    batch.state.has_written = had_written or not batch.is_resumed


def _write_valid_rows(
    batch: RegisteredBatch, codecs: Codecs, plain: Sequence[SchemaKey], *, may_be_repeated: bool
) -> int | None:
    """Write commit 1, and return the number of rejected records.

    None: the number is unknown, because an earlier attempt wrote the commit, or Spark has lost its metrics.
    """
    read, written, attempt, layout = Observation(), Observation(), uuid4().hex, batch.target.schemas.layout
    # The observations are the lowest and the highest step of the plan. Between other steps, an
    # observation would split Spark's generated code, and copy each row once more.
    observed = batch.records.observe(read, registered_rows.count_records(layout))
    decoded = batch.decode(observed, codecs, plain)
    if batch.target.mode == "FAILFAST":
        decoded = registered_rows.fail_on_bad_record(decoded, codecs, layout)
    rows = registered_rows.valid_rows(registered_rows.as_rows(decoded, codecs, layout)).observe(
        written, F.count("*").alias("rows")
    )
    metadata = {"attempt": attempt, batch_offsets.OFFSETS: batch.offsets}
    with batch.target.table_rows(rows, batch.state.schemas.table_columns, batch.label) as table_rows:
        batch.append(table_rows, batch.target.table, commit=batch.pinned(codecs, plain) | metadata)
    # Only the first batches after a start can be repeated ones, which are not executed and have no metrics.
    if may_be_repeated and not batch.has_committed(read, attempt):
        return None
    counted = observation.counts(f"batch {batch.number} is in {batch.target.table}", read, written)
    if counted is None:
        return None
    rows_written = int(counted["rows"])
    batch.report(TableCount(batch.target.table, rows_written, None, batch.writer, codecs.keys))
    return int(counted["records"]) - rows_written


def _resume_batch(batch: RegisteredBatch, codecs: Codecs) -> None:
    """Finish a batch whose earlier attempt ended after commit 1."""
    commit, target = batch.commit_to_resume(), batch.target
    report_earlier_counts(target, batch.records, batch.number)
    if batch.earlier(target.quarantine) is not None:
        return
    batch.require_same(commit)
    remaining = batch.not_written(batch.records, commit)
    late = batch.earlier(batch.target.table, LATE)
    if late is not None:
        remaining = batch.not_written(remaining, late)
    rejected_records.write_rejected(
        batch, remaining, codecs, is_repeated=True, is_late_written=late is not None
    )
