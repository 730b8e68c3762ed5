"""Waiting for what comes by itself."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 240) -> None:
    """Wait until a condition is true; fail when it is not in time, which is ample on a slow machine."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s"
        time.sleep(0.02)
