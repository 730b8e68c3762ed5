"""Runs, tasks and attempts: the records that a run writes while it is active, and their queries."""

from __future__ import annotations

import time

from workbench.host.home import ProcessRecord
from workbench.jobs.run_records import ACTIVE, Attempt, Run
from workbench.jobs.store import Store, run_row


class History:
    """Reads and writes the rows of runs.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, run: int) -> Run:
        """Return a run.

        Raises:
            ConfigError: No run has this number.
        """
        with self._store.reading() as database:
            return run_row(database, run)

    def runs(self, job: str | None = None, limit: int = 20) -> list[Run]:
        """Return the latest runs, of one job or of all, the latest first."""
        condition, values = ("WHERE job = ?", [job]) if job else ("", [])
        with self._store.reading() as database:
            rows = database.execute(
                f"SELECT * FROM runs {condition} ORDER BY id DESC LIMIT ?",  # noqa: S608
                [*values, limit],
            )
            return [Run(**row) for row in rows]

    def active(self) -> list[Run]:
        """Return the runs that have not ended, the first one first."""
        with self._store.reading() as database:
            rows = database.execute("SELECT * FROM runs WHERE state IN (?, ?) ORDER BY id", ACTIVE)
            return [Run(**row) for row in rows]

    def slots(self, job: str) -> list[tuple[float, int, int]]:
        """Return a job's slots: their times, their runs, and the number of missed slots before each."""
        with self._store.reading() as database:
            rows = database.execute("SELECT due, run, missed FROM slots WHERE job = ? ORDER BY due", (job,))
            return [tuple(row) for row in rows]

    def attempts(self, *runs: int) -> list[Attempt]:
        """Return the attempts of runs, in the order in which they began."""
        marks = ", ".join("?" for _ in runs)
        with self._store.reading() as database:
            rows = database.execute(
                f"SELECT * FROM attempts WHERE run IN ({marks}) ORDER BY started, task, attempt",  # noqa: S608
                runs,
            )
            return [Attempt(**row) for row in rows]

    def task_states(self, run: int) -> dict[str, str]:
        """Return the state of each task that began or was skipped."""
        with self._store.reading() as database:
            rows = database.execute("SELECT task, state FROM tasks WHERE run = ?", (run,))
            return {row["task"]: row["state"] for row in rows}

    def set_task(self, run: int, task: str, state: str) -> None:
        """Write the state of a task."""
        with self._store.transaction() as database:
            database.execute("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?)", (run, task, state))

    def begin_attempt(self, run: int, task: str, attempt: int, process: ProcessRecord) -> None:
        """Record the start of an attempt at a task."""
        with self._store.transaction() as database:
            database.execute(
                "INSERT INTO attempts (run, task, attempt, state, started, pid, pid_created) "
                "VALUES (?, ?, ?, 'RUNNING', ?, ?, ?)",
                (run, task, attempt, time.time(), process.pid, process.created),
            )

    def end_attempt(
        self, run: int, task: str, attempt: int, *, state: str, reason: str = "", page: str = ""
    ) -> None:
        """Record the end of an attempt: its state, its reason and its page."""
        with self._store.transaction() as database:
            database.execute(
                "UPDATE attempts SET state = ?, reason = ?, ended = ?, page = ? "
                "WHERE run = ? AND task = ? AND attempt = ?",
                (state, reason, time.time(), page, run, task, attempt),
            )
