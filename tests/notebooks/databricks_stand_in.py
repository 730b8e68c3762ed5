"""Runs notebooks as Databricks would: `python databricks_stand_in.py <project>`.

Standard input: [[notebook, parameters], …].
There is no workbench here, not even for those who import it, and dbutils has only documented names. Prints a
JSON object: each notebook's exit value and how much it displayed. Mounts are noted only: what Databricks does
with /mnt is its own business, so paths of tables are given in full. A project without jars gets no Spark.
"""

from __future__ import annotations

import json
import os
import sys
from collections import namedtuple
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

MountInfo = namedtuple("MountInfo", ["mountPoint", "source", "encryptionType"])


class NoWorkbench:
    """Finds no workbench, wherever it is installed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] == "workbench":
            raise ModuleNotFoundError(f"Databricks has no {name}", name=name)
        return None


class Exit(BaseException):
    """`dbutils.notebook.exit` ends a notebook at once."""


class Widgets:
    """A job's parameters win over the defaults, and are there without a widget, too."""

    def __init__(self, parameters: dict[str, str]) -> None:
        self._parameters = parameters
        self._values: dict[str, str] = {}

    def text(self, name: str, defaultValue: str, label: str | None = None) -> None:  # noqa: N803
        self._values[name] = self._parameters.get(name, defaultValue)

    def dropdown(
        self,
        name: str,
        defaultValue: str,  # noqa: N803
        choices: list[str],
        label: str | None = None,
    ) -> None:
        assert defaultValue in choices
        self.text(name, defaultValue, label)

    combobox = dropdown

    def get(self, name: str) -> str:
        return self.getAll()[name]

    def getAll(self) -> dict[str, str]:  # noqa: N802
        return self._parameters | self._values


class FileSystem:
    """Mounts, noted."""

    def __init__(self) -> None:
        self._mounts: list[MountInfo] = []

    def mount(
        self,
        source: str,
        mount_point: str,
        encryption_type: str = "",
        owner: str | None = None,
        extra_configs: dict[str, str] | None = None,
    ) -> bool:
        assert mount_point not in [mount.mountPoint for mount in self._mounts]
        self._mounts.append(MountInfo(mount_point, source, encryption_type))
        return True

    def mounts(self) -> list[MountInfo]:
        return list(self._mounts)


class Secrets:
    """Secrets of the environment's variables."""

    def get(self, scope: str, key: str) -> str:
        secret = os.environ.get(f"TOPICLAKE_SECRET_{scope}_{key}".upper().replace("-", "_"))
        if secret is None:
            raise KeyError(f"Secret does not exist with scope: {scope} and key: {key}")
        return secret


class Notebook:
    """The end of a notebook."""

    def exit(self, value: str) -> None:
        raise Exit(value)


class TaskValues:
    """Outside a job, what is set is gone."""

    def set(self, key: str, value: object) -> None:
        json.dumps(value)


class DBUtils:
    """What the notebooks use of Databricks' utilities."""

    def __init__(self, parameters: dict[str, str]) -> None:
        self.widgets = Widgets(parameters)
        self.fs = FileSystem()
        self.secrets = Secrets()
        self.notebook = Notebook()
        self.jobs = SimpleNamespace(taskValues=TaskValues())


def python_cells(notebook: Path) -> list[str]:
    """The code of a notebook in source format or Jupyter's, without text and magics."""
    text = notebook.read_text(encoding="utf-8")
    if notebook.suffix == ".ipynb":
        cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        return [cell for cell in cells if not cell.startswith("%")]
    head, *cells = text.split("\n# COMMAND ----------\n")
    assert head.startswith("# Databricks notebook source\n")
    return [
        "\n".join(line for line in cell.split("\n") if not line.startswith("# MAGIC"))
        for cell in [head, *cells]
    ]


def run(notebook: Path, parameters: dict[str, str], spark: Any) -> dict[str, object]:
    """Execute a notebook's cells; return its exit value and how many things it displayed."""
    displayed: list[object] = []

    def display(shown: Any) -> None:
        displayed.append(shown.collect() if hasattr(shown, "collect") else list(shown))

    names = {
        "spark": spark,
        "dbutils": DBUtils(parameters),
        "display": display,
        "displayHTML": displayed.append,
    }
    os.chdir(notebook.parent)
    try:
        for cell in python_cells(notebook):
            exec(compile(cell, notebook.name, "exec"), names)
    except Exit as exited:
        return {"exit": exited.args[0], "displayed": len(displayed)}
    return {"exit": "", "displayed": len(displayed)}


def main() -> None:
    sys.meta_path.insert(0, NoWorkbench)
    os.environ["DATABRICKS_RUNTIME_VERSION"] = "18.0"
    project, asked = Path(sys.argv[1]), json.load(sys.stdin)
    # Databricks brings the session; its settings are those that docs/databricks.md asks for.
    from topiclake.session import local_session

    with TemporaryDirectory() as folder:
        warehouse = {"spark.sql.warehouse.dir": f"{folder}/warehouse", "spark.local.dir": folder}
        # Compiled code would cost the few rows of each notebook more than it saves.
        quiet = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            # One task and one state store do for them, too.
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.adaptive.enabled": "false",
        }
        jars = project / "jars"
        spark = local_session("stand-in", jars, warehouse | quiet) if jars.exists() else None
        results = {name: run(project / "notebooks" / name, given, spark) for name, given in asked}
        if spark is not None:
            spark.stop()
    assert not [name for name in sys.modules if name.partition(".")[0] == "workbench"]
    sys.__stdout__.write("\n" + json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
