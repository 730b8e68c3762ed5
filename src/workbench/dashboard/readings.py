"""Slow reads, in threads apart from the page: it shows the last results until new ones arrive."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from topiclake.errors import TopiclakeError

#: Reads at once at most: storage that does not answer blocks these reads, and not the page.
MAX_CONCURRENT_READS = 4
HANGING_SECONDS = 60.0
MAX_READINGS = 200
#: A read is repeated only after this many times its duration.
PAUSE_FACTOR = 10

Read = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class _Reading:
    result: dict[str, Any]
    read_at: float
    duration: float

    def is_fresh(self, seconds: float) -> bool:
        return time.monotonic() - self.read_at < max(seconds, PAUSE_FACTOR * self.duration)


class Readings:
    """The newest results by read and arguments; a table is never read twice at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: OrderedDict[tuple[object, ...], _Reading] = OrderedDict()
        self._running: dict[str, float] = {}

    def get(self, read: Read, path: str, *arguments: str, seconds: float = 5.0) -> dict[str, Any] | None:
        """Return the last result at once, and start a new read if it is older than `seconds`.

        Args:
            read: Called with `path` and `arguments` in a separate thread.
            path: The path of the table.
            arguments: Further arguments of `read`.
            seconds: How old a result may be.

        Returns:
            The result of `read`, or `problem` and `remedy` if it failed; None before its first end.
        """
        key = (read, path, *arguments)
        with self._lock:
            reading = self._readings.get(key)
            if reading:
                self._readings.move_to_end(key)
            is_due = reading is None or not reading.is_fresh(seconds)
            if is_due and path not in self._running and self._busy() < MAX_CONCURRENT_READS:
                self._running[path] = time.monotonic()
                # Not one of a pool: the dashboard ends also while storage does not answer.
                threading.Thread(target=self._read, args=(key, read, path, *arguments), daemon=True).start()
            hangs = time.monotonic() - self._running.get(path, math.inf) > HANGING_SECONDS
        if hangs:
            return {"problem": "its storage does not answer", "remedy": ""}
        return reading.result if reading else None

    def _busy(self) -> int:
        """Count the reads that may still end: storage that is gone may hold one for ever."""
        now = time.monotonic()
        return sum(now - started < HANGING_SECONDS for started in self._running.values())

    def _read(self, key: tuple[object, ...], read: Read, path: str, *arguments: str) -> None:
        started = time.monotonic()
        try:
            reading = read(path, *arguments)
        except TopiclakeError as error:
            reading = {"problem": error.cause, "remedy": error.remedy}
        except BaseException as error:  # noqa: BLE001 - a panic of deltalake's Rust is no Exception
            reading = {"problem": f"it cannot be read: {type(error).__name__}", "remedy": ""}
        ended = time.monotonic()
        with self._lock:
            self._readings[key] = _Reading(reading, ended, ended - started)
            while len(self._readings) > MAX_READINGS:
                self._readings.popitem(last=False)
            del self._running[path]
