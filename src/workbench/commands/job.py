"""`python -m workbench job`: list, run, start, stop, history and logs."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable, Mapping
from functools import partial

import click

from topiclake.errors import ConfigError
from workbench.commands.topic_options import assignment_option
from workbench.host.home import Home
from workbench.host.parameters import parse_parameters
from workbench.jobs import triggers
from workbench.jobs.background import (
    find_scheduler,
    record_scheduler,
    start_in_background,
    stop_scheduler,
)
from workbench.jobs.bundle import load_bundle
from workbench.jobs.bundle_model import Job
from workbench.jobs.execution import run_folder
from workbench.jobs.executor import execute_run, open_store
from workbench.jobs.history import History
from workbench.jobs.notifications import notify, secret_address
from workbench.jobs.references import problem, references, shown
from workbench.jobs.run_records import ACTIVE, NewRun, Run, shown_time
from workbench.jobs.scheduler import Scheduler, launch_executor
from workbench.jobs.store import Store

_target = click.option("--target", help="One of the targets in databricks.yml, in place of the default one.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def job() -> None:
    """Run and schedule the jobs of databricks.yml."""


@job.command("list")
@_target
@_as_json
def list_jobs(target: str | None, as_json: bool) -> None:
    """List the jobs, and check their files."""
    home = Home.find()
    jobs = load_bundle(home.project, target).jobs
    if as_json:
        click.echo(
            json.dumps({key: json.loads(listed.model_dump_json()) for key, listed in jobs.items()}, indent=2)
        )
        return
    for key, listed in sorted(jobs.items()):
        tasks = " → ".join(task.task_key for task in listed.tasks)
        click.echo(f"{key:<16} {_due(listed):<36} {tasks}")


@job.command("run")
@click.argument("key", metavar="JOB")
@assignment_option
@_target
@click.pass_context
def run_job(context: click.Context, key: str, assignments: tuple[str, ...], target: str | None) -> None:
    """Run JOB now and wait for its end; exit 1 unless it succeeds. Ctrl-C cancels the run."""
    home = Home.find()
    chosen = load_bundle(home.project, target).job(key)
    parameters = parse_parameters(assignments)
    check_job_parameters(key, chosen, parameters)
    store = open_store(home)
    _mark_interrupted(home, store)
    _begin_pending(home, store)
    new = NewRun(key, chosen.model_dump_json(), chosen.max_concurrent_runs, parameters=parameters)
    run = store.begin(new)
    if run.state == "RUNNING":
        click.echo(f"run {run.id} of {key} begins; its output: python -m workbench job logs {run.id}")
        run = execute_run(home, store, run)
    for attempt in History(store).attempts(run.id):
        click.echo(f"  {attempt.task:<16} {attempt.state:<10} {attempt.page or attempt.reason}")
    click.echo(_line(run))
    if run.state != "SUCCESS":
        context.exit(130 if run.state == "CANCELED" else 1)


@job.command()
@click.option("--background", is_flag=True, help="Continue after this terminal is closed.")
@_target
def start(background: bool, target: str | None) -> None:
    """Start the scheduler: runs begin when they are due, until it is stopped.

    The dashboard shows jobs and runs meanwhile, on its tab Jobs.
    """
    from workbench.dashboard.jobs_tab import JOBS
    from workbench.dashboard.serving import dashboard_during, jobs_address

    home = Home.find()
    load_bundle(home.project, target)
    if background:
        process = start_in_background(home, ["--target", target] if target else [])
        click.echo(f"the scheduler runs (process {process.pid}, log {home.log('jobs')})")
        click.echo(f"jobs and runs  {jobs_address(home)}")
        click.echo("stop it with   python -m workbench job stop")
        return
    announcement = f"jobs and runs  {{}}#{JOBS}"
    with home.sole("job start"), dashboard_during(home, click.echo, announcement):
        store = open_store(home)
        scheduler = Scheduler(
            store,
            lambda: load_bundle(home.project, target).jobs,
            launch_executor(home.project),
            lambda text: click.echo(f"{shown_time(time.time())} {text}"),
            _failure_notification(home),
        )
        record_scheduler(home, target)
        scheduler.run_forever()


@job.command()
@click.argument("run", type=int, required=False)
def stop(run: int | None) -> None:
    """Stop the scheduler, or cancel RUN; runs outlive the scheduler."""
    home = Home.find()
    if run is None:
        click.echo("stopped: the scheduler" if stop_scheduler(home) else "no scheduler was running")
        return
    run_row = open_store(home).cancel(run)
    ended = run_row.state not in ACTIVE
    click.echo(f"run {run} had ended: {run_row.state}" if ended else f"run {run} is being cancelled")


@job.command()
@click.argument("key", metavar="[JOB]", required=False)
@click.option("-n", "--runs", default=20, show_default=True, type=click.IntRange(min=1), help="Latest runs.")
@_as_json
def history(key: str | None, runs: int, as_json: bool) -> None:
    """Show the latest runs, of JOB or of all jobs."""
    home = Home.find()
    store = open_store(home)
    _mark_interrupted(home, store)
    store_history = History(store)
    past_runs = store_history.runs(key, runs)
    if as_json:
        click.echo(
            json.dumps(
                [
                    _facts(past_run) | {"tasks": store_history.task_states(past_run.id)}
                    for past_run in past_runs
                ],
                indent=2,
            )
        )
        return
    for past_run in past_runs:
        click.echo(_line(past_run))


@job.command()
@click.argument("run", type=int)
@click.option("--task", help="Only this task's output.")
def logs(run: int, task: str | None) -> None:
    """Print what the tasks of RUN wrote."""
    home = Home.find()
    store_history = History(open_store(home))
    keys = [key for key in store_history.task_states(store_history.run(run).id) if task in (None, key)]
    if task and not keys:
        raise ConfigError(
            f"run {run} has no task '{task}'", f"python -m workbench job logs {run}", run=run, task=task
        )
    for key in keys:
        path = run_folder(home.jobs, run) / f"{key}.log"
        for line in path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []:
            click.echo(line if task else f"{key} | {line}")


def check_job_parameters(key: str, job: Job, parameters: Mapping[str, str]) -> None:
    """Refuse a parameter that the job does not have, and a value with a reference that has none.

    Raises:
        ConfigError: There is one.
    """
    for name, value in parameters.items():
        if name not in job.defaults:
            near = difflib.get_close_matches(name, job.defaults, n=1)
            names = ", ".join(sorted(job.defaults)) or "none"
            raise ConfigError(
                f"job {key} has no parameter '{name}'; it has {names}",
                f"use -p {near[0]}=…" if near else "omit it",
                job=key,
                parameter=name,
                allowed=tuple(sorted(job.defaults)),
            )
        # As for the defaults in a file: what is known when the run begins, before tasks and parameters are.
        for reference in references(value):
            if problem(reference, set(), set()):
                raise ConfigError(
                    f"parameter '{name}' of job {key}: {shown(reference)} has no value when a run begins",
                    "use plain text, or a reference that has one, such as {{job.start_time.iso_date}}",
                    job=key,
                    parameter=name,
                    reference=shown(reference),
                )


def _mark_interrupted(home: Home, store: Store) -> None:
    """End the runs whose process is gone, and send their notifications: no other process does so."""
    for run in store.mark_interrupted():
        _failure_notification(home)(History(store).run(run.id))


def _begin_pending(home: Home, store: Store) -> None:
    """Begin runs that a scheduler claimed before it ended: they would keep their jobs from running.

    A scheduler that starts at this moment begins them, too; only one process can take a run.
    """
    if find_scheduler(home):
        return
    launch = launch_executor(home.project)
    for run in History(store).active():
        if run.state == "PENDING":
            launch(run.id)
            click.echo(f"run {run.id} of {run.job} begins: its scheduler ended before it could begin it")


def _failure_notification(home: Home) -> Callable[[Run], None]:
    log, address = home.jobs / "notifications.log", secret_address(home.project)
    return partial(notify, event="on_failure", log=log, address=address)


def _due(job: Job) -> str:
    kind = triggers.kind_of(job)
    if job.schedule and kind:
        return f"{job.schedule.quartz_cron_expression} ({job.schedule.timezone_id})"
    if job.trigger and kind:
        return f"every {job.trigger.periodic.interval} {job.trigger.periodic.unit.lower()}"
    return kind or ("paused" if job.schedule or job.trigger or job.continuous else "by hand")


def _line(run: Run) -> str:
    head = f"{run.id:>5} {run.job:<16} {shown_time(run.created)} {run.trigger:<10} {run.state:<12}"
    return f"{head} {run.duration} {run.reason}".rstrip()


def _facts(run: Run) -> dict[str, object]:
    names = ("id", "job", "trigger", "due", "state", "reason", "created", "started", "ended")
    return {name: getattr(run, name) for name in names} | {"parameters": run.parameter_values}
