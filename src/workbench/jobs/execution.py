"""Carries out a run: its tasks in the order of `depends_on`, with retries and timeouts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from topiclake.errors import TopiclakeError
from workbench.host.processes import signals_delayed
from workbench.jobs.bundle_model import Job, Task
from workbench.jobs.history import History
from workbench.jobs.run_records import Run
from workbench.jobs.store import Store
from workbench.jobs.task_process import GRACE_SECONDS, TaskProcess
from workbench.jobs.task_values import Command, RunContext, notebook_command

POLL_SECONDS = 0.1
_ENDED_WELL = {"SUCCESS", "EXCLUDED"}
_FAILED = {"FAILED", "TIMEDOUT", "CANCELED", "UPSTREAM_FAILED"}


@dataclass
class _Try:
    task: Task
    number: int
    process: TaskProcess


class Execution:
    """One run, carried out by this process.

    Args:
        store: The jobs' database.
        run: A run that this process owns.
        folder: Where logs and task values of all runs are.
        project: The working directory of the tasks.
        command: Returns the command of a task; by default it runs the notebook.
        grace_seconds: How long a task has to end after each signal.
    """

    def __init__(
        self,
        store: Store,
        run: Run,
        folder: Path,
        project: Path,
        command: Command = notebook_command,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._store, self._history, self._run = store, History(store), run
        self._folder, self._project = run_folder(folder, run.id), project
        self._command, self._grace_seconds = command, grace_seconds
        self._job = Job.model_validate_json(run.definition)
        self._context = RunContext(run, self._job, self._folder / "values")
        self._states = self._context.states
        self._running: dict[str, _Try] = {}
        self._retries: dict[str, tuple[float, int]] = {}
        self._stopped = ""

    def execute_run(self) -> str:
        """Run the tasks; return the state in which the run ended.

        Ctrl-C cancels the run: its tasks are stopped before this returns.
        """
        started = time.monotonic()
        while len(self._states) < len(self._job.tasks):
            try:
                self._stop_when_asked(time.monotonic() - started)
                self._start_ready()
                self._check_running()
                time.sleep(POLL_SECONDS if self._running or self._retries else 0)
            except KeyboardInterrupt:
                self._stop("CANCELED")
        self._context.forget_secrets()
        state = self._stopped or _result(self._job, self._states)
        failed = ", ".join(sorted(key for key, task_state in self._states.items() if task_state in _FAILED))
        self._store.end(self._run.id, state, f"{failed} not successful" if failed else "")
        return state

    def _stop_when_asked(self, seconds: float) -> None:
        limit = self._job.timeout_seconds
        if limit and seconds > limit:
            self._stop("TIMEDOUT")
        if self._history.run(self._run.id).cancelled:
            self._stop("CANCELED")

    def _stop(self, state: str) -> None:
        self._stopped = self._stopped or state
        self._retries.clear()
        for attempt in self._running.values():
            attempt.process.stop(self._stopped)
        for task in self._job.tasks:
            if task.task_key not in self._running and task.task_key not in self._states:
                self._end_task(task.task_key, self._stopped)

    def _start_ready(self) -> None:
        for task in self._job.tasks:
            key = task.task_key
            if key in self._states or key in self._running:
                continue
            retry_at, number = self._retries.get(key, (0.0, 1))
            if number > 1 and time.monotonic() < retry_at:
                continue
            state = _next_state(task, self._states)
            if state == "RUN":
                self._retries.pop(key, None)
                self._start(task, number)
            elif state != "WAIT":
                self._end_task(key, state)

    def _start(self, task: Task, number: int) -> None:
        key, log = task.task_key, self._folder / f"{task.task_key}.log"
        try:
            parameters, variables = self._context.hand_over(task)
            if ignored := sorted(self._context.ignored(task)):
                _write(log, f"ignored parameters that the notebook does not declare: {', '.join(ignored)}")
            command = self._command(task, parameters)
            # Ctrl-C in between would leave a process that this one does not stop.
            with signals_delayed():
                process = TaskProcess(command, log, self._project, variables, self._grace_seconds)
                self._running[key] = _Try(task, number, process)
                self._history.begin_attempt(self._run.id, key, number, process.record)
        except (TopiclakeError, OSError) as error:
            _write(log, f"✗ {error}")
            self._end_task(key, "FAILED")
            return
        self._history.set_task(self._run.id, key, "RUNNING")

    def _check_running(self) -> None:
        for key, attempt in list(self._running.items()):
            limit = attempt.task.timeout_seconds
            if limit and attempt.process.seconds > limit:
                attempt.process.stop("TIMEDOUT")
            code = attempt.process.poll()
            if code is not None:
                del self._running[key]
                self._end_try(attempt, code)

    def _end_try(self, attempt: _Try, code: int) -> None:
        state = attempt.process.stop_reason or ("FAILED" if code else "SUCCESS")
        reason = f"exit code {code}: {attempt.process.last_line()}" if code else ""
        self._history.end_attempt(
            self._run.id,
            attempt.task.task_key,
            attempt.number,
            state=state,
            reason=reason,
            page=attempt.process.page(),
        )
        task = attempt.task
        again = state == "FAILED" or (state == "TIMEDOUT" and task.retry_on_timeout)
        has_retries = task.max_retries == -1 or attempt.number <= task.max_retries
        if again and has_retries and not self._stopped:
            # Counted from the start of the failed attempt.
            retry_at = attempt.process.started + task.min_retry_interval_millis / 1000
            self._retries[task.task_key] = retry_at, attempt.number + 1
        else:
            self._end_task(task.task_key, state)

    def _end_task(self, key: str, state: str) -> None:
        self._states[key] = state
        self._history.set_task(self._run.id, key, state)


def _write(log: Path, line: str) -> None:
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as output:
        output.write(f"{line}\n")


def run_folder(folder: Path, run: int) -> Path:
    """Return where a run keeps the logs and values of its tasks."""
    return folder / "runs" / str(run)


def _next_state(task: Task, states: dict[str, str]) -> str:
    """Return RUN, WAIT, or the state of a task that does not run."""
    if not all(key in states for key in task.upstream):
        return "WAIT"
    ended = [states[key] for key in task.upstream]
    failed = [state in _FAILED for state in ended]
    conditions = {
        "ALL_SUCCESS": all(state in _ENDED_WELL for state in ended),
        "ALL_DONE": True,
        "NONE_FAILED": not any(failed),
        "AT_LEAST_ONE_SUCCESS": not ended or "SUCCESS" in ended,
        "ALL_FAILED": all(failed),
        "AT_LEAST_ONE_FAILED": not ended or any(failed),
    }
    if conditions[task.run_if]:
        return "RUN"
    return "UPSTREAM_FAILED" if task.run_if in ("ALL_SUCCESS", "NONE_FAILED") else "EXCLUDED"


def _result(job: Job, states: dict[str, str]) -> str:
    """Return the run's state: that of the tasks on which no other depends."""
    inner = {key for task in job.tasks for key in task.upstream}
    leaves = [states[task.task_key] for task in job.tasks if task.task_key not in inner]
    if all(state in _ENDED_WELL for state in leaves):
        every = all(state in _ENDED_WELL for state in states.values())
        return "SUCCESS" if every else "SUCCESS_WITH_FAILURES"
    return "TIMEDOUT" if "TIMEDOUT" in leaves else "FAILED"
