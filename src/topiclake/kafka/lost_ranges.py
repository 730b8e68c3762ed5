"""Offsets that a query wants but Kafka has lost, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from topiclake.kafka.offsets import BrokerOffsets

_CAUSES = {
    "aged_out": "Kafka deleted them (retention, or DeleteRecords)",
    "recreated": "the topic was deleted and created again, and the checkpoint is of the old one",
    "truncated": "the partition ends before the offset that is asked for",
    "deleted": "the topic or the partition was deleted",
}


@dataclass(frozen=True)
class LostRange:
    """Offsets of a partition that a query never reads.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: The first one; of a topic that was created again, in the new one.
        after: The offset after the last one; None if it is unknown.
        why: `aged_out`; `recreated`; `truncated`: it ends too early; `deleted`.
        topic_id: Kafka's id of the topic, if the broker returns it.
    """

    topic: str
    partition: int
    first: int
    after: int | None
    why: Literal["aged_out", "recreated", "truncated", "deleted"]
    topic_id: str = ""

    @property
    def records(self) -> int | None:
        """The number of offsets; records are fewer if transactions or compaction made gaps."""
        return None if self.after is None else self.after - self.first

    def __str__(self) -> str:
        if self.records is None:
            offsets = f"offset {self.first} and everything after it"
        else:
            records = "1 record" if self.records == 1 else f"{self.records:,} records"
            offsets = f"offsets {self.first} to before {self.after} ({records})"
        return f"topic {self.topic}, partition {self.partition}: {offsets}: {_CAUSES[self.why]}"


def compare(
    wanted: Mapping[str, Mapping[int, int]],
    broker_offsets: BrokerOffsets,
    *,
    ids: Mapping[str, str] | None = None,
    ends: Mapping[str, Mapping[int, int]] | None = None,
) -> list[LostRange]:
    """Return the wanted offsets that Kafka has lost.

    Args:
        wanted: By topic and partition the next offset to read.
        broker_offsets: The offsets and topic ids on the broker.
        ids: The ids that the topics had.
        ends: By topic and partition where reading ends; without it, it never does.
    """
    losses = []
    for topic, partitions in wanted.items():
        for partition, first in partitions.items():
            lost = _lost(topic, partition, first, broker_offsets, (ids or {}).get(topic, ""))
            end = (ends or {}).get(topic, {}).get(partition)
            if lost is not None and lost.why == "aged_out" and end is not None:
                lost = replace(lost, after=min(end, lost.after or 0)) if end > first else None
            if lost is not None:
                losses.append(lost)
    return losses


def _lost(
    topic: str, partition: int, first: int, broker_offsets: BrokerOffsets, known_id: str
) -> LostRange | None:
    span, topic_id = broker_offsets.offsets.get(topic, {}).get(partition), broker_offsets.ids.get(topic, "")
    if span is None:
        return LostRange(topic, partition, first, None, "deleted")
    earliest, end = span
    if earliest > first:
        return LostRange(topic, partition, first, earliest, "aged_out", topic_id)
    has_ids = bool(known_id and topic_id)
    is_other = known_id != topic_id if has_ids else end < first
    if is_other and first > earliest:
        # Spark continues at the checkpoint's offset, or at the partition's end if that is lower.
        return LostRange(topic, partition, earliest, min(first, end), "recreated", topic_id)
    if end < first:
        return LostRange(topic, partition, end, end, "truncated", topic_id)
    return None


def joined(ranges: Iterable[LostRange]) -> list[LostRange]:
    """Return the ranges without overlaps, those that touch as one: a loss is found more than once."""
    return list(_joined(sorted(ranges, key=lambda lost: (*_name(lost), lost.first))))


def _joined(ranges: Iterable[LostRange]) -> Iterator[LostRange]:
    last: LostRange | None = None
    for lost in ranges:
        if last is None or _name(lost) != _name(last) or (last.after is not None and lost.first > last.after):
            if last is not None:
                yield last
            last = lost
        elif last.after is not None:
            last = replace(last, after=None if lost.after is None else max(last.after, lost.after))
    if last is not None:
        yield last


def _name(lost: LostRange) -> tuple[str, str, int, str]:
    return lost.topic, lost.topic_id, lost.partition, lost.why
