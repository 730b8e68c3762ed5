"""Runs notebooks as Databricks would: `python databricks_stand_in.py <project> [<address> <runtime>]`.

Standard input: [[notebook, parameters], …]. With the address of a Spark Connect server there are no JVM, no
mounts, and no variables of ours in the environment, as on serverless compute, whose runtime is such as
`client.5.0`, and on a cluster with standard access. Else it is a cluster with dedicated access.
There is no workbench here, not even for those who import it, and dbutils has only documented names. Prints a
JSON object: each notebook's exit value and how much it displayed. Mounts are noted only: what Databricks does
with /mnt is its own business, so a path below it is nowhere. A project without jars gets no Spark.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import namedtuple
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.request import url2pathname

MountInfo = namedtuple("MountInfo", ["mountPoint", "source", "encryptionType"])
FileInfo = namedtuple("FileInfo", ["path", "name", "size", "modificationTime"])


class WithoutWorkbench:
    """A finder of modules that finds no workbench, wherever it is installed."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] == "workbench":
            return None
        found: ModuleSpec | None = self._finder.find_spec(name, path, target)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


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
    """Files by their URIs, and mounts, which are noted. Serverless compute has no mounts."""

    def __init__(self, *, has_mounts: bool) -> None:
        self._has_mounts = has_mounts
        self._mounts: list[MountInfo] = []

    def mount(
        self,
        source: str,
        mount_point: str,
        encryption_type: str = "",
        owner: str | None = None,
        extra_configs: dict[str, str] | None = None,
    ) -> bool:
        assert self._has_mounts
        assert mount_point not in [mount.mountPoint for mount in self._mounts]
        self._mounts.append(MountInfo(mount_point, source, encryption_type))
        return True

    def mounts(self) -> list[MountInfo]:
        return list(self._mounts)

    def ls(self, dir: str) -> list[FileInfo]:
        return [_file_info(path) for path in sorted(_local(dir).iterdir())]

    def head(self, file: str, maxBytes: int = 65536) -> str:  # noqa: N803
        return _local(file).read_bytes()[:maxBytes].decode()

    def rm(self, dir: str, recurse: bool = False) -> bool:
        (shutil.rmtree if recurse else os.unlink)(_local(dir))
        return True


def _local(address: str) -> Path:
    assert address.startswith("file:/"), address
    return Path(url2pathname(address.removeprefix("file:")))


def _file_info(path: Path) -> FileInfo:
    status = path.stat()
    is_folder = path.is_dir()
    name = path.name + "/" * is_folder
    size = 0 if is_folder else status.st_size
    return FileInfo(path.parent.as_uri() + "/" + name, name, size, int(status.st_mtime * 1000))


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

    def __init__(self, parameters: dict[str, str], *, has_mounts: bool = True) -> None:
        self.widgets = Widgets(parameters)
        self.fs = FileSystem(has_mounts=has_mounts)
        self.secrets = Secrets()
        self.notebook = Notebook()
        self.jobs = SimpleNamespace(taskValues=TaskValues())


def cells_of(notebook: Path) -> list[str]:
    """The cells of a notebook in source format or Jupyter's: Python, or a magic such as `%sql`."""
    text = notebook.read_text(encoding="utf-8")
    if notebook.suffix == ".ipynb":
        return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    first_line, cells = text.split("\n", 1)
    assert first_line == "# Databricks notebook source"
    return [_source(cell) for cell in cells.split("\n# COMMAND ----------\n")]


def _source(cell: str) -> str:
    """A cell without its title and the comments that hide a magic from Python."""
    lines = [line for line in cell.strip("\n").split("\n") if not line.startswith("# DBTITLE")]
    return "\n".join(line.removeprefix("# MAGIC").removeprefix(" ") for line in lines)


class Display:
    """What a notebook displays: rows are computed, and a stream runs."""

    def __init__(self) -> None:
        self.shown: list[object] = []

    def __call__(
        self,
        shown: Any,
        streamName: str | None = None,  # noqa: N803
        processingTime: str | None = None,  # noqa: N803
        trigger: dict[str, Any] | None = None,
    ) -> None:
        self.shown.append(shown)
        if getattr(shown, "isStreaming", False):
            self._start(shown, streamName or f"display_{len(self.shown)}", processingTime, trigger or {})
        elif hasattr(shown, "collect"):
            shown.collect()

    @staticmethod
    def _start(rows: Any, name: str, interval: str | None, trigger: dict[str, Any]) -> None:
        from pyspark.errors import AnalysisException

        writer = rows.writeStream.format("memory").queryName(name)
        writer = writer.trigger(**(trigger or {"processingTime": interval or "1 second"}))
        try:
            query = writer.outputMode("complete").start()
        except AnalysisException:  # rows that are no counts
            query = writer.outputMode("append").start()
        if trigger:
            query.awaitTermination()


def run(
    notebook: Path, parameters: dict[str, str], spark: Any, *, has_mounts: bool = True
) -> dict[str, object]:
    """Execute a notebook's cells; return its exit value and how many things it displayed."""
    display = Display()
    names: dict[str, Any] = {
        "spark": spark,
        "dbutils": DBUtils(parameters, has_mounts=has_mounts),
        "display": display,
        "displayHTML": display.shown.append,
    }
    os.chdir(notebook.parent)
    exit_value = ""
    try:
        for cell in cells_of(notebook):
            if cell.startswith("%sql"):
                names["_sqldf"] = spark.sql(cell.removeprefix("%sql"))
                names["_sqldf"].collect()
            elif not cell.startswith("%"):
                exec(compile(cell, notebook.name, "exec"), names)
    except Exit as exited:
        exit_value = exited.args[0]
    return {"exit": exit_value, "displayed": len(display.shown)}


@contextmanager
def cluster(project: Path) -> Iterator[Any]:
    """A session as Databricks brings it, with the settings that docs/databricks.md asks for."""
    os.environ["DATABRICKS_RUNTIME_VERSION"] = "18.0"
    from topiclake.session import local_session

    jars = project / "jars"
    if not jars.exists():
        yield None
        return
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
        spark = local_session("stand-in", jars, warehouse | quiet)
        yield spark
        spark.stop()


@contextmanager
def connected(address: str, runtime: str) -> Iterator[Any]:
    """A client of Spark Connect, which has no JVM."""
    os.environ["DATABRICKS_RUNTIME_VERSION"] = runtime
    assert not [name for name in os.environ if name.startswith(("WORKBENCH_", "TOPICLAKE_"))]
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(address).getOrCreate()
    yield spark
    spark.stop()
    from pyspark import SparkContext

    assert SparkContext._jvm is None


def main() -> None:
    sys.meta_path[:] = map(WithoutWorkbench, sys.meta_path)
    project, *connection = sys.argv[1:]
    asked = json.load(sys.stdin)
    with connected(*connection) if connection else cluster(Path(project)) as spark:
        results = {
            name: run(Path(project, "notebooks", name), given, spark, has_mounts=not connection)
            for name, given in asked
        }
    assert not [name for name in sys.modules if name.partition(".")[0] == "workbench"]
    sys.__stdout__.write("\n" + json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
