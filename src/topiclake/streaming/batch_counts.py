"""Row counts of the commits of micro-batches, published to subscribers that watch the queries.

Publisher and subscribers share one process. With Spark Connect the publisher is a worker without subscribers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

#: Batches that are published and not taken yet. A topic that resumes publishes all batches that it missed.
MAX_BATCHES = 10_000


@dataclass(frozen=True)
class TableCount:
    """The rows that one commit of a micro-batch wrote into one table.

    Attributes:
        path: Location of the table: its path, or its name.
        rows: Number of rows.
        reasons: For a quarantine, the number of rows by reason; None for a table.
        writer: Delta's name of the writer, which commits each batch once; None without a commit.
        schemas: Ids and GUIDs of the schemas that decoded the records, by part of the record.
        topic: Topic of the rows, if the query has several topics.
        folder: Path of the table, for readers without its catalog.
    """

    path: str
    rows: int
    reasons: Mapping[str, int] | None = None
    writer: str | None = None
    schemas: Mapping[Literal["value", "key"], Sequence[int | str]] = field(default_factory=dict)
    topic: str | None = None
    folder: str = ""

    @property
    def is_quarantine(self) -> bool:
        """Whether the table is a quarantine."""
        return self.reasons is not None


_subscriptions: list[CountSubscription] = []


class CountSubscription:
    """The counts that one subscriber has not taken yet, from its creation until `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: OrderedDict[tuple[str, int], list[TableCount]] = OrderedDict()
        _subscriptions.append(self)

    def add(self, query_id: str, batch_id: int, count: TableCount) -> None:
        """Keep a count until it is taken; a later count of the same commit replaces it."""
        commit = count.path, count.writer
        with self._lock:
            counts = self._counts.setdefault((query_id, batch_id), [])
            counts[:] = [
                earlier
                for earlier in counts
                if earlier.writer is None or (earlier.path, earlier.writer) != commit
            ]
            counts.append(count)
            while len(self._counts) > MAX_BATCHES:
                self._counts.popitem(last=False)

    @property
    def is_empty(self) -> bool:
        """Whether all counts were taken."""
        with self._lock:
            return not self._counts

    def pop(self, query_id: str, batch_id: int) -> dict[int, list[TableCount]]:
        """Return and remove the counts of a query, by batch, up to `batch_id`.

        Older batches are included, because a topic that resumes writes them later.
        """
        with self._lock:
            keys = sorted(key for key in self._counts if key[0] == query_id and key[1] <= batch_id)
            return {key[1]: self._counts.pop(key) for key in keys}

    def close(self) -> None:
        """End the subscription."""
        if self in _subscriptions:
            _subscriptions.remove(self)


def has_subscribers() -> bool:
    """Return whether a subscriber exists; without one, rows need not be counted."""
    return bool(_subscriptions)


def publish(query_id: str, batch_id: int, count: TableCount) -> None:
    """Publish the count of a commit that this attempt of a batch has made."""
    for subscription in list(_subscriptions):
        subscription.add(query_id, batch_id, count)
