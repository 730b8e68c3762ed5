"""What micro-batches put into tables, counted by those who wrote them, for whoever watches their queries.

In the process that writes: with Spark Connect that is a worker, and nobody there asks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Batches that are told of and not taken yet; more than one is there only while a listener is behind.
KEPT = 200


@dataclass(frozen=True)
class TableCount:
    """What one commit of a micro-batch put into one table.

    Attributes:
        path: Of the table.
        rows: How many rows.
        reasons: Of a quarantine: how many of them for which reason.
    """

    path: str
    rows: int
    reasons: Mapping[str, int] = field(default_factory=dict)


_lock = threading.Lock()
_counts: OrderedDict[tuple[str, int], list[TableCount]] = OrderedDict()
_watchers = 0


def watch() -> None:
    """Have counts kept from now on."""
    global _watchers
    with _lock:
        _watchers += 1


def unwatch() -> None:
    """End what `watch` began."""
    global _watchers
    with _lock:
        _watchers = max(0, _watchers - 1)
        if not _watchers:
            _counts.clear()


def are_wanted() -> bool:
    """Whether somebody watches: else nothing that costs time is to be counted."""
    return _watchers > 0


def tell(query_id: str, batch_id: int, count: TableCount) -> None:
    """Tell of a commit that this attempt of a batch has made."""
    if not are_wanted():
        return
    with _lock:
        _counts.setdefault((query_id, batch_id), []).append(count)
        while len(_counts) > KEPT:
            _counts.popitem(last=False)


def take(query_id: str, batch_id: int) -> list[TableCount]:
    """Return what a batch was told of, once."""
    with _lock:
        return _counts.pop((query_id, batch_id), [])
