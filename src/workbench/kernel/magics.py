"""The magics of a notebook: `%run`, `%sql`, `%sh`, `%fs` and `%pip`."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from IPython.core.magic import MAGIC_NO_VAR_EXPAND_ATTR
from pyspark.sql import SparkSession

from topiclake.errors import ConfigError, TopiclakeError
from workbench.dbutils import DBUtils
from workbench.dbutils.help import method_of
from workbench.dbutils.widgets import with_values
from workbench.display.show import Display
from workbench.notebook.cells import CellLanguages
from workbench.notebook.files import read_notebook
from workbench.notebook.inclusion import check_cycle, find_notebook, read_run
from workbench.notebook.source import Cell

Shell: TypeAlias = Any  # IPython carries only half of its types

#: A parameter marker of Spark, or a similar text in a literal or comment: an additional value does no harm.
PARAMETER = re.compile(r":([A-Za-z_]\w*)")
#: `uninstall` is not among them: the workbench needs the installed packages.
PIP_COMMANDS = ("install", "list", "show", "freeze")


class CommandError(TopiclakeError):
    """A shell or pip ended with another exit code than 0.

    Read the output of the command above the error.
    """

    id: ClassVar[str] = "TL-NOTEBOOK-006"


class Magics:
    """The magics of one kernel.

    Args:
        shell: The kernel's shell.
        dbutils: The `dbutils` of the notebook.
        display: Shows results.
        start_spark: Returns the notebook's session.
        chain: The notebook that is being executed, and below it those that include it; `%run` changes it.
    """

    def __init__(
        self,
        shell: Shell,
        dbutils: DBUtils,
        display: Display,
        start_spark: Callable[[], SparkSession],
        chain: list[Path],
    ) -> None:
        self._shell = shell
        self._dbutils = dbutils
        self._display = display
        self._start_spark = start_spark
        self._chain = chain

    def install(self) -> None:
        """Give them to the shell, in place of IPython's own, and `%sql` as Databricks' editor has it."""
        languages = CellLanguages(lambda name: self._shell.find_line_magic(name) is not None)
        self._shell.input_transformers_cleanup.append(languages)
        for function in (Magics.run, Magics.sql, Magics.shell, Magics.fs):
            # Else IPython inserts the value of a variable in the place of `$name`.
            setattr(function, MAGIC_NO_VAR_EXPAND_ATTR, True)
        for name, kind, magic in (
            ("run", "line", self.run),
            ("sql", "cell", self.sql),
            ("sh", "line_cell", self.shell),
            ("fs", "line", self.fs),
            ("pip", "line", self.pip),
        ):
            self._shell.register_magic_function(magic, kind, name)

    def run(self, line: str) -> None:
        """Execute the cells of another notebook here: `%run ./other $name="value"`.

        Raises:
            ConfigError: It does not exist.
            NotebookSourceError: It cannot run here, or it includes itself.
        """
        above = self._chain[-1]
        path, values = read_run(f"%run {line.strip()}", str(above))
        included = find_notebook(path, above.parent, str(above))
        check_cycle((*self._chain, included))
        self._chain.append(included)
        try:
            with with_values(self._dbutils.widgets, values):
                for cell in read_notebook(included).runnable:
                    self._execute(cell, included)
        finally:
            self._chain.pop()

    def sql(self, line: str, cell: str) -> None:
        """Run a `%%sql` cell with the widgets' values as `:name`, show its result and keep it as `_sqldf`."""
        query = f"{line}\n{cell}" if line.strip() else cell
        values = self._dbutils.widgets.getAll()
        parameters = {name: values[name] for name in PARAMETER.findall(query) if name in values}
        spark = self._start_spark()
        frame = spark.sql(query, args=parameters) if parameters else spark.sql(query)
        self._shell.user_ns["_sqldf"] = frame
        if frame.columns:
            self._display(frame)

    def shell(self, line: str, cell: str = "") -> None:
        """Run shell commands with bash.

        As on Databricks: with `-e` the first command that fails ends them and fails the cell; without it no
        exit code matters.

        Raises:
            CommandError: A command failed, with `-e`.
        """
        strict = line.split()[:1] == ["-e"]
        script = f"{line.strip().removeprefix('-e') if strict else line}\n{cell}"
        status = _run(["bash", *(["-e"] if strict else []), "-c", script])
        if strict and status:
            raise CommandError(
                f"the shell ended with exit code {status}",
                "use %sh without -e, if that is no failure",
                status=status,
                command="sh",
            )

    def fs(self, line: str) -> None:
        """Call a method of `dbutils.fs` and show its result: `%fs ls /mnt/x`; alone, list the methods.

        Raises:
            ConfigError: There is no such method, or it has other arguments.
        """
        if not line.strip():
            self._dbutils.fs.help()
            return
        name, *parts = shlex.split(line)
        method = method_of(self._dbutils.fs, name)
        options = {"recurse": "true"} if "-r" in parts else {}
        try:
            bound = inspect.signature(method).bind(*[part for part in parts if part != "-r"], **options)
            arguments = {key: _argument(method, key, part) for key, part in bound.arguments.items()}
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"%fs {line.strip()}: {error}", f'dbutils.fs.help("{name}")', command="fs", line=line.strip()
            ) from None
        result = method(**arguments)
        if isinstance(result, list):
            self._display(result)
        else:
            sys.stdout.write(f"{result}\n")

    def pip(self, line: str) -> None:
        """Run pip for this Python; what is installed already keeps its version.

        Raises:
            CommandError: pip failed.
            ConfigError: It is a command that would change packages of the workbench.
        """
        parts = shlex.split(line)
        command = next((part for part in parts if not part.startswith("-")), "")
        if command not in PIP_COMMANDS:
            raise ConfigError(
                f"%pip {line.strip()} does not run in the workbench",
                f"use one of {', '.join(PIP_COMMANDS)}",
                command="pip",
                line=line.strip(),
                allowed=tuple(PIP_COMMANDS),
            )
        with tempfile.NamedTemporaryFile("w", prefix="workbench-pip-", suffix=".txt") as pins:
            if command == "install":
                pins.writelines(
                    f"{package.name}=={package.version}\n" for package in importlib.metadata.distributions()
                )
                pins.flush()
                parts += ["--constraint", pins.name]
            status = _run([sys.executable, "-m", "pip", *parts])
        if status:
            raise CommandError(
                f"pip ended with exit code {status}",
                "use another version; installed packages are not changed",
                status=status,
                command="pip",
            )
        if command == "install":
            sys.stdout.write(
                f"Installed into {sys.prefix}, for every notebook; a line in pyproject.toml keeps it.\n"
            )

    def _execute(self, cell: Cell, notebook: Path) -> None:
        """Execute a cell of another notebook, so that errors name that file and its lines."""
        code = self._shell.transform_cell(cell.code)
        try:
            parsed = ast.parse(code, str(notebook))
        except SyntaxError as error:
            error.lineno = cell.line - 1 + (error.lineno or 1)
            raise
        tree = self._shell.transform_ast(parsed)
        ast.increment_lineno(tree, cell.line - 1)
        exec(compile(tree, str(notebook), "exec", dont_inherit=True), self._shell.user_ns)  # noqa: S102


def _run(command: list[str]) -> int:
    sys.stdout.flush()
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def _argument(method: Callable[..., object], name: str, text: str) -> str | bool | int:
    """Read a word of `%fs` as what the method's own default is: a switch, a number or a text."""
    default = inspect.signature(method).parameters[name].default
    if isinstance(default, bool):
        return text == "true"
    return int(text) if isinstance(default, int) else text
