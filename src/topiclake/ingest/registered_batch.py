"""One micro-batch of one topic: every record into exactly one place, exactly once.

At most three commits, each with Delta's transaction id, in this order:
1. the table: records whose schemas were known when the batch began;
2. the table again, rarely: records whose schemas had to be looked up by id. Also without such, where schemas
   stay unknown or a constraint refuses rows;
3. the quarantine, where something is left: everything else.
A batch that Spark repeats after a crash does what was not done yet, and keeps what was decided. Of two
drivers that write one batch, the one that makes commit 2 decides which records are rows; the other follows.
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
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.ingest.targets import LATE, Target, tell, tell_earlier, writer_name
from topiclake.kafka import source as kafka_source
from topiclake.reasons import OK, REFUSED_BY_TABLE, UNDECODABLE
from topiclake.schema_registry.wire_format import SchemaKey
from topiclake.sources import registered_rows
from topiclake.sources.layout import KAFKA_COLUMN
from topiclake.sources.registered_rows import Tally
from topiclake.streaming import batch_counts, batch_offsets, checkpoint, failure, observation
from topiclake.streaming.batch_counts import TableCount
from topiclake.streaming.checkpoint import Ranges

_log = logging.getLogger(__name__)


@dataclass
class _Start:
    """What one start of a query has learnt about one topic."""

    name: str
    writer: str
    schemas: BatchSchemas
    has_written: bool


#: By checkpoint and topic, in the process that runs the micro-batches; on Spark Connect that is a worker.
_starts: dict[tuple[str, str | None], _Start] = {}


@dataclass(frozen=True)
class Batch:
    """One micro-batch on its way.

    Attributes:
        target: Where to.
        start: What this start of the query knows.
        records: Kafka's records, as Kafka has them.
        number: Spark's number.
        offsets: Its offsets; empty where the checkpoint does not say.
        is_read_again: Whether it is older than the query's newest batch, and may be written already.
    """

    target: Target
    start: _Start
    records: DataFrame
    number: int
    offsets: Ranges
    is_read_again: bool

    @property
    def spark(self) -> SparkSession:
        """The session of its records."""
        return self.records.sparkSession

    def tell(self, count: TableCount) -> None:
        """Tell who watches the query what this batch put into a table."""
        tell(self.target, self.spark, self.number, count)

    def append(
        self, frame: DataFrame, path: str, suffix: str = "", commit: Mapping[str, object] | None = None
    ) -> None:
        """Append once, as this batch of this writer; `commit` is kept in the table's history."""
        told = {"pipeline": self.target.pipeline, "run": self.target.run} | dict(commit or {})
        delta.append_once(frame, path, writer=self.start.writer + suffix, batch_id=self.number, commit=told)

    def earlier(self, path: str, suffix: str = "") -> Mapping[str, Any] | None:
        """Return what an earlier attempt of this batch wrote into the history of the table at `path`."""
        return delta.commit_of(self.spark, path, writer=self.start.writer + suffix, batch_id=self.number)


def write(target: Target, records: DataFrame, batch_id: int, *, read_again: Ranges | None = None) -> None:
    """Write one micro-batch of Kafka's records.

    Args:
        target: Where to.
        records: Kafka's columns.
        batch_id: Spark's number of the batch.
        read_again: The offsets, where this is no batch of the running query, but an older one.

    Raises:
        SchemaRegistryError: The registry cannot be used; nothing was decided.
        DecodeError: A record is not right, in mode FAILFAST.
        IngestError: The table has a batch of this number with other offsets.
    """
    spark = records.sparkSession
    start = _started(target, spark)
    offsets = read_again
    if offsets is None:
        whole = checkpoint.ranges(spark, target.checkpoint, batch_id, target.start)
        offsets = batch_offsets.of_topic(whole, target.topic)
    batch = Batch(target, start, records, batch_id, offsets, is_read_again=read_again is not None)
    delta.written_again(partial(_write, batch), batch.start.schemas.forget)


def require_ready(target: Target, spark: SparkSession) -> None:
    """Raise what a batch of the target would raise before it writes anything."""
    schemas = _started(target, spark).schemas
    schemas.of.require_usable(schemas.current(spark))


def _started(target: Target, spark: SparkSession) -> _Start:
    key = target.checkpoint, target.topic
    if key not in _starts or _starts[key].name != target.start:
        writer = writer_name(target, spark)
        _starts[key] = _Start(target.start, writer, target.batch_schemas(), has_written=target.is_new)
    return _starts[key]


def _write(batch: Batch) -> None:
    codecs = batch.start.schemas.current(batch.spark)
    if batch.target.topic is not None:
        # A query of one topic does not start then.
        batch.start.schemas.of.require_usable(codecs)
    # Until it is written: whoever tries this batch again has to look for what is there of it.
    had_written, batch.start.has_written = batch.start.has_written, False
    plain = batch.start.schemas.plain(codecs)
    bad = _write_known(batch, codecs, plain, may_be_repeated=batch.is_read_again or not had_written)
    if bad is None:
        _finish(batch, codecs)
        return
    if bad:
        _settle(batch, _left(batch, batch.records, codecs, plain), codecs)
    # Not after a repeated batch: a checkpoint that was put back from a copy repeats more than one. And an
    # older batch tells nothing of the query's own.
    batch.start.has_written = had_written or not batch.is_read_again


def _write_known(
    batch: Batch, codecs: Codecs, plain: Sequence[SchemaKey], *, may_be_repeated: bool
) -> int | None:
    """Write commit 1, and return how many records are left.

    None where nobody tells: an earlier attempt had written it, or Spark has lost the counts.
    """
    told, written, attempt, layout = Observation(), Observation(), uuid4().hex, batch.target.schemas.layout
    # Counted below everything and above everything: in between, it would end Spark's generated code, and copy
    # each row once more.
    named = avro_plain.named(batch.records.observe(told, registered_rows.count(layout)), codecs.value, plain)
    judged = registered_rows.judge(named, codecs, layout)
    if batch.target.mode == "FAILFAST":
        judged = registered_rows.or_fail(judged, codecs, layout)
    found = registered_rows.placed(registered_rows.flat(judged, codecs, layout)).observe(
        written, F.count("*").alias("rows")
    )
    kept = {"attempt": attempt, batch_offsets.OFFSETS: batch.offsets}
    batch.append(found, batch.target.table, commit=_pinned(batch, codecs, plain) | kept)
    # Only the first batches after a start can be repeated ones: those were not executed, and counted nothing.
    if may_be_repeated and not _is_committed(batch, told, attempt):
        return None
    counted = observation.counts(f"batch {batch.number} is in {batch.target.table}", told, written)
    if counted is None:
        return None
    rows_written = int(counted["rows"])
    batch.tell(TableCount(batch.target.table, rows_written, None, batch.start.writer, codecs.keys))
    return int(counted["records"]) - rows_written


def _is_committed(batch: Batch, told: Observation, attempt: str) -> bool:
    # To ask the table are two calls on an object store.
    return observation.is_told_soon(told) or delta.is_committed(batch.spark, batch.target.table, attempt)


def _finish(batch: Batch, codecs: Codecs) -> None:
    """Do what an earlier attempt did not get to, after its commit 1."""
    known, target = batch.earlier(batch.target.table), batch.target
    batch_offsets.require_same(
        known, batch.offsets, table=target.table, checkpoint=target.checkpoint, batch_id=batch.number
    )
    tell_earlier(target, batch.records, batch.number)
    if batch.earlier(target.quarantine) is not None:
        return
    _require_same(batch, known)
    rest = _not_written(batch, batch.records, known)
    late = batch.earlier(batch.target.table, LATE)
    if late is not None:
        rest = _not_written(batch, rest, late)
    _settle(batch, rest, codecs, is_repeated=True, is_late_written=late is not None)


def _not_written(batch: Batch, records: DataFrame, commit: Mapping[str, Any] | None) -> DataFrame:
    """Return the records that an earlier commit left: judged as it did, whatever the registry says now.

    `commit` is None where the table's history was cleaned up since.
    """
    pinned = None
    if commit is not None:
        pinned = batch.start.schemas.pinned(batch.spark, commit["schemas"], commit["constraints"])
    if pinned is not None and commit is not None:
        return _left(batch, records, pinned, commit["plain"])
    there = batch.target.schemas.layout.kafka
    place: list[str] = [name for name in ("topic", "partition", "offset") if name in there]
    if {"partition", "offset"} <= set(place):
        # What the commit decoded with is not known any more: the table itself knows its rows.
        # As it is now: commit 2 may change its columns' types, which Spark refuses in a plan that is older.
        now = delta.latest_version(batch.spark, batch.target.table)
        written = delta.read(batch.spark, batch.target.table, now).select(f"{KAFKA_COLUMN}.*")
        return records.join(written, place, "left_anti")
    why = "the table's history no longer tells" if commit is None else "the registry no longer knows"
    schemas = "" if commit is None else f" ({commit['schemas']})"
    raise IngestError(
        f"batch {batch.number} was written in part with schemas that {why}{schemas}, and without "
        f"partition and offset in the column {KAFKA_COLUMN} nothing tells which records",
        "register the schemas again under their ids, or take a new table_path and checkpoint_path",
        pipeline=batch.target.pipeline,
        batch_id=batch.number,
        reason="schemas_unknown",
    )


def _pinned(batch: Batch, codecs: Codecs, plain: Sequence[SchemaKey]) -> dict[str, object]:
    """Return what a commit keeps of how its records were judged; an attempt after it judges them alike."""
    return {
        "schemas": codecs.keys,
        "plain": plain,
        "constraints": codecs.constraints,
        "judged": batch.target.judgement,
    }


def _require_same(batch: Batch, commit: Mapping[str, Any] | None) -> None:
    """Check that a batch which was written in part is finished as it was begun: each record in one place."""
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


def _left(batch: Batch, records: DataFrame, codecs: Codecs, plain: Sequence[SchemaKey]) -> DataFrame:
    judged = registered_rows.judge(
        avro_plain.named(records, codecs.value, plain), codecs, batch.target.schemas.layout
    )
    left = judged.where(registered_rows.is_left(codecs, batch.target.schemas.layout))
    return avro_plain.unnamed(left.select(*kafka_source.RECORD_COLUMNS), plain)


def _settle(
    batch: Batch, rest: DataFrame, known: Codecs, *, is_repeated: bool = False, is_late_written: bool = False
) -> None:
    """Write commits 2 and 3: records of `rest` are in no table yet."""
    schemas, layout = batch.start.schemas, batch.target.schemas.layout
    plain_before = schemas.plain(known)
    tally = registered_rows.tally(avro_plain.named(rest, known.value, plain_before), known, layout)
    if not tally.reasons:
        return
    if UNDECODABLE in tally.reasons:
        schemas.refresh_plain()
    if REFUSED_BY_TABLE in tally.reasons:
        # Its constraint may be gone.
        schemas.forget()
    unknown = schemas.look_up(tally.late)
    codecs = schemas.current(batch.spark)
    plain = schemas.plain(codecs)
    judged, writer = registered_rows.judge(avro_plain.named(rest, codecs.value, plain), codecs, layout), None
    # A driver that knows more would take some of them for rows: commit 2 decides, also where it is empty.
    # FAILFAST rejects no record, and the next start tries them again.
    is_open = batch.target.mode == "PERMISSIVE" and tally.is_open(codecs)
    found = registered_rows.placed(registered_rows.flat(judged, codecs, layout))
    if not is_late_written and (is_open or ((is_repeated or codecs is not known) and not found.isEmpty())):
        written, attempt, writer = Observation(), uuid4().hex, batch.start.writer + LATE
        pinned = _pinned(batch, codecs, plain) | {"attempt": attempt}
        counted = found.observe(written, F.count("*").alias("rows"))
        batch.append(counted, batch.target.table, LATE, pinned)
        if not _is_committed(batch, written, attempt):
            # Another driver of this query was faster, and may have known other schemas.
            rest = _not_written(batch, rest, batch.earlier(batch.target.table, LATE))
            _settle(batch, rest, codecs, is_repeated=True, is_late_written=True)
            return
    late = TableCount(batch.target.table, 0, None, writer, codecs.keys)
    left = F.lit(True) if is_late_written else registered_rows.is_left(codecs, layout)
    may_be_undecodable = codecs is not known or UNDECODABLE in tally.reasons
    bad = quarantine_rows.explained(judged.where(left), codecs, unknown, ask_python=may_be_undecodable)
    # With the schemas of commit 1 the counts are those of `bad`: to look again would read Kafka again.
    is_same = codecs is known and plain == plain_before and not is_repeated
    if not (is_same and tally.reasons.keys() - {OK}) and bad.isEmpty():
        _tell_settled(batch, tally, late, TableCount(batch.target.quarantine, 0, {}))
        return
    if batch.target.mode == "FAILFAST":
        raise _first_of(bad)
    batch.append(
        quarantine_rows.quarantined(
            avro_plain.unnamed(bad, plain), pipeline=batch.target.pipeline, batch_id=batch.number
        ),
        batch.target.quarantine,
    )
    if not batch_counts.are_wanted():
        return
    reasons = tally.reasons
    if codecs is not known or "ok" in reasons:
        # Schemas became known since, or keys are wrong: the tally does not tell who went where.
        try:
            reasons = quarantine_rows.count_reasons(bad)
        except (PySparkException, Py4JError) as error:
            _log.warning("batch %d was written, but not counted: %s", batch.number, error)
            return
    told = TableCount(batch.target.quarantine, sum(reasons.values()), reasons, batch.start.writer)
    _tell_settled(batch, tally, late, told)


def _first_of(bad: DataFrame) -> DecodeError:
    row = bad.orderBy("partition", "offset").limit(1).collect()[0]
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


def _tell_settled(batch: Batch, tally: Tally, late: TableCount, bad: TableCount) -> None:
    """Tell who watches what commits 2 and 3 were: what is not in the quarantine became rows."""
    if not tally.is_whole:
        return
    batch.tell(replace(late, rows=sum(tally.reasons.values()) - bad.rows))
    if bad.rows:
        batch.tell(bad)
