"""How long ago the record that a query reads next was the newest: lag in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: A partition's head (the offset behind its newest record) at a time, in seconds since 1970.
Head = tuple[float, int]


@dataclass(frozen=True)
class Lag:
    """How far a query is behind in a partition.

    Attributes:
        records: That are still to be read.
        seconds: Since the next of them came.
        at_least: Whether it came before the first head that is known, so that it may be longer.
    """

    records: int
    seconds: float
    at_least: bool = False


def lag(end: int, heads: Sequence[Head], now: float) -> Lag:
    """Return the lag of a query that has read up to `end`.

    Between two known heads, records came evenly, as exporters of consumer lag have it: to ask Kafka for the
    record's own time would be a read for each partition and batch, and its time may be that of an old event.

    Args:
        end: The offset behind the last record that was read.
        heads: The partition's heads, the oldest first; the last one tells how many records wait.
        now: In seconds since 1970.
    """
    if not heads or heads[-1][1] <= end:
        return Lag(0, 0.0)
    waiting = heads[-1][1] - end
    # The first head that is beyond `end`: by then the next record had come.
    index = next(index for index, (_, head) in enumerate(heads) if head > end)
    if index == 0:
        return Lag(waiting, max(0.0, now - heads[0][0]), at_least=True)
    (before, low), (after, high) = heads[index - 1], heads[index]
    came = before + (after - before) * (end - low) / (high - low)
    return Lag(waiting, max(0.0, now - came))


def downsample(heads: Sequence[Head], count: int) -> list[Head]:
    """Return about `count` heads: of an unchanged one the first and the last, and fewer of older ones."""
    ends = [
        head
        for index, head in enumerate(heads)
        if index in (0, len(heads) - 1) or not heads[index - 1][1] == head[1] == heads[index + 1][1]
    ]
    while len(ends) > count:
        half = len(ends) // 2
        ends = ends[:half:2] + ends[half:]
    return ends
