"""One micro-batch of one topic: every record into exactly one place, exactly once.

A batch makes at most three commits, each with Delta's transaction id, in this order.

1. The table gets the records whose schemas were known when the batch began.
2. Rarely, the table gets the records whose schemas had to be looked up by id. This commit is also made,
   without rows, if schemas stay unknown or a constraint refuses rows.
3. The quarantine gets the remaining records, if any.

A batch that Spark repeats after a crash makes the missing commits, and keeps earlier classifications of
records. If two drivers write one batch, commit 2 of the first decides which records are rows for both.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from topiclake.delta import table as delta
from topiclake.errors import DecodeError, IngestError
from topiclake.formats.avro import plain as avro_plain
from topiclake.formats.codec import Codecs
from topiclake.ingest import quarantine_rows
from topiclake.ingest.batch import Batch
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.ingest.targets import LATE, Target, report_earlier_counts, writer_name
from topiclake.kafka import source as kafka_source
from topiclake.reasons import OK, REFUSED_BY_TABLE, UNDECODABLE
from topiclake.schema_registry.wire_format import Part, SchemaKey
from topiclake.sources import registered_rows
from topiclake.sources.layout import KAFKA_COLUMN
from topiclake.sources.registered_rows import Tally
from topiclake.streaming import batch_counts, batch_offsets, checkpoint, failure, observation
from topiclake.streaming.batch_counts import TableCount
from topiclake.streaming.checkpoint import Ranges

_log = logging.getLogger(__name__)


@dataclass
class _TopicState:
    """State of one start of a query for one topic."""

    name: str
    writer: str
    schemas: BatchSchemas
    has_written: bool


#: By checkpoint and topic: the state, in the process that runs the micro-batches (a worker on Spark Connect).
_states: dict[tuple[str, str | None], _TopicState] = {}


@dataclass(frozen=True)
class _Batch(Batch):
    """One micro-batch of values whose schemas are in the registry.

    Attributes:
        state: State of this start of the query for the topic.
        is_read_again: Whether it is older than the query's newest batch, and may be written already.
    """

    state: _TopicState
    is_read_again: bool


def write(target: Target, records: DataFrame, batch_id: int, *, read_again: Ranges | None = None) -> None:
    """Write one micro-batch of Kafka's records.

    Args:
        target: The tables of the topic.
        records: The records, with Kafka's columns.
        batch_id: Spark's number of the batch.
        read_again: The offsets, if this is an older batch and not one of the running query.

    Raises:
        SchemaRegistryError: The registry cannot be used; no record was classified.
        DecodeError: A record cannot be decoded, in mode FAILFAST.
        IngestError: The table has a batch of this number with other offsets.
    """
    spark = records.sparkSession
    state = _state_of(target, spark)
    offsets = read_again
    if offsets is None:
        whole = checkpoint.ranges(spark, target.checkpoint, batch_id, target.start)
        offsets = batch_offsets.of_topic(whole, target.topic)
    batch = _Batch(
        target, state.writer, records, batch_id, offsets, state, is_read_again=read_again is not None
    )
    delta.written_again(partial(_write, batch), batch.state.schemas.forget)


def require_ready(target: Target, spark: SparkSession) -> None:
    """Raise the errors that a batch of the target would raise before it writes anything."""
    schemas = _state_of(target, spark).schemas
    schemas.of.require_usable(schemas.current(spark))


def _state_of(target: Target, spark: SparkSession) -> _TopicState:
    key = target.checkpoint, target.topic
    if key not in _states or _states[key].name != target.start:
        writer = writer_name(target, spark)
        _states[key] = _TopicState(target.start, writer, BatchSchemas(target), has_written=target.is_new)
    return _states[key]


def _write(batch: _Batch) -> None:
    codecs = batch.state.schemas.current(batch.spark)
    if batch.target.topic is not None:
        # A query of one topic makes this check when it starts.
        batch.state.schemas.of.require_usable(codecs)
    # Until the batch is completely written: its next attempt must look for its earlier commits.
    had_written, batch.state.has_written = batch.state.has_written, False
    plain = batch.state.schemas.plain(codecs)
    rejected_count = _write_known(
        batch, codecs, plain, may_be_repeated=batch.is_read_again or not had_written
    )
    if rejected_count is None:
        _resume_batch(batch, codecs)
        return
    if rejected_count:
        _write_rejected(batch, _rejected(batch, batch.records, codecs, plain), codecs)
    # Not after a repeated batch: a checkpoint that was restored from a copy repeats several. And an older
    # batch says nothing about the batches of the running query.
    batch.state.has_written = had_written or not batch.is_read_again


def _write_known(
    batch: _Batch, codecs: Codecs, plain: Sequence[SchemaKey], *, may_be_repeated: bool
) -> int | None:
    """Write commit 1, and return the number of rejected records.

    None: the number is unknown, because an earlier attempt wrote the commit, or Spark has lost its metrics.
    """
    read, written, attempt, layout = Observation(), Observation(), uuid4().hex, batch.target.schemas.layout
    # The observations are the lowest and the highest step of the plan. Between other steps, an
    # observation would split Spark's generated code, and copy each row once more.
    tagged = avro_plain.tag_plain_records(
        batch.records.observe(read, registered_rows.count_records(layout)), codecs.value, plain
    )
    decoded = registered_rows.decode(tagged, codecs, layout)
    if batch.target.mode == "FAILFAST":
        decoded = registered_rows.fail_on_bad_record(decoded, codecs, layout)
    rows = registered_rows.valid_rows(registered_rows.as_rows(decoded, codecs, layout)).observe(
        written, F.count("*").alias("rows")
    )
    kept = {"attempt": attempt, batch_offsets.OFFSETS: batch.offsets}
    with batch.target.table_rows(rows, batch.state.schemas.table_columns, batch.words) as table_rows:
        batch.append(table_rows, batch.target.table, commit=_pinned(batch, codecs, plain) | kept)
    # Only the first batches after a start can be repeated ones, which are not executed and have no metrics.
    if may_be_repeated and not batch.has_committed(read, attempt):
        return None
    counted = observation.counts(f"batch {batch.number} is in {batch.target.table}", read, written)
    if counted is None:
        return None
    rows_written = int(counted["rows"])
    batch.report(TableCount(batch.target.table, rows_written, None, batch.writer, codecs.keys))
    return int(counted["records"]) - rows_written


def _resume_batch(batch: _Batch, codecs: Codecs) -> None:
    """Finish a batch whose earlier attempt ended after commit 1."""
    commit, target = batch.commit_to_resume(), batch.target
    report_earlier_counts(target, batch.records, batch.number)
    if batch.earlier(target.quarantine) is not None:
        return
    _require_same(batch, commit)
    remaining = _not_written(batch, batch.records, commit)
    late = batch.earlier(batch.target.table, LATE)
    if late is not None:
        remaining = _not_written(batch, remaining, late)
    _write_rejected(batch, remaining, codecs, is_repeated=True, is_late_written=late is not None)


def _not_written(batch: _Batch, records: DataFrame, commit: Mapping[str, Any] | None) -> DataFrame:
    """Return the records that an earlier commit rejected, decoded with the schemas of that commit.

    Without a `commit`, Delta has cleaned up the table's history since.
    """
    pinned = None
    if commit is not None:
        pinned = batch.state.schemas.pinned(batch.spark, commit["schemas"], commit["constraints"])
    if pinned is not None and commit is not None:
        return _rejected(batch, records, pinned, commit["plain"])
    fields = batch.target.schemas.layout.kafka
    location: list[str] = [name for name in ("topic", "partition", "offset") if name in fields]
    if {"partition", "offset"} <= set(location):
        # The schemas of the commit are no longer known, so the rows of the table show which records it has.
        # The version is fixed: commit 2 may change types of columns, which Spark refuses in an older plan.
        now = delta.latest_version(batch.spark, batch.target.table)
        written = delta.read(batch.spark, batch.target.table, now).select(f"{KAFKA_COLUMN}.*")
        return records.join(written, location, "left_anti")
    why = "the table's history no longer names" if commit is None else "the registry no longer knows"
    schemas = "" if commit is None else f" ({commit['schemas']})"
    raise IngestError(
        f"batch {batch.number} was written in part with schemas that {why}{schemas}, and without "
        f"partition and offset in the column {KAFKA_COLUMN} nothing shows which records",
        "register the schemas again under their ids, or take a new table_path and checkpoint_path",
        pipeline=batch.target.pipeline,
        batch_id=batch.number,
        reason="schemas_unknown",
    )


def _pinned(batch: _Batch, codecs: Codecs, plain: Sequence[SchemaKey]) -> dict[str, object]:
    """Return the metadata of a commit with which later attempts decode its records in the same way."""
    return {
        "schemas": codecs.keys,
        "plain": plain,
        "constraints": codecs.constraints,
        "judged": batch.target.judgement,
    }


def _require_same(batch: _Batch, commit: Mapping[str, Any] | None) -> None:
    """Check that a partly written batch is finished with the same configuration: else records may be lost."""
    now = batch.target.judgement
    if commit is None or commit["judged"] == now:
        return
    changed = [
        f"{name} was {was}, and is {now.get(name)}"
        for name, was in commit["judged"].items()
        if was != now.get(name)
    ]
    raise IngestError(
        f"batch {batch.number} of pipeline {batch.target.pipeline} was written in part with another "
        f"configuration ({'; '.join(changed)}); with this one, records would be lost or doubled",
        "put it back until that batch is done, then change it",
        pipeline=batch.target.pipeline,
        batch_id=batch.number,
        changed=tuple(changed),
        reason="configuration_changed",
    )


def _rejected(batch: _Batch, records: DataFrame, codecs: Codecs, plain: Sequence[SchemaKey]) -> DataFrame:
    decoded = registered_rows.decode(
        avro_plain.tag_plain_records(records, codecs.value, plain), codecs, batch.target.schemas.layout
    )
    rejected = decoded.where(registered_rows.is_rejected(codecs, batch.target.schemas.layout))
    return avro_plain.untag_plain_records(rejected.select(*kafka_source.RECORD_COLUMNS), plain)


def _write_rejected(
    batch: _Batch,
    remaining: DataFrame,
    known: Codecs,
    *,
    is_repeated: bool = False,
    is_late_written: bool = False,
) -> None:
    """Write commits 2 and 3, of the records `remaining`, which are in no table yet."""
    schemas, layout = batch.state.schemas, batch.target.schemas.layout
    plain_before = schemas.plain(known)
    tagged = avro_plain.tag_plain_records(remaining, known.value, plain_before)
    tally = registered_rows.tally(tagged, known, layout)
    if not tally.reasons:
        return
    unknown = _learn(schemas, tally)
    codecs = schemas.current(batch.spark)
    plain = schemas.plain(codecs)
    tagged = avro_plain.tag_plain_records(remaining, codecs.value, plain)
    decoded, writer = registered_rows.decode(tagged, codecs, layout), None
    # A driver that knows more schemas would classify some records as rows. So commit 2 decides, even if it is
    # empty. FAILFAST writes no rejected records, so the next start classifies them again.
    is_open = batch.target.mode == "PERMISSIVE" and tally.is_open(codecs)
    rows = registered_rows.valid_rows(registered_rows.as_rows(decoded, codecs, layout))
    if not is_late_written and (is_open or ((is_repeated or codecs is not known) and not rows.isEmpty())):
        if not _write_late(batch, rows, _pinned(batch, codecs, plain)):
            # Another driver of this query was faster, and may have known other schemas.
            remaining = _not_written(batch, remaining, batch.earlier(batch.target.table, LATE))
            _write_rejected(batch, remaining, codecs, is_repeated=True, is_late_written=True)
            return
        writer = batch.writer + LATE
    late = TableCount(batch.target.table, 0, None, writer, codecs.keys)
    is_rejected = F.lit(True) if is_late_written else registered_rows.is_rejected(codecs, layout)
    ask_python = codecs is not known or UNDECODABLE in tally.reasons
    rejected = quarantine_rows.with_reasons(
        decoded.where(is_rejected), codecs, unknown, ask_python=ask_python
    )
    # With the schemas of commit 1, the tally already counts `rejected`: another count would read Kafka again.
    is_same = codecs is known and plain == plain_before and not is_repeated
    if not (is_same and tally.reasons.keys() - {OK}) and rejected.isEmpty():
        _report_rejected(batch, tally, late, TableCount(batch.target.quarantine, 0, {}))
        return
    _write_quarantine(batch, avro_plain.untag_plain_records(rejected, plain))
    if not batch_counts.are_wanted():
        return
    # If schemas became known since, or keys are wrong, the tally does not count the rejected records.
    is_counted = codecs is known and OK not in tally.reasons
    reasons = tally.reasons if is_counted else _count_reasons(batch, rejected)
    if reasons is not None:
        path, rows_written = batch.target.quarantine, sum(reasons.values())
        _report_rejected(batch, tally, late, TableCount(path, rows_written, reasons, batch.writer))


def _learn(schemas: BatchSchemas, tally: Tally) -> dict[Part, set[SchemaKey]]:
    """Look up schemas of rejected records, and return those that the registry does not know."""
    if UNDECODABLE in tally.reasons:
        schemas.refresh_plain()
    if REFUSED_BY_TABLE in tally.reasons:
        # The constraint may have been dropped.
        schemas.forget()
    return schemas.look_up(tally.late)


def _write_late(batch: _Batch, rows: DataFrame, pinned: Mapping[str, object]) -> bool:
    """Write commit 2, and return whether this attempt made the commit."""
    written, attempt = Observation(), uuid4().hex
    counted, columns = rows.observe(written, F.count("*").alias("rows")), batch.state.schemas.table_columns
    with batch.target.table_rows(counted, columns, batch.words) as table_rows:
        batch.append(table_rows, batch.target.table, LATE, {**pinned, "attempt": attempt})
    return batch.has_committed(written, attempt)


def _write_quarantine(batch: _Batch, rejected: DataFrame) -> None:
    """Write commit 3; in mode FAILFAST, raise the error of its first record."""
    if batch.target.mode == "FAILFAST":
        raise _first_of(rejected)
    rows = quarantine_rows.quarantined(rejected, pipeline=batch.target.pipeline, batch_id=batch.number)
    batch.append(rows, batch.target.quarantine)


def _count_reasons(batch: _Batch, rejected: DataFrame) -> Mapping[str, int] | None:
    try:
        return quarantine_rows.count_reasons(rejected)
    except (PySparkException, Py4JError) as error:
        _log.warning("batch %d was written, but not counted: %s", batch.number, error)
        return None


def _first_of(rejected: DataFrame) -> DecodeError:
    row = rejected.orderBy("partition", "offset").limit(1).collect()[0]
    return DecodeError(
        f"{failure.FAILFAST} topic {row['topic']}, partition {row['partition']}, offset {row['offset']}, "
        f"reason {row['reason']}: {row['detail']}",
        "mode=PERMISSIVE, which puts such records into the quarantine table",
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        reason=row["reason"],
        detail=row["detail"],
    )


def _report_rejected(batch: _Batch, tally: Tally, late: TableCount, quarantined: TableCount) -> None:
    """Report the counts of commits 2 and 3: records that are not in quarantine became rows."""
    if not tally.is_whole:
        return
    batch.report(replace(late, rows=sum(tally.reasons.values()) - quarantined.rows))
    if quarantined.rows:
        batch.report(quarantined)
