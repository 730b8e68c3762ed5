"""The jobs' runs in SQLite, the shared state of all processes.

A slot is the scheduled time of a job. One transaction claims it under a unique key, together with its run. So
neither two schedulers, nor a scheduler that was killed and started again, run it twice. If a run was claimed
but not begun, the next scheduler or command begins it. Only one process can claim a run.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from topiclake.errors import ConfigError, StorageError
from workbench.host.home import ProcessRecord
from workbench.host.processes import is_running
from workbench.jobs.owners import own_record, stop_group
from workbench.jobs.run_records import ACTIVE, TABLES, Attempt, NewRun, Run

BUSY_SECONDS = 60.0


class Store:
    """The database of one workbench; every method is one transaction.

    Args:
        file: The database; made when it is absent.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite does not wait for the change to WAL, which two processes may want at once.
        with file.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._make_tables()
        os.chmod(file, 0o600)

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Run a block that only reads, and does not block writers."""
        return self._connected("BEGIN")

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Run a block as the only writer; all of its changes are committed, or none.

        Raises:
            StorageError: The database cannot be used.
        """
        return self._connected("BEGIN IMMEDIATE")

    def claim_slot(self, new: NewRun, due: float, missed: int = 0) -> Run | None:
        """Claim a slot and insert its run; return None if it, or a later slot of the job, was claimed before.

        The run is SKIPPED at once if the job has its maximum of active runs.
        """
        with self.transaction() as database:
            later = "SELECT 1 FROM slots WHERE job = ? AND due >= ?"
            if database.execute(later, (new.job, due)).fetchone():
                return None
            run = _insert(database, new, due=due)
            database.execute("INSERT INTO slots VALUES (?, ?, ?, ?)", (new.job, due, run, missed))
            return run_row(database, run)

    def begin(self, new: NewRun) -> Run:
        """Insert a run of this process; it is SKIPPED if the job has its maximum of active runs."""
        with self.transaction() as database:
            return run_row(database, _insert(database, new, owner=own_record()))

    def add_when_idle(self, new: NewRun) -> Run | None:
        """Insert a run of a job, or return None if the job has an active run."""
        with self.transaction() as database:
            return None if _active(database, new.job) else run_row(database, _insert(database, new))

    def claim_run(self, run: int) -> bool:
        """Make this process the owner of a pending run; return False if it is not pending."""
        owner = own_record()
        with self.transaction() as database:
            claimed = database.execute(
                "UPDATE runs SET state = 'RUNNING', started = ?, pid = ?, pid_created = ? "
                "WHERE id = ? AND state = 'PENDING'",
                (time.time(), owner.pid, owner.created, run),
            )
            return claimed.rowcount == 1

    def end(self, run: int, state: str, reason: str = "") -> bool:
        """Record the end of a run; return False if it was recorded before."""
        with self.transaction() as database:
            return _end(database, run, state, reason)

    def cancel(self, run: int) -> Run:
        """Ask for the end of a run; one that has not begun ends at once. Return it as it was."""
        with self.transaction() as database:
            row = run_row(database, run)
            database.execute("UPDATE runs SET cancelled = 1 WHERE id = ?", (run,))
            if row.state == "PENDING":
                _end(database, run, "CANCELED", "cancelled before it began")
            return row

    def mark_interrupted(self) -> list[Run]:
        """End runs whose process is gone, and the remaining processes of their tasks; return the runs."""
        with self.transaction() as database:
            interrupted = _interrupted(database)
            orphans = [process for run in interrupted for process in _orphans(database, run.id)]
        for process in orphans:
            stop_group(process)
        return [
            run
            for run in interrupted
            if self.end(run.id, "INTERRUPTED", "its process terminated unexpectedly")
        ]

    def since(self, job: str, trigger: str, now: float) -> tuple[float, float]:
        """Return when this form of a trigger was first seen, and the latest slot of its job (0 for no slot).

        A trigger that is new, was changed or was removed meanwhile begins now.
        """
        with self.transaction() as database:
            latest = database.execute("SELECT max(due) FROM slots WHERE job = ?", (job,)).fetchone()[0] or 0.0
            row = database.execute("SELECT trigger, since FROM anchors WHERE job = ?", (job,)).fetchone()
            if row is None or row["trigger"] != trigger:
                database.execute("INSERT OR REPLACE INTO anchors VALUES (?, ?, ?)", (job, trigger, now))
                return now, float(latest)
            return float(row["since"]), float(latest)

    def retain_triggers(self, jobs: Collection[str]) -> None:
        """Forget the triggers of all other jobs: if they come back, they begin then, with no slots missed."""
        with self.transaction() as database:
            for row in database.execute("SELECT job FROM anchors").fetchall():
                if row["job"] not in jobs:
                    database.execute("DELETE FROM anchors WHERE job = ?", (row["job"],))

    @contextmanager
    def _connected(self, begin: str) -> Iterator[sqlite3.Connection]:
        try:
            database = sqlite3.connect(self.file, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                database.row_factory = sqlite3.Row
                database.execute(begin)
                yield database
                database.execute("COMMIT")
            finally:
                database.close()  # without COMMIT, the block has no effect
        except sqlite3.Error as error:
            raise _unusable(self.file, error) from error

    def _make_tables(self) -> None:
        try:
            database = sqlite3.connect(self.file, timeout=BUSY_SECONDS, isolation_level=None)
            database.execute("PRAGMA journal_mode = WAL")
            database.close()
        except sqlite3.Error as error:
            raise _unusable(self.file, error) from error
        with self.transaction() as database:
            for statement in filter(str.strip, TABLES.split(";")):
                database.execute(statement)


def _unusable(file: Path, error: sqlite3.Error) -> StorageError:
    return StorageError(
        f"{file} cannot be used ({error})", "python -m workbench reset, which deletes it", file=str(file)
    )


def _insert(
    database: sqlite3.Connection, new: NewRun, due: float | None = None, owner: ProcessRecord | None = None
) -> int:
    now, active = time.time(), _active(database, new.job)
    state, reason = ("RUNNING" if owner else "PENDING"), ""
    if active >= new.max_concurrent_runs:
        state, owner = "SKIPPED", None
        reason = f"max_concurrent_runs is {new.max_concurrent_runs}, and as many are active"
    row = {
        "job": new.job,
        "trigger": new.trigger,
        "due": due,
        "definition": new.definition,
        "parameters": json.dumps(dict(new.parameters)),
        "state": state,
        "reason": reason,
        "created": now,
        "started": now if owner else None,
        "ended": now if state == "SKIPPED" else None,
        "pid": owner.pid if owner else None,
        "pid_created": owner.created if owner else None,
    }
    columns, placeholders = ", ".join(row), ", ".join("?" for _ in row)
    inserted = database.execute(f"INSERT INTO runs ({columns}) VALUES ({placeholders})", tuple(row.values()))  # noqa: S608
    return int(inserted.lastrowid or 0)


def _active(database: sqlite3.Connection, job: str) -> int:
    """Count a job's active runs; one counts until its process and its tasks' are gone."""
    rows = database.execute("SELECT id FROM runs WHERE job = ? AND state IN (?, ?)", (job, *ACTIVE))
    interrupted = {run.id for run in _interrupted(database) if not _orphans(database, run.id)}
    return sum(row["id"] not in interrupted for row in rows)


def _interrupted(database: sqlite3.Connection) -> list[Run]:
    rows = database.execute("SELECT * FROM runs WHERE state = 'RUNNING'").fetchall()
    return [run for row in rows if (run := Run(**row)).owner is None or not is_running(run.owner)]


def _orphans(database: sqlite3.Connection, run: int) -> list[ProcessRecord]:
    """Return the processes of a run's tasks that still run."""
    rows = database.execute("SELECT * FROM attempts WHERE run = ? AND state = 'RUNNING'", (run,))
    processes = [Attempt(**row).process for row in rows]
    return [process for process in processes if process and is_running(process)]


def _end(database: sqlite3.Connection, run: int, state: str, reason: str) -> bool:
    now = time.time()
    ended = database.execute(
        "UPDATE runs SET state = ?, reason = ?, ended = ? WHERE id = ? AND state IN (?, ?)",
        (state, reason, now, run, *ACTIVE),
    )
    database.execute("UPDATE tasks SET state = ? WHERE run = ? AND state = 'RUNNING'", (state, run))
    database.execute(
        "UPDATE attempts SET state = ?, ended = ? WHERE run = ? AND state = 'RUNNING'", (state, now, run)
    )
    return ended.rowcount == 1


def run_row(database: sqlite3.Connection, run: int) -> Run:
    """Return a run.

    Raises:
        ConfigError: No run has this number.
    """
    row = database.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchone()
    if row is None:
        raise ConfigError(f"there is no run {run}", "python -m workbench job history", run=run)
    return Run(**row)
