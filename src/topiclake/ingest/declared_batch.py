"""One micro-batch of text or JSON: every record into exactly one place, exactly once.

What a value means is fixed when the query starts, so a batch that Spark repeats after a crash comes out as it
did the first time. Two commits, each with Delta's transaction id: the table, then the quarantine.
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
from topiclake.ingest.targets import Target, report_counts, report_earlier_counts, writer_name
from topiclake.kafka import source as kafka_source
from topiclake.reasons import OK
from topiclake.sources.declared_rows import (
    REASONS,
    _detail,
    _never_rejected,
    decode,
    fail_on_bad_record,
    is_rejected,
    valid_rows,
)
from topiclake.sources.table_snapshot import NO_TABLE, TableSnapshot, read_snapshot
from topiclake.streaming import batch_offsets, checkpoint, observation
from topiclake.streaming.batch_counts import TableCount
from topiclake.streaming.checkpoint import Ranges


@dataclass
class _TableState:
    """What one start of a query has learnt.

    Attributes:
        name: Of the start.
        snapshot: Of the table.
        has_written: Whether it has written a batch: those that come after it are no repeated ones.
    """

    name: str
    snapshot: TableSnapshot
    has_written: bool = False


#: By checkpoint, in the process that runs the micro-batches.
_states: dict[str, _TableState] = {}


def write(
    target: Target,
    values: DeclaredFormat,
    records: DataFrame,
    batch_id: int,
    *,
    read_again: Ranges | None = None,
) -> None:
    """Write one micro-batch of Kafka's records.

    Args:
        target: Where to.
        values: What values mean.
        records: Kafka's columns.
        batch_id: Spark's number of the batch.
        read_again: The offsets, where this is no batch of the running query, but an older one.

    Raises:
        DecodeError: A record is not right, in mode FAILFAST; raised by whoever waits for the query.
        IngestError: The table has a batch of this number with other offsets.
    """
    spark, offsets = records.sparkSession, read_again
    if offsets is None:
        offsets = checkpoint.ranges(spark, target.checkpoint, batch_id, target.start)
    state = _states.get(target.checkpoint)
    if state is None or state.name != target.start:
        state = _TableState(target.start, target.snapshot or read_snapshot(spark, target.table) or NO_TABLE)
        _states[target.checkpoint] = state

    def refresh() -> None:
        state.snapshot = read_snapshot(spark, target.table) or NO_TABLE

    delta.written_again(partial(_write, state, target, values, records, batch_id, offsets), refresh)


def _write(
    state: _TableState,
    target: Target,
    values: DeclaredFormat,
    records: DataFrame,
    batch_id: int,
    offsets: Ranges,
) -> None:
    observed, attempt, layout, spark = Observation(), uuid4().hex, target.schemas.layout, records.sparkSession
    decoded = decode(values, records, layout, state.snapshot)
    if target.mode == "FAILFAST":
        decoded = fail_on_bad_record(decoded, values, layout)
    # Above the judgement: Spark pushes no filter below what is counted.
    counts = [F.count_if(F.col("reason") == one).alias(one) for one in (OK, *REASONS)]
    counted = decoded.observe(observed, F.count_if(is_rejected(layout)).alias("left"), *counts)
    writer = writer_name(target, spark)
    meaning = values.meaning(str(spark.conf.get("spark.sql.session.timeZone")))
    kept = {"pipeline": target.pipeline, "run": target.run, "values": meaning, batch_offsets.OFFSETS: offsets}
    delta.append_once(
        valid_rows(counted, layout, state.snapshot),
        target.table,
        writer=writer,
        batch_id=batch_id,
        commit=kept | {"constraints": state.snapshot.constraints, "attempt": attempt},
    )
    # Until it is written: the next try of this batch has to look for what is there of it.
    had_written, state.has_written = state.has_written, False
    # A batch that was there already is not executed, and counts nothing. A checkpoint that was put back from
    # a copy repeats more than one.
    is_counted = (
        had_written or observation.has_metrics(observed) or delta.is_committed(spark, target.table, attempt)
    )
    counts_of_batch = (
        observation.counts(f"batch {batch_id} is in {target.table}", observed) if is_counted else None
    )
    if counts_of_batch is None:
        _resume_batch(state, target, values, records, batch_id, offsets)
        return
    report_counts(target, spark, batch_id, TableCount(target.table, counts_of_batch[OK], None, writer))
    if counts_of_batch["left"]:
        write_rejected(target, values, decoded, writer, batch_id)
        reasons = {
            one: counts_of_batch[one]
            for one in REASONS
            if counts_of_batch[one] and one not in _never_rejected(layout)
        }
        count = TableCount(target.quarantine, counts_of_batch["left"], reasons, writer)
        report_counts(target, spark, batch_id, count)
    state.has_written = True


def _resume_batch(
    state: _TableState,
    target: Target,
    values: DeclaredFormat,
    records: DataFrame,
    batch_id: int,
    offsets: Ranges,
) -> None:
    """Do what an earlier attempt did not get to, after its first commit."""
    spark = records.sparkSession
    writer = writer_name(target, spark)
    commit = delta.commit_of(spark, target.table, writer=writer, batch_id=batch_id)
    batch_offsets.require_same(
        commit, offsets, table=target.table, checkpoint=target.checkpoint, batch_id=batch_id
    )
    _require_same(target, values.meaning(str(spark.conf.get("spark.sql.session.timeZone"))), commit)
    constraints = {} if commit is None else commit["constraints"]
    decoded = decode(values, records, target.schemas.layout, state.snapshot, constraints)
    write_rejected(target, values, decoded, writer, batch_id)
    report_earlier_counts(target, records, batch_id)


def _require_same(target: Target, meaning: str, commit: Mapping[str, Any] | None) -> None:
    """Check that a batch which was written in part is finished as it was begun: each record in one place."""
    if commit is not None and commit.get("values") != meaning:
        raise IngestError(
            f"batch {commit['batch_id']} of pipeline {target.pipeline} was written in part with another "
            "value_schema, value_format, timestamp_format, deserializer or spark.sql.session.timeZone; with "
            "these, records would be lost, doubled or read otherwise",
            "put them back until that batch is done, then change them",
            pipeline=target.pipeline,
            batch_id=commit["batch_id"],
            reason="values_changed",
        )


def write_rejected(
    target: Target, values: DeclaredFormat, decoded: DataFrame, writer: str, batch_id: int
) -> None:
    """Write the records of a batch that are no rows of the table to the quarantine."""
    left = decoded.where(is_rejected(target.schemas.layout))
    if left.isEmpty():
        return
    bad = left.select(
        *kafka_source.RECORD_COLUMNS,
        "reason",
        _detail(left, values).alias("detail"),
        F.lit(None).alias("schema_id"),
    )
    delta.append_once(
        quarantine_rows.quarantine_rows(bad, pipeline=target.pipeline, batch_id=batch_id),
        target.quarantine,
        writer=writer,
        batch_id=batch_id,
        commit={"pipeline": target.pipeline, "run": target.run},
    )
