"""Lag in seconds: the time since the record came that a query reads next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: A time, in seconds since 1970, and a partition's head then: the offset after its newest record.
Head = tuple[float, int]


@dataclass(frozen=True)
class Lag:
    """A query's lag in a partition.

    Attributes:
        records: Records that are still to be read.
        seconds: Seconds since the next of them came.
        at_least: Whether it came before the first known head, so that the lag may be longer.
    """

    records: int
    seconds: float
    at_least: bool = False


def lag(end: int, heads: Sequence[Head], now: float) -> Lag:
    """Return the lag of a query that has read up to `end`.

    Between two known heads, records are taken to come evenly, as exporters of consumer lag assume it. The
    record's own time would cost a read for each partition and batch, and may be that of an old event.

    Args:
        end: The offset after the last record that was read.
        heads: The partition's heads, the oldest first; the last one determines how many records wait.
        now: The time, in seconds since 1970.
    """
    if not heads or heads[-1][1] <= end:
        return Lag(0, 0.0)
    waiting = heads[-1][1] - end
    # The first head that is beyond `end`: by then the next record had come.
    index = next(index for index, (_, head) in enumerate(heads) if head > end)
    if index == 0:
        return Lag(waiting, max(0.0, now - heads[0][0]), at_least=True)
    (before, low), (after, high) = heads[index - 1], heads[index]
    arrived_at = before + (after - before) * (end - low) / (high - low)
    return Lag(waiting, max(0.0, now - arrived_at))


def downsample(heads: Sequence[Head], count: int) -> list[Head]:
    """Return about `count` heads: of equal ones the first and the last, and fewer of the older ones."""
    ends = [
        head
        for index, head in enumerate(heads)
        if index in (0, len(heads) - 1) or not heads[index - 1][1] == head[1] == heads[index + 1][1]
    ]
    while len(ends) > count:
        half = len(ends) // 2
        ends = ends[:half:2] + ends[half:]
    return ends
