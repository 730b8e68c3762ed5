"""The audit: each record that Kafka holds is in exactly one place, the table or the quarantine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.changes.pipeline import RowChanges
from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.errors import IngestError, StorageError
from topiclake.ingest.audit import changes
from topiclake.ingest.audit.counts import (
    CLAIMED,
    IN_TABLE,
    PAUSED,
    RECORD,
    TOMBSTONE,
    UNCOMMITTED,
    WAITING,
    AuditRules,
    count_offsets,
    find_offsets,
)
from topiclake.ingest.audit.ranges import (
    Range,
    is_compacted,
    paused_ranges,
    read_ranges,
    read_records,
    within_kafka,
)
from topiclake.ingest.audit.report import AuditReport, PartitionAudit, joined
from topiclake.ingest.quarantine import replay_claims
from topiclake.kafka.offsets import topic_offsets
from topiclake.local_frame import local_frame
from topiclake.sources.layout import KAFKA_COLUMN
from topiclake.sources.streams import decode_looked_up
from topiclake.storage import mount
from topiclake.storage.failures import storage_errors
from topiclake.streaming import lost_offsets, resumptions


def audit_ingest(spark: SparkSession, settings: Settings) -> AuditReport:
    """Compare the records in Kafka with those in the pipeline's table and quarantine.

    Offsets are compared from the first one of the checkpoint to the end of its last committed batch. The
    stream may be running.

    Args:
        spark: The session.
        settings: The configuration of the ingest.

    Returns:
        The counts of each partition, whether they agree, and the first wrong offsets.

    Raises:
        StorageError: The table does not exist, or the storage refuses access to it.
        IngestError: No checkpoint exists, it is of another topic, or the rows have no `_kafka`.
        OffsetsLostError: Kafka's topic is not the one that was read, or lost records during the audit.
        TopicNotFoundError, KafkaError: The topic or the broker cannot be reached.

    Example:
        >>> tl.audit_ingest(spark, settings).require_ok()
    """
    pipeline = settings.pipeline
    checkpoint = mount.resolve(settings.storage, pipeline.checkpoint_path)
    # The checkpoint is read before the tables, so the tables contain all batches that it calls committed.
    with storage_errors(settings.storage, checkpoint):
        topics = read_ranges(spark, checkpoint)
        rows_before = resumptions.read_rows(spark, checkpoint)
    has_several_tables = pipeline.has_table_for_each
    if not has_several_tables and pipeline.topic not in topics:
        raise IngestError(
            f"the checkpoint at {checkpoint} is of topic {', '.join(topics)}, not {pipeline.topic}",
            "set topic and checkpoint_path of the same ingest",
            checkpoint=checkpoint,
            topic=pipeline.topic,
            topics=tuple(topics),
        )
    return joined(
        # In a pipeline of several topics, the first record of a topic creates its table.
        _audit_topic(
            spark, settings.for_topic(topic), topics[topic], rows_before, required=not has_several_tables
        )
        for topic in (topics if has_several_tables else [pipeline.topic])
    )


def _audit_topic(
    spark: SparkSession,
    settings: Settings,
    committed: Mapping[int, Range],
    rows_before: DataFrame | None,
    *,
    required: bool,
) -> AuditReport:
    resolve = partial(mount.resolve_table, settings.storage)
    pipeline, topic = settings.pipeline, settings.pipeline.topic
    broker_offsets = topic_offsets(settings.kafka, topic)
    table, ledger = resolve(pipeline.location), mount.resolve(settings.storage, pipeline.paused_path)
    with storage_errors(settings.storage, table):
        paused = paused_ranges(spark, ledger, topic)
        landed = [
            *_table_locations(spark, settings, table, topic, required=required),
            *_quarantine_locations(spark, resolve(pipeline.quarantine_path), topic),
        ]
    if rows_before is not None:
        landed = [_without_earlier(locations, rows_before, topic) for locations in landed]
    ranges = {
        partition: within_kafka(
            replace(part, paused=paused.get(partition, (None, None))),
            broker_offsets.get(partition, (0, 0)),
            topic=topic,
            partition=partition,
        )
        for partition, part in committed.items()
    }
    policy = AuditRules(
        skips_tombstones=pipeline.tombstones == "skip", compacted=is_compacted(settings.kafka, topic)
    )
    with lost_offsets.data_loss_errors(
        f"records of topic {topic} while they were audited", "run the audit again"
    ):
        locations = [_kafka_locations(spark, settings, ranges), *landed]
        if pipeline.changes is not None:
            row_changes = RowChanges(pipeline.changes, settings.name)
            locations.append(_change_locations(spark, settings, row_changes, ranges, table, landed[1:]))
        report = _report(topic, ranges, _in_ranges(spark, ranges, locations), policy)
        if settings.kafka.isolation_level == "read_committed" and report.has_rows_without_record:
            # Such rows may be of aborted transactions. Kafka is read again only for them.
            locations.append(_uncommitted_locations(spark, settings, ranges))
            report = _report(topic, ranges, _in_ranges(spark, ranges, locations), policy)
        return report


# Locations of offsets: `partition INT, offset BIGINT, location INT`


def _kafka_locations(spark: SparkSession, settings: Settings, ranges: Mapping[int, Range]) -> DataFrame:
    """Return the offsets of the records in Kafka, read from it: compaction and transactions leave gaps."""
    records = read_records(spark, settings.kafka, settings.pipeline, ranges)
    location = F.when(F.col("value").isNull(), TOMBSTONE).otherwise(RECORD)
    return records.select("partition", "offset", location.alias("location"))


def _uncommitted_locations(spark: SparkSession, settings: Settings, ranges: Mapping[int, Range]) -> DataFrame:
    """Return the offsets of records in Kafka, including those of open and aborted transactions."""
    records = read_records(spark, settings.kafka, settings.pipeline, ranges, uncommitted=True)
    return records.select("partition", "offset", _location(UNCOMMITTED))


def _change_locations(
    spark: SparkSession,
    settings: Settings,
    row_changes: RowChanges,
    ranges: Mapping[int, Range],
    table: str,
    quarantined: list[DataFrame],
) -> DataFrame:
    """Return the offsets of the records that the table of changes need not have."""
    records = read_records(spark, settings.kafka, settings.pipeline, ranges, headers=True)
    for rows in quarantined:
        records = records.join(rows, ["partition", "offset"], "left_anti")
    # Other bad records are missing. They must not end the audit.
    decoded = decode_looked_up(records, settings)
    return changes.change_locations(decoded, delta.read(spark, table), row_changes)


def _table_locations(
    spark: SparkSession, settings: Settings, path: str, topic: str, *, required: bool
) -> list[DataFrame]:
    """Return the offsets in the table; no frame if it does not exist, as before the first row of a topic."""
    if not delta.is_table(spark, path):
        if not required:
            return []
        raise StorageError(
            f"there is no Delta table at {path}",
            "set the table of the ingest, or run the ingest first",
            table=path,
            reason="missing",
        )
    rows = delta.read(spark, path)
    if settings.pipeline.changes is not None:
        return [changes.row_locations(spark, path)]
    origin = dict(rows.dtypes).get(KAFKA_COLUMN, "")
    if not all(re.search(rf"\b{name}:", origin) for name in ("partition", "offset")):
        raise IngestError(
            f"the rows of {path} don't say where in Kafka they came from: nothing can be audited",
            "set kafka_column: true (partition and offset), a new table and a new checkpoint_path",
            table=path,
            reason="no_kafka_column",
        )
    if re.search(r"\btopic:", origin):
        rows = rows.where(F.coalesce(f"{KAFKA_COLUMN}.topic", F.lit(topic)) == topic)
    return [rows.select(f"{KAFKA_COLUMN}.partition", f"{KAFKA_COLUMN}.offset", _location(IN_TABLE))]


def _quarantine_locations(spark: SparkSession, path: str, topic: str) -> list[DataFrame]:
    """Return the offsets in quarantine without replayed rows; no frame if it does not exist."""
    if not delta.is_table(spark, path):
        return []
    rows = replay_claims.read(spark, path).where((F.col("topic") == topic) & F.col("replayed_at").isNull())
    # A replay that has claimed a row and has not ended may have written the row already.
    location = F.when(F.col("replay").isNull(), WAITING).otherwise(CLAIMED).alias("location")
    return [rows.select("partition", "offset", location)]


def _without_earlier(locations: DataFrame, before: DataFrame, topic: str) -> DataFrame:
    """Drop rows that existed when the checkpoint began, as `resumptions.note_rows` noted them."""
    location = F.when(F.col("is_quarantined"), WAITING).otherwise(IN_TABLE).alias("location")
    return locations.exceptAll(before.where(F.col("topic") == topic).select("partition", "offset", location))


def _location(location: int) -> Column:
    return F.lit(location).alias("location")


def _in_ranges(spark: SparkSession, ranges: Mapping[int, Range], locations: list[DataFrame]) -> DataFrame:
    """Drop offsets that the checkpoint has not read, or not committed yet; add `aged BOOLEAN`."""
    bounds = [
        (partition, part.first, part.committed, part.earliest, *part.paused)
        for partition, part in ranges.items()
    ]
    names = ("first", "committed", "earliest", "paused_first", "paused_last")
    schema = ", ".join(["partition INT", *(f"{name} BIGINT" for name in names)])
    rows = reduce(DataFrame.unionAll, locations)
    bounded = rows.join(F.broadcast(local_frame(spark, bounds, schema)), "partition", "left")
    # Rows without a partition, or of one that the checkpoint does not know, are kept: they are `unknown`.
    inside = "first IS NULL OR offset IS NULL OR (offset >= first AND offset < committed)"
    aged = F.coalesce(F.col("offset") < F.col("earliest"), F.lit(False)).alias("aged")
    waits = (F.col("location") <= TOMBSTONE) & F.col("offset").between(
        F.col("paused_first"), F.col("paused_last")
    )
    location = F.when(waits, PAUSED).otherwise(F.col("location")).alias("location")
    return bounded.where(inside).select("partition", "offset", location, aged)


def _report(topic: str, ranges: Mapping[int, Range], rows: DataFrame, policy: AuditRules) -> AuditReport:
    """Return the report, with the first wrong offsets, if any."""
    counts: Mapping[int | None, Mapping[str, Any]] = count_offsets(rows, policy)
    partitions = []
    for partition in sorted({*ranges, *counts}, key=lambda key: (key is None, key)):
        part = Range() if partition is None else ranges.get(partition, Range())
        audit = PartitionAudit(
            topic,
            partition,
            first=part.first,
            committed=part.committed,
            in_flight=part.planned - part.committed,
            aged_out=part.earliest - part.first,
        )
        partitions.append(replace(audit, **counts.get(partition, {})))
    ok = not any(partition.faults for partition in partitions)
    return AuditReport(ok, partitions, [] if ok else find_offsets(rows, policy, topic))
