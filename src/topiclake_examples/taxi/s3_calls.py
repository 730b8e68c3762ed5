"""Calls of an object store, read from its access log in the form of S3's server access logs."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

#: Operation, key, request, status, error, bytes that were sent, size of the object, milliseconds.
_CALL = re.compile(r" s3_(\w+) (\S+) (\S+) (\d+) (\S+) (\d+) (\d+) (\d+) ")
#: Operations after which an object exists.
_WRITES = ("PutObject", "CopyObject", "CompleteMultipartUpload")


@dataclass(frozen=True)
class CallCount:
    """The calls of one kind.

    Attributes:
        operation: S3's name, such as `PutObject`.
        calls: The number of calls.
        size: Bytes of the objects that they read or wrote.
        seconds: The time that the store worked on them.
        keys: The number of different keys.
    """

    operation: str
    calls: int
    size: int
    seconds: float
    keys: int


def log_size(log: str) -> int:
    """Return the size of an access log in bytes, as the position from which `count_calls` reads later."""
    return Path(log).stat().st_size


def count_calls(log: str, since: int = 0) -> list[CallCount]:
    """Return the calls of an access log by operation, the most frequent first.

    Args:
        log: The file.
        since: The position in it, from `log_size`.
    """
    by_operation: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    with Path(log).open(encoding="utf-8", errors="replace") as lines:
        lines.seek(since)
        for match in filter(None, map(_CALL.search, lines)):
            operation, key, _, _, _, sent, size, milliseconds = match.groups()
            by_operation[operation].append((key, max(int(sent), int(size)), int(milliseconds)))
    counts = [
        CallCount(
            operation,
            len(calls),
            sum(size for _, size, _ in calls),
            sum(milliseconds for *_, milliseconds in calls) / 1000,
            len({key for key, *_ in calls}),
        )
        for operation, calls in by_operation.items()
    ]
    return sorted(counts, key=lambda count: (-count.calls, count.operation))


def summarize_calls(counts: list[CallCount]) -> tuple[int, int, float, int, int]:
    """Return calls, bytes, seconds, objects that remain, and calls that delete one object."""
    deletes = [count for count in counts if count.operation == "DeleteObject"]
    written = sum(count.keys for count in counts if count.operation in _WRITES)
    return (
        sum(count.calls for count in counts),
        sum(count.size for count in counts),
        round(sum(count.seconds for count in counts), 3),
        written - sum(count.keys for count in deletes),
        sum(count.calls for count in deletes),
    )
