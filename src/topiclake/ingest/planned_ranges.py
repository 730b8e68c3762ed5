"""The offsets that the next start of an ingest would read, and a sample of their records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from topiclake.config.settings import Settings
from topiclake.config.source import EARLIEST, LATEST
from topiclake.kafka import offsets as kafka_offsets
from topiclake.kafka import source as kafka_source
from topiclake.kafka.offsets import BrokerOffsets
from topiclake.streaming.checkpoint import Offsets, Ranges

#: Number of records of a topic that are decoded for the plan, at most.
SAMPLE_RECORDS = 1_000


@dataclass(frozen=True)
class PlannedRange:
    """The offsets of a partition that would be read, from `first` to before `after`.

    `records` is the number of offsets. Compaction and transactions leave fewer records.
    """

    topic: str
    partition: int
    first: int
    after: int
    records: int


def planned_ranges(
    settings: Settings, position: Offsets | None, broker_offsets: BrokerOffsets
) -> list[PlannedRange]:
    """Return the offsets that a start would read.

    Args:
        settings: The configuration.
        position: The next offsets of the checkpoint; None before the first start.
        broker_offsets: The offsets that the broker has.
    """
    starts = _starts(settings, broker_offsets) if position is None else position
    ranges = []
    for topic, spans in broker_offsets.offsets.items():
        assigned = (settings.pipeline.assign or {}).get(topic)
        for partition, (oldest, after) in spans.items():
            if assigned is not None and partition not in assigned:
                continue
            # A partition that the checkpoint does not know yet is read from its oldest record on.
            first = min(max(starts.get(topic, {}).get(partition, oldest), oldest), after)
            ranges.append(PlannedRange(topic, partition, first, after, after - first))
    return ranges


def _starts(settings: Settings, broker_offsets: BrokerOffsets) -> Offsets:
    """Return the first offsets of a new checkpoint, by topic and partition."""
    configured = settings.pipeline.starting_offsets
    starts: Offsets = {}
    times: dict[tuple[str, int], datetime] = {}
    for topic, spans in broker_offsets.offsets.items():
        for partition, (oldest, after) in spans.items():
            start: object = configured
            if isinstance(configured, dict):
                start = configured.get(topic, {}).get(str(partition), EARLIEST)
            if isinstance(start, datetime):
                times[topic, partition] = start
            elif start in ("latest", LATEST):
                starts.setdefault(topic, {})[partition] = after
            elif isinstance(start, int) and start != EARLIEST:
                starts.setdefault(topic, {})[partition] = start
            else:
                starts.setdefault(topic, {})[partition] = oldest
    for (topic, partition), offset in kafka_offsets.offsets_since(settings.kafka, times).items():
        # A negative offset: no record is as new, so the partition is read from its end on.
        starts.setdefault(topic, {})[partition] = (
            offset if offset >= 0 else broker_offsets.offsets[topic][partition][1]
        )
    return starts


def read_sample(spark: SparkSession, settings: Settings, ranges: Iterable[PlannedRange]) -> DataFrame | None:
    """Return the first records of each partition, or None without records."""
    readable = [planned for planned in ranges if planned.records]
    if not readable:
        return None
    per_partition = max(1, SAMPLE_RECORDS // len(readable))
    spans: Ranges = {}
    for planned in readable:
        end = min(planned.after, planned.first + per_partition)
        spans.setdefault(planned.topic, {})[planned.partition] = (planned.first, end)
    options = kafka_source.range_options(settings.kafka)
    records = kafka_source.read_range(spark, options, spans, fail_on_data_loss=False)
    return records.select(*kafka_source.RECORD_COLUMNS)
