"""The scheduler as a process: started in the background, found again, stopped."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from psutil import Process

from topiclake.errors import IngestError
from workbench.host import processes
from workbench.host.files import replace_json
from workbench.host.home import Home, ProcessRecord
from workbench.jobs.owners import own_record, stop_group

START_SECONDS = 30.0


def record_scheduler(home: Home, target: str | None) -> None:
    """Write that this process is the scheduler, and which target's jobs it runs."""
    replace_json(_file(home), {"process": asdict(own_record()), "target": target})


def find_scheduler(home: Home) -> ProcessRecord | None:
    """Return the scheduler that runs in a home."""
    try:
        record = ProcessRecord(**_recorded(home)["process"])
    except (TypeError, KeyError):
        return None
    return record if processes.is_running(record) else None


def scheduled_target(home: Home) -> str | None:
    """Return the target whose jobs the running scheduler runs; None for the default target."""
    return _recorded(home).get("target") if find_scheduler(home) else None


def start_in_background(home: Home, options: Sequence[str]) -> ProcessRecord:
    """Start the scheduler apart from this terminal.

    Raises:
        IngestError: It has ended at once, or does not begin.
    """
    home.prepare()
    log = home.log("jobs")
    command = [sys.executable, "-m", "workbench", "job", "start", *options]
    started = processes.start(command, log, home.project, {})
    deadline = time.monotonic() + START_SECONDS
    while started.poll() is None and time.monotonic() < deadline:
        if (scheduler := find_scheduler(home)) and scheduler.pid == started.pid:
            return scheduler
        time.sleep(0.1)
    stop_group(processes.record_of(started.pid))
    raise IngestError(
        f"the scheduler did not start: {processes.last_error_line(log)}", f"cat {log}", log=str(log)
    )


def stop_scheduler(home: Home) -> bool:
    """Stop the scheduler; runs that have begun continue. Return whether a scheduler ran."""
    scheduler = find_scheduler(home)
    if scheduler:
        processes.stop([Process(scheduler.pid)])
    return scheduler is not None


def _recorded(home: Home) -> dict[str, Any]:
    try:
        return dict(json.loads(_file(home).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _file(home: Home) -> Path:
    return home.jobs / "scheduler.json"
