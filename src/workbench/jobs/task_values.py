"""The values that tasks pass to later ones: a JSON file for each task, in a folder of the run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from workbench.dbutils.jobs import (
    FOLDER_VARIABLE,
    KEY_VARIABLE,
    SECRETS_SUFFIX,
    read_secrets,
    values_file,
)
from workbench.host.files import replace_json
from workbench.host.parameters import HandedOn
from workbench.host.redaction import Redactor
from workbench.jobs.bundle_model import Job, Task
from workbench.jobs.references import Name, problem, resolve, time_part, unresolved
from workbench.jobs.run_records import Run
from workbench.notebook.files import read_notebook
from workbench.notebook.parameters import widget_names

#: The suffix of files with parameters of tasks that hold secrets.
_PARAMETERS = ".parameters.json"

Command = Callable[[Task, dict[str, str]], Sequence[str]]


def notebook_command(task: Task, parameters: dict[str, str]) -> list[str]:
    """Return the command that runs a task's notebook."""
    options = [part for name, value in parameters.items() for part in ("-p", f"{name}={value}")]
    return [sys.executable, "-m", "workbench", "run", task.notebook_task.notebook_path, *options]


class RunContext:
    """The values of the references of one run.

    Args:
        run: The run.
        job: The job as it was when the run was asked for.
        values: The folder of the tasks' values.

    Raises:
        ConfigError: A reference in a parameter has no value.
    """

    def __init__(self, run: Run, job: Job, values: Path) -> None:
        self._run = run
        self._job = job
        self._values = values
        self.states: dict[str, str] = {}
        self._parameters: dict[str, str] = {}
        plain = job.defaults | run.parameter_values
        self._parameters = {name: resolve(text, self._value("")) for name, text in plain.items()}

    def parameters(self, task: Task) -> dict[str, str]:
        """Return the parameters of a task's notebook: the job's parameters win over the task's own.

        Raises:
            ConfigError: A reference has no value.
        """
        task_parameters = task.notebook_task.base_parameters
        resolved = {name: resolve(text, self._value(task.task_key)) for name, text in task_parameters.items()}
        ignored = self.ignored(task)
        return resolved | {name: value for name, value in self._parameters.items() if name not in ignored}

    def ignored(self, task: Task) -> set[str]:
        """Return the job's parameters that a task's notebook does not declare."""
        widgets = widget_names(read_notebook(Path(task.notebook_task.notebook_path)))
        return set() if widgets is None else self._parameters.keys() - widgets

    def hand_over(self, task: Task) -> tuple[dict[str, str], dict[str, str]]:
        """Return a task's parameters for a command line, and its environment variables.

        A parameter that holds a secret of another task's values is in a file that a variable names.

        Raises:
            ConfigError: A reference has no value.
        """
        parameters = self.parameters(task)
        self._values.mkdir(mode=0o700, parents=True, exist_ok=True)
        variables = {FOLDER_VARIABLE: str(self._values), KEY_VARIABLE: task.task_key}
        files = self._values.glob(f"*{SECRETS_SUFFIX}")
        redactor = Redactor(secret for file in files for secret in read_secrets(file))
        hidden = {name: value for name, value in parameters.items() if redactor.redact(value) != value}
        if hidden:
            file = self._values / f"{task.task_key}{_PARAMETERS}"
            variables |= HandedOn(hidden, redactor.values).save(file)
        return {name: value for name, value in parameters.items() if name not in hidden}, variables

    def forget_secrets(self) -> None:
        """Remove the secrets from the tasks' values, at the end of the run."""
        for file in self._values.glob(f"*{SECRETS_SUFFIX}"):
            values = file.with_name(f"{file.name.removesuffix(SECRETS_SUFFIX)}.json")
            replace_json(
                values, Redactor(read_secrets(file)).redact_all(json.loads(values.read_text("utf-8")))
            )
            file.unlink()
        for file in self._values.glob(f"*{_PARAMETERS}"):
            file.unlink()

    def _value(self, task: str) -> Callable[[Name], object]:
        plain = {
            ("job", "id"): self._run.job,
            ("job", "name"): self._job.name or self._run.job,
            ("job", "run_id"): str(self._run.id),
            ("job", "repair_count"): "0",
            ("job", "trigger", "type"): self._run.trigger,
            ("task", "name"): task,
        }

        def value(name: Name) -> object:
            if text := problem(name, self._parameters, self.states):
                raise unresolved(name, text)
            match name:
                case ("job", "parameters", parameter):
                    return self._parameters[parameter]
                case ("job", "start_time", part):
                    return time_part(_utc(self._run.started or self._run.created), part)
                case ("job", "trigger", "time", part):
                    return time_part(_utc(self._run.due or self._run.created), part)
                case ("tasks", other, "result_state"):
                    return self.states[other].lower()
                case ("tasks", other, "values", key):
                    return self._task_value(name, other, key)
                case _:
                    return plain[name]

        return value

    def _task_value(self, name: Name, task: str, key: str) -> object:
        file = values_file(str(self._values), task)
        try:
            values = json.loads(file.read_text("utf-8"))
        except FileNotFoundError:
            raise unresolved(name, f"task '{task}' has left no values") from None
        except ValueError as error:
            raise unresolved(name, f"{self._values / task}.json is not JSON ({error})") from None
        if key not in values:
            raise unresolved(name, f"task '{task}' has left {', '.join(sorted(values)) or 'none'}")
        stored: object = values[key]
        return stored


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
