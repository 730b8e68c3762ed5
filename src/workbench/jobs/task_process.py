"""An attempt at a task: a process in a separate process group, with its output in a file."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench.host.home import ProcessRecord
from workbench.host.processes import record_of, spawn
from workbench.jobs.owners import STOP_SIGNALS, signal_group

#: How long a process has after each signal before the next, stronger one.
GRACE_SECONDS = 20.0
_PAGE = re.compile(r"^\s*(?:page|saved:) +(\S.*\.html)$", re.MULTILINE)


class TaskProcess:
    """A running process; nothing here waits.

    Args:
        command: The command and its arguments.
        log: Where its output is appended.
        folder: The working directory.
        variables: Environment variables over those of this process.
        grace_seconds: As `GRACE_SECONDS`.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        folder: Path,
        variables: Mapping[str, str],
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._begin = output.tell()
            self._process = spawn(command, output, folder, variables)
        self._log = log
        self._grace_seconds = grace_seconds
        self._signals = list(STOP_SIGNALS)
        self._next_signal = 0.0
        self.started = time.monotonic()
        self.stop_reason = ""

    @property
    def record(self) -> ProcessRecord:
        """The record by which other processes find the process."""
        return record_of(self._process.pid)

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.started

    def stop(self, reason: str) -> None:
        """Ask it to end; `poll` then sends SIGINT, later SIGTERM, at last SIGKILL."""
        self.stop_reason = self.stop_reason or reason

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; after its end, kill the rest of its process group."""
        code = self._process.poll()
        if code is not None:
            signal_group(self._process.pid, STOP_SIGNALS[-1])
            return code
        if self.stop_reason and self._signals and time.monotonic() >= self._next_signal:
            signal_group(self._process.pid, self._signals.pop(0))
            self._next_signal = time.monotonic() + self._grace_seconds
        return None

    def output(self) -> str:
        """Return its output."""
        with self._log.open("rb") as file:
            file.seek(self._begin)
            return file.read().decode("utf-8", errors="replace")

    def page(self) -> str:
        """Return the saved notebook that its output names, or ""."""
        pages = _PAGE.findall(self.output())
        return pages[-1] if pages else ""

    def last_line(self) -> str:
        """Return the last line of its output that is not blank."""
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        return lines[-1][:400] if lines else "it wrote nothing"
