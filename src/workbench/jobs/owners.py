"""This process, and process groups: signals to them, and their end."""

from __future__ import annotations

import os
import signal
import time

from workbench.host.home import ProcessRecord
from workbench.host.processes import is_running, record_of

#: After each signal, before the next one.
GRACE_SECONDS = 5.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def own_record() -> ProcessRecord:
    """Return this process."""
    return record_of(os.getpid())


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a process and all in its group; do nothing if they have ended."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def stop_group(record: ProcessRecord) -> None:
    """End a process with its group: SIGINT, then SIGTERM, then SIGKILL."""
    for number in STOP_SIGNALS:
        if not is_running(record):
            return
        signal_group(record.pid, number)
        deadline = time.monotonic() + GRACE_SECONDS
        while is_running(record) and time.monotonic() < deadline:
            time.sleep(0.05)
