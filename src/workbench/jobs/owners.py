"""Processes by id and time of creation, since ids are used again."""

from __future__ import annotations

import os
import signal
import time

import psutil

from workbench.home import ProcessRecord
from workbench.processes import CREATED_TOLERANCE_SECONDS

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def own_record() -> ProcessRecord:
    """Return this process."""
    return record_of(os.getpid())


def record_of(pid: int) -> ProcessRecord:
    """Return a process that was just started; one that has ended already is never found again."""
    try:
        return ProcessRecord(pid, psutil.Process(pid).create_time())
    except psutil.Error:
        return ProcessRecord(pid, 0.0)


def is_running(record: ProcessRecord) -> bool:
    """Tell whether a process goes on; a zombie does not."""
    try:
        process = psutil.Process(record.pid)
        created: float = process.create_time()
        same = abs(created - record.created) <= CREATED_TOLERANCE_SECONDS
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a process and all in its group; nothing when they are gone."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def stop_group(record: ProcessRecord, grace_seconds: float = 5.0) -> None:
    """End a process with its group: SIGINT, then SIGTERM, then SIGKILL."""
    for number in STOP_SIGNALS:
        if not is_running(record):
            return
        signal_group(record.pid, number)
        deadline = time.monotonic() + grace_seconds
        while is_running(record) and time.monotonic() < deadline:
            time.sleep(0.05)
