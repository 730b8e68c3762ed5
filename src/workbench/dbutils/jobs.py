"""`dbutils.jobs.taskValues`: small values that one task of a job passes to later tasks."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, ClassVar

from topiclake.errors import ConfigError
from workbench.dbutils.help import Documented
from workbench.host.files import replace_json
from workbench.host.redaction import Redactor

#: Set for each task of a job run: the folder with a JSON file for each task, and the task's own key.
FOLDER_VARIABLE = "WORKBENCH_TASK_VALUES"
KEY_VARIABLE = "WORKBENCH_TASK_KEY"
#: Databricks' own limit.
MAX_BYTES = 48 * 1024
#: With a dot, so that it is no other task's file.
SECRETS_SUFFIX = ".secrets.json"
TASK_KEY = re.compile(r"[\w-]+")


class TaskValueError(ConfigError, ValueError):
    """A task or a key is unknown, or a value cannot be kept; a ValueError, as on Databricks.

    Name a task of this job that runs before, and a key that it sets.
    """

    id: ClassVar[str] = "TL-JOB-001"


class OutsideJobError(ConfigError, TypeError):
    """A task value is read outside a job run; a TypeError, as on Databricks.

    Pass `debugValue`, or run the notebook as a task of a job.
    """

    id: ClassVar[str] = "TL-JOB-002"


class TaskValues(Documented):
    """Values of the current job run, by task and key.

    Args:
        redactor: Holds the secrets. `get` adds those in the values of the other task, so that no output shows
            them.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def set(self, key: str, value: Any) -> None:  # noqa: ANN401 - whatever JSON can express
        """Keep a value for the tasks after this one; outside a job run, do nothing.

        Raises:
            TaskValueError: The key is no string, or the value is too large or not expressible as JSON.
        """
        if not isinstance(key, str):
            raise TaskValueError(
                f"the key {key!r} of a task value is not a string",
                f"pass '{key}'",
                key=key,
                reason="no_string",
            )
        try:
            text = json.dumps(value)
        except (TypeError, ValueError) as error:
            raise TaskValueError(
                f"task value '{key}' cannot be written as JSON ({error})",
                "pass text, numbers, lists or dicts",
                key=key,
                reason="no_json",
            ) from None
        size = len(text.encode())
        if size > MAX_BYTES:
            problem = f"task value '{key}' has {size} bytes as JSON, more than {MAX_BYTES}"
            raise TaskValueError(
                problem, "write it to a table, and pass its name", key=key, bytes=size, reason="size"
            )
        folder, task = os.environ.get(FOLDER_VARIABLE), os.environ.get(KEY_VARIABLE)
        if folder and task:
            file = values_file(folder, task)
            file.parent.mkdir(parents=True, exist_ok=True)
            if contained := [
                secret for secret in self._redactor.values if Redactor([secret]).redact(text) != text
            ]:
                secrets = secrets_file(folder, task)
                replace_json(secrets, sorted({*read_secrets(secrets), *contained}))
            replace_json(file, {**_read(file), key: value})

    def get(
        self,
        taskKey: str,  # noqa: N803
        key: str,
        default: Any = None,  # noqa: ANN401
        debugValue: Any = None,  # noqa: ANN401, N803
    ) -> Any:  # noqa: ANN401
        """Return a value that a task has set.

        Args:
            taskKey: The task.
            key: The value's key.
            default: Returned when the task has set no such key.
            debugValue: Returned outside a job run.

        Raises:
            OutsideJobError: This is no job run, and there is no `debugValue`.
            TaskValueError: The task has set nothing, or no such key and there is no `default`.
        """
        folder = os.environ.get(FOLDER_VARIABLE)
        if not folder:
            if debugValue is None:
                raise OutsideJobError(
                    f"task value '{key}' of task '{taskKey}' exists in a job run only",
                    "pass debugValue=<a value>",
                    task=taskKey,
                    key=key,
                )
            return debugValue
        file = values_file(folder, taskKey)
        values = _read(file)
        for secret in read_secrets(secrets_file(folder, taskKey)):
            self._redactor.remember(secret)
        if key not in values and default is None:
            keys = ", ".join(f"'{name}'" for name in sorted(values)) or "nothing"
            raise TaskValueError(
                f"task '{taskKey}' has set no value '{key}'; it has set {keys}",
                "pass default=<a value>",
                task=taskKey,
                key=key,
                allowed=tuple(sorted(values)),
            )
        return values.get(key, default)


class Jobs(Documented):
    """The functions for tasks of a job."""

    def __init__(self, redactor: Redactor) -> None:
        self.taskValues = TaskValues(redactor)


def values_file(folder: str, task: str) -> Path:
    """Return where a task's values are kept.

    Raises:
        TaskValueError: The name cannot be the name of a task.
    """
    if not TASK_KEY.fullmatch(task):
        raise TaskValueError(
            f"'{task}' is no key of a task", "use letters, digits, '-' and '_'", task=task, reason="form"
        )
    return Path(folder) / f"{task}.json"


def secrets_file(folder: str, task: str) -> Path:
    """Return the file with the secrets that a task's values hold."""
    return values_file(folder, task).with_suffix(SECRETS_SUFFIX)


def read_secrets(file: Path) -> list[str]:
    """Return the secrets of such a file; an absent file has no secrets."""
    secrets: list[str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return secrets


def _read(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        values = None
    if not isinstance(values, dict):
        problem = f"the task values in {file} are damaged"
        raise TaskValueError(problem, "run the job again", file=str(file), reason="damaged")
    return values
