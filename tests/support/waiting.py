"""Waiting for what comes by itself."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Set
from typing import Any, TypeVar

import psutil

from workbench.host import processes

_Value = TypeVar("_Value")


def wait_until(condition: Callable[[], _Value], seconds: float = 240) -> _Value:
    """Return what a condition returns, once that is true; fail when it is not in time, which is ample."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s"
        time.sleep(0.02)
    return value


def kill_all(process: subprocess.Popen[Any]) -> None:
    """Kill a process and all that it has started, and wait for their end. A kernel has a separate session."""
    started: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for one in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    assert processes.still_running(started, 120) == []
    process.wait(120)


def children() -> set[psutil.Process]:
    """Return the processes that this one and its children have started."""
    return set(psutil.Process().children(recursive=True))


def remaining(before: Set[psutil.Process]) -> set[psutil.Process]:
    """Return which processes were started since, other than by those of before, and do not end by themselves.

    A browser, or a service that an earlier test has started, may start and end helpers at any time.
    """
    new = {process for process in children() - before if _ancestors(process).isdisjoint(before)}
    return set(processes.still_running(new, 20))


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, also if its parent has not asked for its exit code."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return processes.has_ended(psutil.Process(pid))
    return True


def _ancestors(process: psutil.Process) -> set[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return set(process.parents())
    return set()
