"""Commits 2 and 3 of a micro-batch: the records that commit 1 rejected (`registered_batch`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from topiclake.errors import DecodeError
from topiclake.formats.avro import plain as avro_plain
from topiclake.formats.codec import Codecs
from topiclake.ingest import quarantine_rows
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.ingest.registered_records import RegisteredBatch
from topiclake.ingest.targets import LATE
from topiclake.reasons import OK, REFUSED_BY_TABLE, UNDECODABLE
from topiclake.schema_registry.wire_format import Part, SchemaKey
from topiclake.sources import registered_rows
from topiclake.sources.registered_rows import Tally
from topiclake.streaming import batch_counts, failure
from topiclake.streaming.batch_counts import TableCount

_log = logging.getLogger(__name__)


def write_rejected(
    batch: RegisteredBatch,
    remaining: DataFrame,
    earlier: Codecs,
    *,
    is_repeated: bool = False,
    is_late_written: bool = False,
) -> None:
    """Write commits 2 and 3, of the records `remaining`, which are in no table yet."""
    schemas, layout = batch.state.schemas, batch.target.schemas.layout
    first_plain = schemas.plain(earlier)
    tagged = avro_plain.tag_plain_records(remaining, earlier.value, first_plain)
    tally = registered_rows.tally(tagged, earlier, layout)
    if not tally.reasons:
        return
    unknown = _learn(schemas, tally)
    codecs = schemas.current(batch.spark)
    plain = schemas.plain(codecs)
    decoded, writer = batch.decode(remaining, codecs, plain), None
    # A driver that knows more schemas would classify some records as rows. So commit 2 decides, even if it is
    # empty. FAILFAST writes no rejected records, so the next start classifies them again.
    is_open = batch.target.mode == "PERMISSIVE" and tally.is_open(codecs)
    rows = registered_rows.valid_rows(registered_rows.as_rows(decoded, codecs, layout))
    if not is_late_written and (is_open or ((is_repeated or codecs is not earlier) and not rows.isEmpty())):
        if not _write_late(batch, rows, batch.pinned(codecs, plain)):
            # Another driver of this query was faster, and may have known other schemas.
            remaining = batch.not_written(remaining, batch.earlier(batch.target.table, LATE))
            write_rejected(batch, remaining, codecs, is_repeated=True, is_late_written=True)
            return
        writer = batch.writer + LATE
    late = TableCount(batch.target.table, 0, None, writer, codecs.keys)
    rejected = decoded.where(F.lit(True) if is_late_written else registered_rows.is_rejected(codecs, layout))
    needs_python = codecs is not earlier or UNDECODABLE in tally.reasons
    rejected = quarantine_rows.with_reasons(
        rejected,
        codecs,
        unknown,
        needs_python=needs_python,
        keeps_tombstones=layout.keeps_tombstones,
    )
    rejected = avro_plain.untag_plain_records(rejected, plain)
    # With the schemas of commit 1, the tally already counts `rejected`: another count would read Kafka again.
    is_same = codecs is earlier and plain == first_plain and not is_repeated
    may_be_empty = not (is_same and tally.reasons.keys() - {OK})
    # If schemas became known since, or keys are wrong, the tally does not count the rejected records.
    is_counted = codecs is earlier and OK not in tally.reasons
    _write_quarantine(batch, tally, late, rejected, is_counted=is_counted, may_be_empty=may_be_empty)


def _learn(schemas: BatchSchemas, tally: Tally) -> dict[Part, set[SchemaKey]]:
    """Look up schemas of rejected records, and return those that the registry does not know."""
    if UNDECODABLE in tally.reasons:
        schemas.refresh_plain()
    if REFUSED_BY_TABLE in tally.reasons:
        # The constraint may have been dropped.
        schemas.forget()
    return schemas.look_up(tally.late, is_complete=tally.is_complete)


def _write_late(batch: RegisteredBatch, rows: DataFrame, pinned: Mapping[str, object]) -> bool:
    """Write commit 2, and return whether this attempt made the commit."""
    written, attempt = Observation(), uuid4().hex
    counted, columns = rows.observe(written, F.count("*").alias("rows")), batch.state.schemas.table_columns
    with batch.target.table_rows(counted, columns, batch.label) as table_rows:
        batch.append(table_rows, batch.target.table, LATE, {**pinned, "attempt": attempt})
    return batch.has_committed(written, attempt)


def _write_quarantine(
    batch: RegisteredBatch,
    tally: Tally,
    late: TableCount,
    rejected: DataFrame,
    *,
    is_counted: bool,
    may_be_empty: bool,
) -> None:
    """Write and report commit 3; in mode FAILFAST, raise the error of its first record."""
    path = batch.target.quarantine
    if may_be_empty and rejected.isEmpty():
        _report(batch, tally, late, TableCount(path, 0, {}))
        return
    if batch.target.mode == "FAILFAST":
        raise first_error(rejected)
    rows = quarantine_rows.quarantined(rejected, pipeline=batch.target.pipeline, batch_id=batch.number)
    batch.append(rows, path)
    if not batch_counts.has_subscribers():
        return
    reasons = tally.reasons if is_counted else _count_reasons(batch, rejected)
    if reasons is not None:
        _report(batch, tally, late, TableCount(path, sum(reasons.values()), reasons, batch.writer))


def _count_reasons(batch: RegisteredBatch, rejected: DataFrame) -> Mapping[str, int] | None:
    try:
        return quarantine_rows.count_reasons(rejected)
    except (PySparkException, Py4JError) as error:
        _log.warning("batch %d was written, but not counted: %s", batch.number, error)
        return None


def first_error(rejected: DataFrame) -> DecodeError:
    """Return the error of the first rejected record, for mode FAILFAST."""
    row = rejected.orderBy("partition", "offset").limit(1).collect()[0]
    return DecodeError(
        f"{failure.FAILFAST} topic {row['topic']}, partition {row['partition']}, offset {row['offset']}, "
        f"reason {row['reason']}: {row['detail']}",
        "set mode=PERMISSIVE, which puts such records into the quarantine table",
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        reason=row["reason"],
        detail=row["detail"],
    )


def _report(batch: RegisteredBatch, tally: Tally, late: TableCount, quarantined: TableCount) -> None:
    """Report the counts of commits 2 and 3: records that are not in quarantine became rows."""
    if not tally.is_complete:
        return
    batch.report(replace(late, rows=sum(tally.reasons.values()) - quarantined.rows))
    if quarantined.rows:
        batch.report(quarantined)
