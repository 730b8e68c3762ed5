"""What micro-batches put into tables, counted by those who wrote them, for whoever watches their queries.

In the process that writes: with Spark Connect that is a worker, and nobody there asks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

#: Batches that are told of and not taken yet: a topic that is resumed tells of all that it has missed.
KEPT = 10_000


@dataclass(frozen=True)
class TableCount:
    """What one commit of a micro-batch put into one table.

    Attributes:
        path: Of the table.
        rows: How many rows.
        reasons: Of a quarantine: how many of them for which reason; None for a table.
        writer: How Delta knows who made the commit, once for each batch; None where nothing was committed.
        schemas: Ids and GUIDs of the schemas that its records were decoded with, by part of the record.
        topic: Theirs, where the query has several.
    """

    path: str
    rows: int
    reasons: Mapping[str, int] | None = None
    writer: str | None = None
    schemas: Mapping[Literal["value", "key"], Sequence[int | str]] = field(default_factory=dict)
    topic: str | None = None

    @property
    def is_quarantine(self) -> bool:
        """Whether the table is a quarantine."""
        return self.reasons is not None


_watches: list[CountSubscription] = []


class CountSubscription:
    """The counts that one watcher has not taken yet, from now on until `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: OrderedDict[tuple[str, int], list[TableCount]] = OrderedDict()
        _watches.append(self)

    def add(self, query_id: str, batch_id: int, count: TableCount) -> None:
        """Keep a count until it is taken; of a commit that is told of twice, the last."""
        commit = count.path, count.writer
        with self._lock:
            known = self._counts.setdefault((query_id, batch_id), [])
            known[:] = [
                earlier
                for earlier in known
                if earlier.writer is None or (earlier.path, earlier.writer) != commit
            ]
            known.append(count)
            while len(self._counts) > KEPT:
                self._counts.popitem(last=False)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be taken."""
        with self._lock:
            return not self._counts

    def take(self, query_id: str, batch_id: int) -> dict[int, list[TableCount]]:
        """Return once what a query was told of up to a batch: a topic that is resumed writes older ones."""
        with self._lock:
            known = sorted(key for key in self._counts if key[0] == query_id and key[1] <= batch_id)
            return {key[1]: self._counts.pop(key) for key in known}

    def close(self) -> None:
        """End it."""
        if self in _watches:
            _watches.remove(self)


def are_wanted() -> bool:
    """Whether somebody watches: else nothing that costs time is to be counted."""
    return bool(_watches)


def publish(query_id: str, batch_id: int, count: TableCount) -> None:
    """Tell of a commit that this attempt of a batch has made."""
    for watch in list(_watches):
        watch.add(query_id, batch_id, count)
