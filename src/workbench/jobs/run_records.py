"""The rows of the jobs' database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from workbench.host.home import ProcessRecord

ACTIVE = ("PENDING", "RUNNING")
SUCCESSES = ("SUCCESS", "SUCCESS_WITH_FAILURES")
TABLES = """
CREATE TABLE IF NOT EXISTS runs (
  id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, trigger TEXT NOT NULL, due REAL,
  definition TEXT NOT NULL, parameters TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '',
  created REAL NOT NULL, started REAL, ended REAL, pid INTEGER, pid_created REAL,
  cancelled INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS runs_by_state ON runs (state, job);
CREATE TABLE IF NOT EXISTS slots (
  job TEXT NOT NULL, due REAL NOT NULL, run INTEGER NOT NULL REFERENCES runs, missed INTEGER NOT NULL,
  PRIMARY KEY (job, due));
CREATE TABLE IF NOT EXISTS anchors (job TEXT PRIMARY KEY, trigger TEXT NOT NULL, since REAL NOT NULL);
CREATE TABLE IF NOT EXISTS tasks (
  run INTEGER NOT NULL REFERENCES runs, task TEXT NOT NULL, state TEXT NOT NULL, PRIMARY KEY (run, task));
CREATE TABLE IF NOT EXISTS attempts (
  run INTEGER NOT NULL REFERENCES runs, task TEXT NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL,
  reason TEXT NOT NULL DEFAULT '', started REAL NOT NULL, ended REAL, pid INTEGER, pid_created REAL,
  page TEXT NOT NULL DEFAULT '', PRIMARY KEY (run, task, attempt));
"""


@dataclass(frozen=True)
class NewRun:
    """A requested run."""

    job: str
    definition: str
    max_concurrent_runs: int = 1
    trigger: str = "manual"
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A run of a job; times are seconds since 1970.

    Attributes:
        trigger: The kind of its trigger: `schedule`, `periodic`, `continuous` or `manual`.
        due: The slot of the run, or None.
        definition: The job as it was then, as JSON.
        state: PENDING, RUNNING, SUCCESS, SUCCESS_WITH_FAILURES, FAILED, TIMEDOUT, CANCELED, SKIPPED or
            INTERRUPTED (its process is gone).
    """

    id: int
    job: str
    trigger: str
    due: float | None
    definition: str
    parameters: str
    state: str
    reason: str
    created: float
    started: float | None
    ended: float | None
    pid: int | None
    pid_created: float | None
    cancelled: int

    @property
    def owner(self) -> ProcessRecord | None:
        """The process that carries it out."""
        return _process(self.pid, self.pid_created)

    @property
    def duration(self) -> str:
        """The duration of the run, or "" before its end."""
        return f"{self.ended - self.started:.1f} s" if self.ended and self.started else ""

    @property
    def parameter_values(self) -> dict[str, str]:
        """The parameters that this run was given."""
        values: dict[str, str] = json.loads(self.parameters)
        return values


@dataclass(frozen=True)
class Attempt:
    """One attempt at a task.

    Attributes:
        page: The saved notebook, or "".
    """

    run: int
    task: str
    attempt: int
    state: str
    reason: str
    started: float
    ended: float | None
    pid: int | None
    pid_created: float | None
    page: str

    @property
    def process(self) -> ProcessRecord | None:
        """The task's own process, which leads a group."""
        return _process(self.pid, self.pid_created)


def shown_time(seconds: float) -> str:
    """Return an instant as UTC, as it is shown to people."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}"


def _process(pid: int | None, created: float | None) -> ProcessRecord | None:
    return ProcessRecord(pid, created or 0.0) if pid else None
