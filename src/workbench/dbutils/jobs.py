"""`dbutils.jobs`: values that a task of a job leaves for later ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

from topiclake.errors import ConfigError
from workbench.jobs.task_values import VALUES_VARIABLE, write_task_value

#: Databricks takes no more.
MOST_BYTES = 48 * 1024


class TaskValues:
    """`dbutils.jobs.taskValues`."""

    def set(self, key: str, value: object) -> None:
        """Leave a value; outside of a job, nothing happens.

        Raises:
            ConfigError: JSON cannot hold it, or not in 48 KiB.
        """
        try:
            size = len(json.dumps(value).encode())
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"task value '{key}' cannot be JSON ({error})", "a str, number, list or dict"
            ) from None
        if size > MOST_BYTES:
            raise ConfigError(
                f"task value '{key}' takes {size} bytes as JSON, of {MOST_BYTES}", "a path to it"
            )
        write_task_value(key, value)

    def get(
        self,
        taskKey: str,  # noqa: N803
        key: str,
        default: object = None,
        debugValue: object = None,  # noqa: N803
    ) -> object:
        """Return the value that a task left, else `default`; outside of a job, `debugValue`.

        Raises:
            TypeError: Outside of a job, without `debugValue`.
            ValueError: There is neither a value nor a default.
        """
        folder = os.environ.get(VALUES_VARIABLE)
        if not folder:
            if debugValue is None:
                raise TypeError("Must pass debugValue when calling get outside of a job context.")
            return debugValue
        file = Path(folder) / f"{taskKey}.json"
        values: dict[str, object] = json.loads(file.read_text("utf-8")) if file.exists() else {}
        if key not in values and default is None:
            raise ValueError(f"task '{taskKey}' has left no value '{key}', and there is no default")
        return values.get(key, default)


class Jobs:
    """`dbutils.jobs`."""

    def __init__(self) -> None:
        self.taskValues = TaskValues()
