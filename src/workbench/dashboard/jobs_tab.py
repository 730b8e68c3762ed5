"""The tab of jobs and runs, and the saved notebooks to which it links."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topiclake.errors import ConfigError, TopiclakeError
from workbench.dashboard.readings import Readings
from workbench.host.home import Home
from workbench.jobs.background import scheduled_target
from workbench.jobs.bundle import load_bundle
from workbench.jobs.bundle_model import Job
from workbench.jobs.executor import open_store
from workbench.jobs.history import History
from workbench.jobs.run_records import Attempt, Run

#: The tab's address, after the `#` of the page's.
JOBS = "jobs"
RUNS = 100
REFRESH_SECONDS = 1.0


def jobs_page(home: Home, readings: Readings) -> dict[str, Any]:
    """Return the content of the tab; `read` is `None` until the first reading has ended."""
    read = readings.get(read_jobs, str(home.folder), str(home.project), seconds=REFRESH_SECONDS)
    return {"address": JOBS, "kind": "jobs", "read": read}


def read_jobs(folder: str, project: str) -> dict[str, Any]:
    """Return the jobs of the files, and the newest runs with their attempts.

    Args:
        folder: The folder of the home.
        project: The folder of `databricks.yml`; errors in its files are returned as `problem` and `remedy`.
    """
    home = Home(Path(folder), Path(project))
    history = History(open_store(home))
    runs = history.runs(limit=RUNS)
    attempts = history.attempts(*(run.id for run in runs))
    jobs: Mapping[str, Job] = {}
    problem = {}
    try:
        jobs = load_bundle(home.project, scheduled_target(home)).jobs
    except TopiclakeError as error:
        problem = {"problem": error.cause, "remedy": error.remedy}
    return {
        "jobs": [{"key": key, "description": job.description} for key, job in sorted(jobs.items())],
        "runs": [_run(run, attempts) for run in runs],
        **problem,
    }


def read_notebook(home: Home, run: int, task: str, number: int) -> str:
    """Return the notebook that an attempt has saved, as HTML; only files below the home's runs are read.

    Raises:
        ConfigError: The attempt or its notebook does not exist.
    """
    for attempt in History(open_store(home)).attempts(run):
        file = Path(attempt.page).resolve()
        is_requested = (attempt.task, attempt.attempt) == (task, number)
        if is_requested and file.is_relative_to(home.runs.resolve()) and file.is_file():
            return file.read_text("utf-8")
    raise ConfigError(
        "this notebook does not exist", "choose a run of the list", run=run, task=task, attempt=number
    )


def _run(run: Run, attempts: list[Attempt]) -> dict[str, Any]:
    return {
        "id": run.id,
        "job": run.job,
        "began": run.started or run.created,
        "trigger": run.trigger,
        "state": run.state,
        "reason": run.reason,
        "duration": run.duration,
        "attempts": [
            {"task": each.task, "number": each.attempt, "state": each.state, "is_saved": bool(each.page)}
            for each in attempts
            if each.run == run.id
        ],
    }
