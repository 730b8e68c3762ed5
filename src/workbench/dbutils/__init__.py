"""`dbutils` for a laptop: widgets, file system with mounts, secrets, task values, runs of notebooks.

The names of methods and arguments are those of `databricks.sdk.runtime`, so they are not snake case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from workbench.dbutils import dbfs
from workbench.dbutils.fs import FileInfo, FileSystem
from workbench.dbutils.help import Documented
from workbench.dbutils.jobs import Jobs, OutsideJobError, TaskValueError
from workbench.dbutils.library import Library
from workbench.dbutils.mounts import MountInfo, MountTable
from workbench.dbutils.notebook import Notebook, NotebookExit, WorkflowException
from workbench.dbutils.secrets import SecretMetadata, Secrets, SecretScope
from workbench.dbutils.widgets import InputWidgetNotDefined, Widgets
from workbench.host.redaction import Redactor

__all__ = [
    "DBUtils",
    "FileInfo",
    "InputWidgetNotDefined",
    "MountInfo",
    "NotebookExit",
    "OutsideJobError",
    "SecretMetadata",
    "SecretScope",
    "TaskValueError",
    "WorkflowException",
]


class DBUtils(Documented):
    """The `dbutils` of a notebook.

    Args:
        home_folder: The workbench's state folder; holds the mount table.
        project_folder: The project; `conf/secrets.yaml` and `conf/secrets/` are read there.
        parameters: Values of the run that win over the widgets' defaults.
        spark: Returns the live Spark session, or None if no session is live; never starts one.
        redactor: Remembers every secret that a notebook fetches.
        folder: Returns the folder of the notebook that is being executed.
    """

    def __init__(
        self,
        home_folder: Path,
        project_folder: Path,
        parameters: Mapping[str, str] | None = None,
        spark: Callable[[], SparkSession | None] = lambda: None,
        redactor: Redactor | None = None,
        folder: Callable[[], Path] = Path.cwd,
    ) -> None:
        redactor = redactor or Redactor()
        mounts = MountTable(home_folder / "mounts.json", redactor)
        self.widgets = Widgets(parameters or {})
        self.fs = FileSystem(mounts, dbfs.root(home_folder), spark)
        self.secrets = Secrets(project_folder / "conf", redactor)
        self.notebook = Notebook(home_folder, project_folder, folder, redactor)
        self.jobs = Jobs(redactor)
        self.library = Library()

    def __repr__(self) -> str:
        return "dbutils (fs, jobs, library, notebook, secrets, widgets)"
