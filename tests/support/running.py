"""Says while the tests run which of them failed, and which have been running for minutes.

Whoever stops a run, a CI's time limit for one, would otherwise not see either: pytest tells at its end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

LONG_SECONDS = 180.0


class Running:
    """Told by xdist's workers, in the process that prints.

    Args:
        say: Print a line.
        long_seconds: For how long a test may run before it is named, and named again.
    """

    def __init__(self, say: Callable[[str], None], long_seconds: float = LONG_SECONDS) -> None:
        self._say, self._long_seconds = say, long_seconds
        self._begun: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def pytest_sessionstart(self) -> None:
        self._thread.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._begun.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._begun.pop(report.nodeid, None)
            last = report.longreprtext.strip().rpartition("\n")[2]
            self._say(f"FAILED {report.nodeid} ({report.when}): {last}")

    def pytest_sessionfinish(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._long_seconds):
            now = time.monotonic()
            for nodeid, begin in list(self._begun.items()):
                if now - begin >= self._long_seconds:
                    self._say(f"running for {now - begin:.0f} s: {nodeid}")
