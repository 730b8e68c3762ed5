"""One micro-batch of changes: every record changes a row, is skipped, or goes to quarantine, exactly once.

A batch makes these commits, each with Delta's transaction id, in this order.

1. The quarantine gets the rejected records, if any: those that do not decode, and those that are no usable
   change. It comes first, because the MERGE may add the row that an unavailable value needs.
2. The table gets the newest change of each key by one MERGE. This commit is also made if no row changes.

With SCD type 2, further MERGEs may correct versions after it. With several topics in one query, the MERGE has
no transaction id, since their threads share the session. A second commit of the table without rows has it. A
MERGE that is repeated changes no row but versions that need a correction. Spark Connect has one session for
all queries, so it is the same there.

With `retention_days`, a purge of old deletions follows each hundredth batch.

A batch that Spark repeats after a crash only corrects versions (SCD type 2) if the table has it. Otherwise
its quarantined records stay in quarantine, and the others are classified again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from topiclake.changes import tables
from topiclake.changes.batch import Changes
from topiclake.changes.order import CDC_COLUMN, OFFSET, PARTITION
from topiclake.changes.pipeline import RowChanges
from topiclake.changes.rows import DETAIL_FIELD, REASON_FIELD
from topiclake.delta import table as delta
from topiclake.errors import IngestError
from topiclake.formats.declared import DeclaredFormat
from topiclake.ingest import quarantine_rows
from topiclake.ingest.batch import Batch, offsets_of
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.ingest.rejected_records import first_error
from topiclake.ingest.row_decoder import DeclaredDecoder, RegisteredDecoder, RowDecoder
from topiclake.ingest.targets import Target, report_earlier_counts, writer_name
from topiclake.session import is_connect
from topiclake.streaming import batch_offsets, observation
from topiclake.streaming.batch_counts import TableCount
from topiclake.streaming.checkpoint import Ranges
from topiclake.streaming.row_cache import cached

_POSITION = ("topic", "partition", "offset")


@dataclass
class _State:
    """State of one start of a query.

    Attributes:
        name: Id of the start.
        decoder: The decoder, with the schemas that it knows.
        has_written: Whether this start has written a batch, so that later batches are not repeated ones.
    """

    name: str
    decoder: RowDecoder
    has_written: bool = False


@dataclass(frozen=True)
class _ChangeBatch(Batch):
    """One micro-batch of changes.

    Attributes:
        state: State of this start of the query.
        changes: The rules of the changes.
        is_resumed: Whether it is older than the query's newest batch, and may be written already.
    """

    state: _State
    changes: RowChanges
    is_resumed: bool


#: By checkpoint and topic: the state of the query.
_states: dict[tuple[str, str | None], _State] = {}


def write(
    target: Target,
    changes: RowChanges,
    values: DeclaredFormat | None,
    records: DataFrame,
    batch_id: int,
    *,
    resumed_offsets: Ranges | None = None,
) -> None:
    """Write one micro-batch of Kafka's records.

    Args:
        target: The tables of the topic.
        changes: The rules of the changes.
        values: The declared format of the values; None if their schemas are in the registry.
        records: The records, with Kafka's columns.
        batch_id: Spark's number of the batch.
        resumed_offsets: The offsets, if this is an older batch and not one of the running query.

    Raises:
        SchemaRegistryError: The registry cannot be used; nothing is written.
        DecodeError: A record cannot be decoded, or is no usable change, in mode FAILFAST.
        ConfigError: The changes have other keys or another order than the rows of the table.
        IngestError: The table has a batch of this number with other offsets.
    """
    spark, is_resumed = records.sparkSession, resumed_offsets is not None
    key = target.checkpoint, target.topic
    if key not in _states or _states[key].name != target.start:
        _states[key] = _State(target.start, _decoder(spark, target, values))
    state = _states[key]
    offsets, writer = offsets_of(target, spark, batch_id, resumed_offsets), writer_name(target, spark)
    batch = _ChangeBatch(target, writer, records, batch_id, offsets, state, changes, is_resumed)
    delta.write_with_retries(partial(_write, batch), state.decoder.refresh)
    tables.purge_at(spark, target.table, changes.settings.retention_days, batch_id)


def _decoder(spark: SparkSession, target: Target, values: DeclaredFormat | None) -> RowDecoder:
    if values is None:
        return RegisteredDecoder(spark, target, BatchSchemas(target))
    return DeclaredDecoder(spark, target, values)


def _write(batch: _ChangeBatch) -> None:
    target, state = batch.target, batch.state
    if target.topic is not None and isinstance(state.decoder, RegisteredDecoder):
        # A query of one topic makes this check when it starts.
        schemas = state.decoder.schemas
        schemas.source.require_usable(schemas.current(batch.spark))
    # Until the batch is completely written: its next attempt must look for its earlier commits.
    had_written, state.has_written = state.has_written, False
    may_be_repeated = batch.is_resumed or not had_written
    if may_be_repeated and batch.earlier(target.table) is not None:
        batch.commit_to_resume()
        if batch.changes.settings.scd_type == 2:
            state.decoder.learn(state.decoder.tag(batch.records))
            rows, _ = state.decoder.rows(state.decoder.tag(batch.records))
            with batch.changes.resolved(rows, target.table) as changes:
                changes.correct()
        report_earlier_counts(target, batch.records, batch.number)
        return
    quarantined = None
    if may_be_repeated and batch.earlier(target.quarantine) is not None:
        quarantined = _quarantined(batch)
    while not _attempt(batch, quarantined):
        pass
    # An older batch says nothing about the batches of the running query.
    state.has_written = had_written or not batch.is_resumed


def _attempt(batch: _ChangeBatch, quarantined: DataFrame | None) -> bool:
    """Write the records that are not in quarantine; return False if more schemas are known now."""
    target, decoder, layout = batch.target, batch.state.decoder, batch.target.schemas.layout
    records, in_quarantine = batch.records, 0
    if quarantined is not None:
        in_quarantine = records.join(F.broadcast(quarantined), list(_POSITION), "left_semi").count()
        records = records.join(F.broadcast(quarantined), list(_POSITION), "left_anti")
    read, observed = Observation(), records
    # Spark Connect refuses a plan that has an observation twice, as joins of changes would have.
    is_observed = not is_connect(batch.spark)
    if is_observed:
        observed = records.observe(read, F.count("*").alias("records"), F.count("value").alias("values"))
    rows, decoding = decoder.rows(decoder.tag(observed))
    with batch.changes.resolved(rows, target.table) as changes:
        found = observation.counts(f"batch {batch.number} is decoded", read) if is_observed else None
        counts = found or _count(records)
        expected = counts["values"] if layout.skips_tombstones else counts["records"]
        undecoded = expected - changes.counts.rows
        tagged = decoder.tag(records)
        if undecoded and decoder.learn(tagged):
            return False
        if undecoded or changes.rejections:
            with cached(_rejected(batch, tagged, changes, has_undecoded=undecoded > 0)) as rejected:
                reasons = quarantine_rows.count_reasons(rejected)
                if sum(reasons.values()) != undecoded + changes.rejections:
                    # A version that was registered meanwhile makes records valid, which were no rows above.
                    return False
                _quarantine(batch, rejected, reasons, in_quarantine)
        commit = target.origin | decoding | {batch_offsets.OFFSETS: batch.offsets}
        written = changes.merge(
            writer=batch.writer,
            batch_id=batch.number,
            skipped=counts["records"] - expected,
            quarantined=undecoded + in_quarantine,
            shares_session=target.topic is not None,
            commit=commit,
        )
        schemas: Any = decoding.get("schemas", {})
        batch.report(TableCount(target.table, written["merged"], None, batch.writer, schemas))
    return True


def _quarantined(batch: _ChangeBatch) -> DataFrame:
    """Return the positions of quarantined records of batches with this number."""
    rows = delta.read(batch.spark, batch.target.quarantine).where(F.col("batch_id") == batch.number)
    return rows.select(*_POSITION).distinct()


def _count(records: DataFrame) -> Mapping[str, int]:
    ((number, values),) = records.agg(F.count("*"), F.count("value")).collect()
    return {"records": number, "values": values}


def _rejected(batch: _ChangeBatch, tagged: DataFrame, changes: Changes, *, has_undecoded: bool) -> DataFrame:
    """Return the rejected records with `schema_id`, `reason` and `detail`."""
    decoder, frames = batch.state.decoder, []
    if has_undecoded:
        frames.append(decoder.rejected(tagged))
    if changes.rejections:
        fields = (*(f"{CDC_COLUMN}.{name}" for name in (PARTITION, OFFSET)), REASON_FIELD, DETAIL_FIELD)
        reasons = F.broadcast(changes.rejected.select(*fields))
        # The records are of one topic.
        bad = decoder.with_schema_id(tagged).join(reasons, [PARTITION, OFFSET])
        frames.append(bad)
    return reduce(DataFrame.unionByName, frames)


def _quarantine(
    batch: _ChangeBatch, rejected: DataFrame, reasons: Mapping[str, int], in_quarantine: int
) -> None:
    """Append rejected records, whose numbers by reason are `reasons`.

    Raises:
        DecodeError: The mode is FAILFAST.
        IngestError: Another driver of this query has rejected others.
    """
    target = batch.target
    if target.mode == "FAILFAST":
        raise first_error(rejected)
    rows = quarantine_rows.quarantine_rows(rejected, pipeline=target.pipeline, batch_id=batch.number)
    # Of several attempts, each appends the records that the earlier ones have not.
    batch.append(rows, target.quarantine, f"/{in_quarantine}" if in_quarantine else "")
    written = F.broadcast(_quarantined(batch))
    if not rejected.join(written, list(_POSITION), "left_anti").isEmpty():
        raise IngestError(
            f"another driver has written other rejected records of {batch.label} to {target.quarantine}: "
            "records would be lost",
            "start the query once, by one driver",
            pipeline=target.pipeline,
            batch_id=batch.number,
            quarantine=target.quarantine,
            reason="other_driver",
        )
    batch.report(TableCount(target.quarantine, sum(reasons.values()), reasons, batch.writer))
