"""One micro-batch of a declared format: every record into exactly one place, exactly once.

The meaning of values is fixed when the query starts, so a batch that Spark repeats after a crash has the same
result. Two commits, each with Delta's transaction id: the table, then the quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from topiclake.delta import table as delta
from topiclake.errors import IngestError
from topiclake.formats.declared import DeclaredFormat
from topiclake.ingest import quarantine_rows
from topiclake.ingest.batch import Batch, offsets_of
from topiclake.ingest.targets import Target, report_earlier_counts, writer_name
from topiclake.kafka import source as kafka_source
from topiclake.reasons import OK
from topiclake.sources.declared_rows import (
    DECLARED_REASONS,
    decode,
    detail,
    fail_on_bad_record,
    is_rejected,
    reasons_not_rejected,
    valid_rows,
)
from topiclake.sources.table_snapshot import NO_TABLE, TableSnapshot, read_snapshot
from topiclake.streaming import batch_offsets, observation
from topiclake.streaming.batch_counts import TableCount
from topiclake.streaming.checkpoint import Ranges


@dataclass
class _TableState:
    """State of one start of a query.

    Attributes:
        name: Id of the start.
        snapshot: State of the table.
        has_written: Whether this start has written a batch, so that later batches are not repeated ones.
    """

    name: str
    snapshot: TableSnapshot
    has_written: bool = False


@dataclass(frozen=True)
class _Batch(Batch):
    """One micro-batch of values whose columns the configuration declares.

    Attributes:
        state: State of this start of the query.
        values: The declared format of the values.
    """

    state: _TableState
    values: DeclaredFormat

    @property
    def meaning(self) -> str:
        """The settings that decide how a value is read, including the session's time zone."""
        return self.values.meaning(str(self.spark.conf.get("spark.sql.session.timeZone")))


#: By checkpoint: the state of its query, in the process that runs the micro-batches.
_states: dict[str, _TableState] = {}


def write(
    target: Target,
    values: DeclaredFormat,
    records: DataFrame,
    batch_id: int,
    *,
    resumed_offsets: Ranges | None = None,
) -> None:
    """Write one micro-batch of Kafka's records.

    Args:
        target: The tables of the topic.
        values: The declared format of the values.
        records: The records, with Kafka's columns.
        batch_id: Spark's number of the batch.
        resumed_offsets: The offsets, if this is an older batch and not one of the running query.

    Raises:
        DecodeError: A record cannot be decoded, in mode FAILFAST. A caller that waits for the query gets it.
        IngestError: The table has a batch of this number with other offsets.
    """
    spark = records.sparkSession
    offsets = offsets_of(target, spark, batch_id, resumed_offsets)
    state = _states.get(target.checkpoint)
    if state is None or state.name != target.start:
        state = _TableState(target.start, target.snapshot or read_snapshot(spark, target.table) or NO_TABLE)
        _states[target.checkpoint] = state
    batch = _Batch(target, writer_name(target, spark), records, batch_id, offsets, state, values)

    def refresh() -> None:
        state.snapshot = read_snapshot(spark, target.table) or NO_TABLE

    delta.write_with_retries(partial(_write, batch), refresh)


def _write(batch: _Batch) -> None:
    target, state, observed, attempt = batch.target, batch.state, Observation(), uuid4().hex
    layout = target.schemas.layout
    # With a transform, the constraints of the table apply to transformed rows.
    enforced = state.snapshot if target.transform is None else NO_TABLE
    decoded = decode(batch.values, batch.records, layout, enforced)
    if target.mode == "FAILFAST":
        decoded = fail_on_bad_record(decoded, batch.values, layout)
    # The observation is above the decoding: Spark pushes no filter below an observation.
    counts = [F.count_if(F.col("reason") == reason).alias(reason) for reason in (OK, *DECLARED_REASONS)]
    counted = decoded.observe(observed, F.count_if(is_rejected(layout)).alias("rejected"), *counts)
    commit = {
        "values": batch.meaning,
        batch_offsets.OFFSETS: batch.offsets,
        "constraints": enforced.constraints,
        "attempt": attempt,
    }
    rows = valid_rows(counted, layout, enforced)
    with target.table_rows(rows, state.snapshot.columns, batch.label) as table_rows:
        batch.append(table_rows, target.table, commit=commit)
    # Until the batch is completely written: its next attempt must look for its earlier commits.
    had_written, state.has_written = state.has_written, False
    # Spark does not execute a batch that the table already has, and so has no metrics of it. A checkpoint
    # that was restored from a copy repeats several batches.
    is_counted = had_written or batch.has_committed(observed, attempt)
    metrics = (
        observation.counts(f"batch {batch.number} is in {target.table}", observed) if is_counted else None
    )
    if metrics is None:
        _resume_batch(batch)
        return
    batch.report(TableCount(target.table, metrics[OK], None, batch.writer))
    if metrics["rejected"]:
        write_rejected(batch, batch.values, decoded)
        reasons = {
            reason: metrics[reason]
            for reason in DECLARED_REASONS
            if metrics[reason] and reason not in reasons_not_rejected(layout)
        }
        batch.report(TableCount(target.quarantine, metrics["rejected"], reasons, batch.writer))
    state.has_written = True


def _resume_batch(batch: _Batch) -> None:
    """Finish a batch whose earlier attempt ended after its first commit."""
    target, commit = batch.target, batch.commit_to_resume()
    _require_same(batch, commit)
    constraints = {} if commit is None else commit["constraints"]
    decoded = decode(batch.values, batch.records, target.schemas.layout, batch.state.snapshot, constraints)
    write_rejected(batch, batch.values, decoded)
    report_earlier_counts(target, batch.records, batch.number)


def _require_same(batch: _Batch, commit: Mapping[str, Any] | None) -> None:
    """Check that a partly written batch is finished with the same settings: else records may be lost."""
    if commit is not None and commit.get("values") != batch.meaning:
        raise IngestError(
            f"batch {commit['batch_id']} of pipeline {batch.target.pipeline} was written in part with "
            "another value_schema, value_format, timestamp_format, deserializer or "
            "spark.sql.session.timeZone",
            "put them back until that batch is done, then change them",
            pipeline=batch.target.pipeline,
            batch_id=commit["batch_id"],
            reason="values_changed",
        )


def write_rejected(batch: Batch, values: DeclaredFormat, decoded: DataFrame) -> None:
    """Write the rejected records of a batch to the quarantine."""
    rejected = decoded.where(is_rejected(batch.target.schemas.layout))
    if rejected.isEmpty():
        return
    bad = rejected.select(
        *kafka_source.RECORD_COLUMNS,
        "reason",
        detail(rejected, values).alias("detail"),
        F.lit(None).alias("schema_id"),
    )
    rows = quarantine_rows.quarantine_rows(bad, pipeline=batch.target.pipeline, batch_id=batch.number)
    batch.append(rows, batch.target.quarantine)
