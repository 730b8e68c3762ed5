"""Checks of a job beyond the form of its file; each error names file and line."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from topiclake.errors import ConfigError, TopiclakeError
from workbench.jobs.bundle_model import Job, NotebookTask, Task
from workbench.jobs.quartz import QuartzCron
from workbench.jobs.references import problem, references
from workbench.jobs.yaml_lines import KeyPath, YamlFile
from workbench.notebook.files import read_notebook
from workbench.notebook.parameters import widget_names


def check_job(file: YamlFile, key: str, job: Job) -> Job:
    """Return the job with the absolute paths of its notebooks.

    Raises:
        ConfigError: It cannot run as it is written.
    """
    key_path: KeyPath = ("resources", "jobs", key)
    _check_triggers(file, key_path, job)
    _check_dependencies(file, key_path, job)
    _check_compute(file, key_path, job)
    tasks = [_with_notebook(file, (*key_path, "tasks", at), task) for at, task in enumerate(job.tasks)]
    _check_parameters(file, key_path, job, [widgets for _, widgets in tasks])
    _check_references(file, key_path, job)
    return job.model_copy(update={"tasks": [task for task, _ in tasks]})


def upstream_of(job: Job) -> dict[str, set[str]]:
    """Return, for each task, all tasks that end before it begins."""
    direct = {task.task_key: task.upstream for task in job.tasks}
    all_upstream: dict[str, set[str]] = {}
    for key in TopologicalSorter(direct).static_order():
        all_upstream[key] = set(direct[key]).union(*(all_upstream[upstream] for upstream in direct[key]))
    return all_upstream


def _check_triggers(file: YamlFile, key_path: KeyPath, job: Job) -> None:
    triggers = [name for name in ("schedule", "trigger", "continuous") if getattr(job, name)]
    if len(triggers) > 1:
        raise file.error(
            (*key_path, triggers[1]),
            f"a job has {triggers[0]} or {triggers[1]}, not both",
            "remove one of them",
        )
    if job.schedule:
        try:
            QuartzCron.parse(job.schedule.quartz_cron_expression, job.schedule.timezone_id)
        except ConfigError as error:
            part = "timezone_id" if "time zone" in error.cause else "quartz_cron_expression"
            raise file.error((*key_path, "schedule", part), error.cause, error.remedy) from None
    if job.continuous and job.max_concurrent_runs > 1:
        raise file.error(
            (*key_path, "max_concurrent_runs"), "a continuous job has one run at a time", "set 1"
        )
    for at, task in enumerate(job.tasks):
        for name in ("depends_on", "max_retries"):
            if job.continuous and getattr(task, name):
                raise file.error((*key_path, "tasks", at, name), f"a task of a continuous job has no {name}")


def _check_dependencies(file: YamlFile, key_path: KeyPath, job: Job) -> None:
    direct: dict[str, list[str]] = {}
    for at, task in enumerate(job.tasks):
        if task.task_key in direct:
            raise file.error(
                (*key_path, "tasks", at), f"task '{task.task_key}' is defined here a second time"
            )
        direct[task.task_key] = task.upstream
    for at, task in enumerate(job.tasks):
        for position, key in enumerate(task.upstream):
            if key not in direct:
                entry_path = (*key_path, "tasks", at, "depends_on", position)
                raise file.error(
                    entry_path, f"there is no task '{key}'", f"use one of {', '.join(sorted(direct))}"
                )
    try:
        TopologicalSorter(direct).prepare()
    except CycleError as error:
        task_key, upstream, *_ = circle = error.args[1][::-1]
        at, position = list(direct).index(task_key), direct[task_key].index(upstream)
        problem = f"the tasks wait for each other: {' → '.join(circle)}"
        raise file.error((*key_path, "tasks", at, "depends_on", position), problem) from None


def _check_compute(file: YamlFile, key_path: KeyPath, job: Job) -> None:
    """Refuse a task whose cluster or environment the job does not have."""
    known = {
        "job_cluster_key": [cluster.job_cluster_key for cluster in job.job_clusters],
        "environment_key": [environment.environment_key for environment in job.environments],
    }
    for at, task in enumerate(job.tasks):
        for name, keys in known.items():
            key = getattr(task, name)
            if key and key not in keys:
                remedy = f"use one of {', '.join(keys)}" if keys else f"remove {name}"
                raise file.error((*key_path, "tasks", at, name), f"the job has no {name} '{key}'", remedy)


def _with_notebook(file: YamlFile, key_path: KeyPath, task: Task) -> tuple[Task, set[str] | None]:
    """Return a task with the absolute path of its notebook, and the names of its widgets (None: any)."""
    notebook_task = task.notebook_task
    notebook = (file.path.parent / notebook_task.notebook_path).resolve()
    entry_path = (*key_path, "notebook_task", "notebook_path")
    if not notebook.is_file():
        raise file.error(entry_path, f"there is no notebook {notebook}", "use a path relative to this file")
    resolved = NotebookTask(notebook_path=str(notebook), base_parameters=notebook_task.base_parameters)
    try:
        widgets = widget_names(read_notebook(notebook))
    except TopiclakeError as error:
        raise file.error(entry_path, error.cause, error.remedy) from None
    for name in notebook_task.base_parameters:
        if widgets is not None and name not in widgets:
            problem = f"{notebook.name} has no widget '{name}'; it has {', '.join(sorted(widgets)) or 'none'}"
            raise file.error((*key_path, "notebook_task", "base_parameters", name), problem)
    return task.model_copy(update={"notebook_task": resolved}), widgets


def _check_parameters(file: YamlFile, key_path: KeyPath, job: Job, widgets: list[set[str] | None]) -> None:
    """Refuse a job parameter that neither a widget nor a reference uses."""
    defined: set[str] = set()
    referenced = {
        name[2]
        for task in job.tasks
        for value in task.notebook_task.base_parameters.values()
        for name in references(value)
        if name[:2] == ("job", "parameters") and len(name) == 3
    }
    for at, parameter in enumerate(job.parameters):
        entry_path = (*key_path, "parameters", at, "name")
        if parameter.name in defined:
            raise file.error(entry_path, f"parameter '{parameter.name}' is defined here a second time")
        defined.add(parameter.name)
        by_widget = any(names is None or parameter.name in names for names in widgets)
        if not by_widget and parameter.name not in referenced:
            raise file.error(
                entry_path, f"no widget of the job's notebooks has the name of parameter '{parameter.name}'"
            )


def _check_references(file: YamlFile, key_path: KeyPath, job: Job) -> None:
    upstream = upstream_of(job)
    for at, parameter in enumerate(job.parameters):
        _check_text(file, (*key_path, "parameters", at, "default"), parameter.default, set(), set())
    for at, task in enumerate(job.tasks):
        for name, value in task.notebook_task.base_parameters.items():
            entry_path = (*key_path, "tasks", at, "notebook_task", "base_parameters", name)
            _check_text(file, entry_path, value, set(job.defaults), upstream[task.task_key])


def _check_text(
    file: YamlFile, key_path: KeyPath, text: str, parameters: set[str], upstream: set[str]
) -> None:
    for name in references(text):
        if reason := problem(name, parameters, upstream):
            raise file.error(key_path, reason)
