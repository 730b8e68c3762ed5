"""`dbutils.notebook`: the end of a notebook, and the run of another one."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, NoReturn

from topiclake.errors import ConfigError, TopiclakeError
from workbench.dbutils.help import Documented
from workbench.host.files import replace_json
from workbench.host.redaction import Redactor
from workbench.notebook.inclusion import find_notebook

#: The other run gets this long to end its kernel and to save its page.
END_SECONDS = 30.0


class NotebookExit(BaseException):
    """Ends the run with a value. Not an Exception: `except Exception` in a cell must not stop an exit."""

    def __init__(self, value: str) -> None:
        self.value = value
        super().__init__(value)


class WorkflowException(TopiclakeError):  # noqa: N818 - Databricks' name
    """The run of another notebook failed, or took too long.

    Open the saved page of that run.
    """

    id: ClassVar[str] = "TL-NOTEBOOK-005"


class Notebook(Documented):
    """The notebook's end, and runs of others.

    Args:
        home_folder: The workbench's state; each run gets a folder there.
        project_folder: The project.
        folder: Returns the folder of the notebook that is being executed.
        redactor: Holds the secrets, which other notebooks must not show either.
    """

    def __init__(
        self, home_folder: Path, project_folder: Path, folder: Callable[[], Path], redactor: Redactor
    ) -> None:
        self._home_folder = home_folder
        self._project_folder = project_folder
        self._folder = folder
        self._redactor = redactor

    def exit(self, value: str) -> NoReturn:
        """End the run at once, as a success; the cells below are not executed."""
        raise NotebookExit(str(value))

    def run(self, path: str, timeout_seconds: int, arguments: Mapping[str, str] | None = None) -> str:
        """Run another notebook with a separate kernel, and return the argument of its `exit`.

        Args:
            path: Relative to this notebook; `.py` and `.ipynb` are optional.
            timeout_seconds: Seconds after which the other run is stopped; 0 means no limit.
            arguments: Values for its widgets.

        Raises:
            ConfigError: There is no such notebook, or an argument is no string.
            WorkflowException: It failed, or did not end in time.
        """
        values = dict(arguments or {})
        for name, value in values.items():
            if not isinstance(value, str):
                problem = f"argument '{name}' of {path} is {value!r}, not a string"
                raise ConfigError(problem, f"pass '{value}'", notebook=path, argument=name, found=value)
        notebook = find_notebook(path, self._folder())
        request = {
            "notebook": str(notebook),
            "arguments": values,
            "home_folder": str(self._home_folder),
            "project_folder": str(self._project_folder),
            "secrets": self._redactor.values,
        }
        with tempfile.TemporaryDirectory(prefix="workbench-run-") as folder:
            file = Path(folder) / "run.json"
            replace_json(file, request)
            _execute(file, notebook, timeout_seconds)
            response = json.loads(file.read_text(encoding="utf-8"))
        if "error" in response:
            raise WorkflowException(response["error"], notebook=notebook.name)
        return str(response["exit_value"])


def _execute(file: Path, notebook: Path, timeout_seconds: float) -> None:
    """Run a notebook in a process that shows its progress here and writes its result into the file."""
    # In this kernel's process group: Ctrl-C reaches it too, and it ends its own kernel then.
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench.runner.child", str(file)], stdin=subprocess.DEVNULL
    )
    try:
        status = process.wait(timeout_seconds or None)
    except subprocess.TimeoutExpired:
        process.terminate()
        raise WorkflowException(
            f"{notebook.name} did not end within {timeout_seconds} s and was stopped",
            "pass a larger timeout_seconds",
            notebook=notebook.name,
            seconds=timeout_seconds,
        ) from None
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        process.kill()
        process.wait()
    if status:
        raise WorkflowException(
            f"the run of {notebook.name} ended with exit code {status}",
            "read the output above",
            notebook=notebook.name,
            status=status,
        )
