"""The scheduler, which starts runs when they are due. After a kill, a new scheduler continues.

While no scheduler runs, no run starts by itself. The next scheduler runs the latest slot of each job at once.
It counts the others as missed in the row of that slot. Databricks says that delayed jobs "run immediately
upon service availability" (docs.databricks.com/jobs/schedule-jobs). Quartz by default fires once for all
slots that it missed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from topiclake.errors import TopiclakeError
from workbench.jobs import triggers
from workbench.jobs.bundle_model import Job
from workbench.jobs.history import History
from workbench.jobs.run_records import SUCCESSES, NewRun, Run
from workbench.jobs.store import Store

TICK_SECONDS = 1.0
RELOAD_SECONDS = 10.0

Launch = Callable[[int], "subprocess.Popen[bytes]"]


class Scheduler:
    """Checks every second which slots are due, and starts their runs.

    Args:
        store: The jobs' database.
        load: Reads the jobs; called again every ten seconds.
        launch: Starts the process that carries out a pending run.
        report: Is called with a line for each event.
        ended: Is called with each run that ends without a process: skipped, or found interrupted.
    """

    def __init__(
        self,
        store: Store,
        load: Callable[[], Mapping[str, Job]],
        launch: Launch,
        report: Callable[[str], None],
        ended: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self._store, self._history = store, History(store)
        self._load, self._launch, self._report, self._ended = load, launch, report, ended
        self._jobs = load()
        self._loaded = time.monotonic()
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def run_forever(self) -> None:
        """Run until an exception such as KeyboardInterrupt; runs that have begun continue without it."""
        while True:
            self._reload()
            self.tick(time.time())
            time.sleep(min(TICK_SECONDS, 0.02 + -time.time() % TICK_SECONDS))

    def tick(self, now: float) -> None:
        """Do what is due at an instant."""
        for run in self._store.mark_interrupted():
            self._report(f"run {run.id} of {run.job} was interrupted: its process is gone")
            self._ended(self._history.run(run.id))
        slotted = [
            key for key, job in self._jobs.items() if triggers.kind_of(job) in ("schedule", "periodic")
        ]
        self._store.retain_triggers(slotted)
        for key, job in self._jobs.items():
            self._claim(key, job, now)
        self._launch_pending()

    def _claim(self, key: str, job: Job, now: float) -> None:
        kind = triggers.kind_of(job)
        if kind is None:
            return
        new = NewRun(key, job.model_dump_json(), job.max_concurrent_runs, kind)
        if kind == "continuous":
            run = self._store.add_when_idle(new) if self._rested(key, now) else None
        else:
            anchor, latest = self._store.since(key, triggers.text_of(job), now)
            slot = triggers.due(job, anchor, latest, now)
            run = self._store.claim_slot(new, slot.at, slot.missed) if slot else None
        if run:
            self._report(f"run {run.id} of {key}: {run.state} {run.reason}".rstrip())
            if run.state == "SKIPPED":
                self._ended(run)

    def _rested(self, key: str, now: float) -> bool:
        """Return whether a continuous job has waited long enough after its failures."""
        failures = 0
        runs = self._history.runs(key, limit=20)
        for run in runs:
            if run.state in (*SUCCESSES, "CANCELED"):
                break
            failures += 1
        return not runs or now >= (runs[0].ended or now) + triggers.delay_after(failures)

    def _launch_pending(self) -> None:
        self._children = {run: child for run, child in self._children.items() if child.poll() is None}
        for run in self._history.active():
            if run.state == "PENDING" and run.id not in self._children:
                self._children[run.id] = self._launch(run.id)

    def _reload(self) -> None:
        if time.monotonic() - self._loaded < RELOAD_SECONDS:
            return
        self._loaded = time.monotonic()
        try:
            self._jobs = self._load()
        except TopiclakeError as error:
            self._report(f"✗ the jobs stay as they were: {error}")


def launch_executor(project: Path) -> Launch:
    """Return a function that starts an executor in a separate session, so that it outlives the scheduler."""

    def launch(run: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "workbench.jobs.executor", str(run)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=project, start_new_session=True)

    return launch
