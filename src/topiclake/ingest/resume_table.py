"""Resume a query without its checkpoint, from its table, its quarantine and its paused ranges.

Each commit of a table keeps the offsets of its batch, so a new checkpoint begins at their end. Offsets before
that end are read again if no finished batch holds them. Those are gaps, ranges of a paused topic, and the
last batch of each writer, whose commit of the quarantine may be missing. Their records that are neither in
the table nor in the quarantine are written before the query starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.delta.table_commits import Commit
from topiclake.errors import IngestError, OffsetsLostError
from topiclake.formats.declared import DeclaredFormat
from topiclake.ingest import declared_batch, registered_batch
from topiclake.ingest.paused_topics import Span
from topiclake.ingest.table_content import TableContent, spans_of
from topiclake.kafka import source as kafka_source
from topiclake.local_frame import local_frame
from topiclake.streaming import checkpoint, lost_offsets


@dataclass(frozen=True)
class Resumption:
    """The offsets from which one topic resumes.

    Attributes:
        firsts: By partition, the first offset of the earlier queries.
        ends: By partition, the first offset of the new checkpoint.
        unfinished: By partition, the ranges before that offset that no finished batch holds.
    """

    firsts: Mapping[int, int]
    ends: Mapping[int, int]
    unfinished: Mapping[int, Sequence[Span]]


def resumption(spark: SparkSession, content: TableContent) -> Resumption:
    """Return the offsets from which the topic of a table resumes."""
    spans = spans_of(content.commits, content.topic)
    finished = spans_of(_finished(content.commits), content.topic)
    if not spans and content.table_version is not None:
        # Delta has cleaned up the history, so the offsets of the rows are used.
        bounds = content.rows(spark).groupBy("partition").agg(F.min("offset"), F.max("offset"))
        spans = {partition: [(first, last + 1)] for partition, first, last in bounds.collect()}
    for partition, ranges in content.paused.items():
        spans.setdefault(partition, []).extend(ranges)
    # A restored table ends before its quarantine.
    for partition, last in _last_quarantined(spark, content).items():
        spans.setdefault(partition, []).append((last + 1, last + 1))
    firsts = {partition: min(first for first, _ in ranges) for partition, ranges in spans.items()}
    ends = {partition: max(after for _, after in ranges) for partition, ranges in spans.items()}
    unfinished = {
        partition: parts
        for partition in spans
        if (parts := without((firsts[partition], ends[partition]), finished.get(partition, [])))
    }
    return Resumption(firsts, ends, unfinished)


def _last_quarantined(spark: SparkSession, content: TableContent) -> dict[int, int]:
    """Return the last quarantined offset of each partition."""
    if content.quarantine_version is None:
        return {}
    rows = delta.read(spark, content.target.quarantine, content.quarantine_version)
    of_topic = rows.where(F.col("topic") == content.topic).groupBy("partition")
    return dict(map(tuple, of_topic.agg(F.max("offset")).collect()))


def _finished(commits: Sequence[Commit]) -> list[Commit]:
    """Drop the newest commit of each writer, whose batch may have stopped after that commit."""
    newest: dict[str, int] = {}
    for commit in commits:
        newest[commit.writer] = max(commit.version, newest.get(commit.writer, commit.version))
    return [commit for commit in commits if commit.version != newest[commit.writer]]


def without(span: Span, spans: Iterable[Span]) -> list[Span]:
    """Return the parts of a span that are not in any of `spans`."""
    remaining, (begin, end) = [], span
    for first, after in sorted(spans):
        if begin < min(first, end):
            remaining.append((begin, min(first, end)))
        begin = max(begin, after)
    if begin < end:
        remaining.append((begin, end))
    return remaining


def require_same_topic(
    settings: Settings,
    content: TableContent,
    ends: Mapping[int, int],
    in_kafka: Mapping[int, Span],
    remedy: str,
) -> None:
    """Check that Kafka's topic is the source of the table.

    Args:
        settings: The configuration.
        content: The content of the table.
        ends: By partition, the offset after the table's last record.
        in_kafka: By partition, the offsets on the broker.
        remedy: The change to try for another topic.

    Raises:
        IngestError: A partition is missing, or ends before the table ends.
    """
    for partition, end in sorted(ends.items()):
        if partition in in_kafka and in_kafka[partition][1] >= end:
            continue
        range_text = (
            f"ends at offset {in_kafka[partition][1]} of partition {partition}"
            if partition in in_kafka
            else f"has no partition {partition}"
        )
        raise IngestError(
            f"topic {content.topic} {range_text}, but the table at {content.target.table} has its records "
            f"up to offset {end}: it is another topic",
            remedy,
            pipeline=settings.name,
            topic=content.topic,
            partition=partition,
            table=content.target.table,
            offset=in_kafka[partition][1] if partition in in_kafka else None,
            expected=end,
            reason="other_topic",
        )


def write_missing(
    spark: SparkSession,
    settings: Settings,
    content: TableContent,
    unfinished: Mapping[int, Sequence[Span]],
    in_kafka: Mapping[int, Span],
    reader: Mapping[str, str],
) -> None:
    """Write the records of `unfinished` that are neither in the table nor in the quarantine.

    It is safe to repeat, and to run in two starts at once, since both write as the same writer.

    Raises:
        OffsetsLostError: Kafka has deleted some of these records, and `fail_on_data_loss` is set.
    """
    spans = [
        (partition, first, after)
        for partition, ranges in sorted(unfinished.items())
        for first, after in ranges
    ]
    if not spans:
        return
    rows = content.rows(spark)
    _require_not_aged(spark, settings, content, _parts(spans, in_kafka, is_aged=True), rows)
    spans = _parts(spans, in_kafka, is_aged=False)
    if not spans:
        return
    bounds: dict[int, Span] = {}
    for partition, first, after in spans:
        begin, end = bounds.get(partition, (first, after))
        bounds[partition] = min(first, begin), max(after, end)
    fetched = kafka_source.read_range(spark, reader, {content.topic: bounds})
    records = _within(spark, fetched, spans).join(
        rows.select("partition", "offset"), ["partition", "offset"], "left_anti"
    )
    # A join by names moves these columns to the front.
    records = records.select(*fetched.columns)
    records_text = f"records of topic {content.topic} that are in neither table"
    with lost_offsets.data_loss_errors(
        records_text, "set fail_on_data_loss=false, which continues without them"
    ):
        if not records.isEmpty():
            _write(spark, settings, content, records, spans)


def _write(
    spark: SparkSession,
    settings: Settings,
    content: TableContent,
    records: DataFrame,
    spans: Sequence[tuple[int, int, int]],
) -> None:
    # Concurrent starts, and a start after a crash, use the same writer name, so Delta appends the rows once.
    # A later resumption uses another name, since the table has other batches then.
    newest = content.commits[0].version if content.commits else None
    text = json.dumps([content.topic, newest, spans])
    target = replace(content.target, start=uuid4().hex)
    writer = f"resume/{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    checkpoint.cache_query_id(target.checkpoint, target.start, writer)
    if settings.pipeline.is_registered:
        registered_batch.write(target, records, 0, resumed_offsets={})
    else:
        declared_batch.write(
            target, DeclaredFormat.from_settings(settings.pipeline), records, 0, resumed_offsets={}
        )


def _parts(
    spans: Iterable[tuple[int, int, int]], in_kafka: Mapping[int, Span], *, is_aged: bool
) -> list[tuple[int, int, int]]:
    """Return the parts of spans that Kafka still holds, or with `is_aged` those that it has deleted."""
    ranges = []
    for partition, first, after in spans:
        earliest = in_kafka[partition][0]
        begin, end = (first, min(after, earliest)) if is_aged else (max(first, earliest), after)
        if begin < end:
            ranges.append((partition, begin, end))
    return ranges


def _require_not_aged(
    spark: SparkSession,
    settings: Settings,
    content: TableContent,
    aged: Sequence[tuple[int, int, int]],
    rows: DataFrame,
) -> None:
    if not aged or not settings.pipeline.fail_on_data_loss:
        return
    present = _within(spark, rows, aged).select("partition", "offset").distinct().count()
    if present == sum(after - first for _, first, after in aged):
        return
    ranges = "; ".join(
        f"partition {partition}: offsets {first} to before {after}" for partition, first, after in aged[:3]
    )
    raise OffsetsLostError(
        f"Kafka has deleted records of topic {content.topic} ({ranges}), of which the table at "
        f"{content.target.table} and its quarantine have {present}",
        "set fail_on_data_loss=false, which continues without them",
        topic=content.topic,
        table=content.target.table,
        ranges=tuple(aged),
    )


def _within(spark: SparkSession, rows: DataFrame, spans: Sequence[tuple[int, int, int]]) -> DataFrame:
    """Return the rows whose `partition` and `offset` are in one of `spans`."""
    ranges = local_frame(spark, spans, "of_partition INT, first BIGINT, after BIGINT")
    inside = (F.col("partition") == F.col("of_partition")) & (F.col("offset") >= F.col("first"))
    return rows.join(F.broadcast(ranges), inside & (F.col("offset") < F.col("after")), "left_semi")


def starting_offsets(
    resumptions: Mapping[str, Resumption], in_kafka: Mapping[str, Mapping[int, Any]], earliest: int
) -> dict[str, dict[str, int]]:
    """Return the first offsets of a new checkpoint: the end of each table, or else `earliest`."""
    return {
        topic: {
            str(partition): resumptions[topic].ends.get(partition, earliest)
            if topic in resumptions
            else earliest
            for partition in partitions
        }
        for topic, partitions in in_kafka.items()
    }
