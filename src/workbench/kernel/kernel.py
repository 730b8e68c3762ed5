"""The Python kernel that executes notebooks: `python -m workbench.kernel.kernel -f <connection file>`.

It has what a Databricks notebook has: `spark`, `sql`, `dbutils`, `display`, `displayHTML` and the magics.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import os
import select
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import psutil
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from pyspark.sql import DataFrame, SparkSession
from traitlets import Type, default

from workbench.dbutils import DBUtils, NotebookExit
from workbench.dbutils.secrets import secrets_of_environment
from workbench.dbutils.widgets import unused_parameters
from workbench.display.show import Display
from workbench.display.table import Redaction
from workbench.host.installation import jars_folder
from workbench.host.processes import has_ended
from workbench.host.redaction import Redactor
from workbench.kernel.context import pop_context
from workbench.kernel.failures import failure_report
from workbench.kernel.jobs import CellJobs, is_interrupt
from workbench.kernel.magics import Magics
from workbench.kernel.messages import EXIT_MIME_TYPE, FAILURE_MESSAGE, Context, RedactingSession
from workbench.kernel.session import NotebookSession, needs_spark
from workbench.notebook.source import NotebookSourceError
from workbench.services.query_watch import QueryWatch, reports_file

SPARK_STARTER = "_workbench_start_spark"
Shell: TypeAlias = Any  # IPython carries only half of its types


class NotebookShell(ZMQInteractiveShell):
    """The shell, which also reports a failure to the runner in a form that a terminal can show."""

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: Any) -> None:  # noqa: ANN401 - a list, though IPython says str
        hook: Any = self.displayhook
        hook.session.send(hook.pub_socket, FAILURE_MESSAGE, failure_report(self, evalue), hook.parent_header)
        # The frames of a waiting py4j, or of IPython reading a cell, do not help the user.
        if is_interrupt(evalue):
            stb = ["KeyboardInterrupt: the cell was interrupted"]
        elif issubclass(etype, NotebookSourceError):
            stb = [f"{etype.__name__}: {evalue}"]
        super()._showtraceback(etype, evalue, stb)  # type: ignore[no-untyped-call]


class SparkStarter(ast.NodeTransformer):
    """Puts a call that starts Spark in front of a cell that needs it and has none.

    The call is part of the cell, so that a failed start is a failed cell.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def visit_Module(self, node: ast.Module) -> ast.Module:
        """Change a cell's code."""
        if node.body and "spark" not in self._shell.user_ns and needs_spark(node):
            at = 0
            while at < len(node.body) - 1 and _belongs_on_top(node.body[at]):
                at += 1
            call = ast.parse(f"{SPARK_STARTER}()").body[0]
            for part in ast.walk(call):
                ast.copy_location(part, node.body[at])
            node.body.insert(at, call)
        return node


def _belongs_on_top(node: ast.stmt) -> bool:
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


class Workspace:
    """The names, magics and functions that a kernel provides to its notebook."""

    def __init__(self, context: Context, shell: Shell, redactor: Redactor) -> None:
        home, project = Path(context.home_folder), Path(context.project_folder)
        self._shell = shell
        # Secrets of the environment, too: a shell in a cell can print them without `dbutils.secrets`.
        for secret in (*context.secrets, *secrets_of_environment()):
            redactor.remember(secret)
        notebooks = [Path(context.notebook)]
        self.session = NotebookSession(notebooks[0].stem, home, jars_folder(), self._on_spark_start)
        self.dbutils = DBUtils(
            home,
            project,
            context.parameters,
            lambda: self.session.live,
            redactor,
            lambda: notebooks[-1].parent,
        )
        redaction = Redaction(redactor.redact, redactor.open_end)
        self.display = Display(redaction, self.dbutils.fs.mounts, draws_plotly=context.in_lab)
        self.jobs = CellJobs(lambda: self.session.live)
        self._watch = QueryWatch(reports_file(home), notebooks[0].stem, redactor.redact)
        self.magics = Magics(shell, self.dbutils, self.display, self.start_spark, notebooks)

    def install(self) -> None:
        """Put names, the magics and the exit into the shell."""
        shell = self._shell
        names = {"dbutils": self.dbutils, "display": self.display, "displayHTML": self.display.html}
        shell.push({**names, "sql": self.sql, SPARK_STARTER: self.start_spark}, interactive=False)
        shell.events.register("pre_run_cell", self.jobs.before_cell)
        shell.events.register("post_run_cell", self.jobs.after_cell)
        shell.ast_transformers.append(SparkStarter(shell))
        self.magics.install()
        shell.events.register("pre_run_cell", lambda info: self.display.begin_cell(info.cell_id))
        shell.set_custom_exc((NotebookExit,), _publish_exit)

    def start_spark(self) -> SparkSession:
        """Return the notebook's `spark`; start it if the notebook has none."""
        spark = self._shell.user_ns.get("spark") or self.session.start()
        self._shell.push({"spark": spark}, interactive=False)
        return spark

    def sql(self, sqlQuery: str, *args: Any, **kwargs: Any) -> DataFrame:  # noqa: N803, ANN401 - Spark's own
        """Run SQL: what a notebook knows as `sql` is `spark.sql`, which starts Spark where it is needed."""
        return self.start_spark().sql(sqlQuery, *args, **kwargs)

    def end_cells(self) -> None:
        """Wait after the last cell for displayed streams, and name the parameters that no widget took.

        Raises:
            DisplayError: A stream failed.
        """
        self.display.end_cells()
        if names := unused_parameters(self.dbutils.widgets):
            sys.stdout.write(f"no widget has the parameter {', '.join(names)}\n")

    def stop(self) -> None:
        """Stop the streams that are shown, then Spark and its JVM."""
        self.display.stop_streams()
        self._watch.end()
        self.session.stop()

    def _on_spark_start(self, spark: SparkSession) -> None:
        self.jobs.group(spark)
        self.dbutils.fs.refreshMounts()
        self._watch.begin(spark)


def _publish_exit(
    shell: Shell,
    etype: type[BaseException],
    value: NotebookExit,
    trace: TracebackType,
    tb_offset: int | None = None,
) -> None:
    text = f"Notebook exited: {value.value}"
    shell.display_pub.publish({EXIT_MIME_TYPE: {"value": value.value}, "text/plain": text})


class NotebookKernel(IPythonKernel):
    """IPython's kernel with the shell above, which stops Spark before it ends."""

    shell_class = Type(NotebookShell)
    workspace: Workspace | None = None

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:
        """Stop Spark and its JVM, then the kernel.

        Spark is stopped here and not after the last cell, since ipykernel ends its children itself, with
        growing pauses. For ipykernel, a JVM that has ended but was not waited for still runs.
        """
        if self.workspace is not None:
            await asyncio.to_thread(self.workspace.stop)
        stopped: dict[str, Any] = super().do_shutdown(restart)  # type: ignore[no-untyped-call]
        return stopped

    def _process_children(self) -> list[psutil.Process]:
        # Children that have ended but were not waited for would hold up the shutdown for ten seconds.
        children = super()._process_children()  # type: ignore[no-untyped-call]
        return [child for child in children if not has_ended(child)]


class NotebookKernelApp(IPKernelApp):
    """The kernel process."""

    kernel_class: Any = Type(NotebookKernel, klass="ipykernel.kernelbase.Kernel").tag(config=True)

    @default("session")
    def _default_session(self) -> RedactingSession:
        return RedactingSession(parent=self, username="kernel")

    def init_kernel(self) -> None:
        """Make the kernel, and add the names and magics of a notebook."""
        super().init_kernel()  # type: ignore[no-untyped-call]
        shell = self.kernel.shell
        shell.run_line_magic("colors", "NoColor")
        shell.events.register("post_run_cell", lambda result: self._release_streams())
        # As on Databricks: the times that Python gets from Spark are then in the zone that Spark shows.
        os.environ["TZ"] = "UTC"
        time.tzset()
        context = pop_context()
        _silence_log()
        self.kernel.workspace = Workspace(context, shell, RedactingSession.redactor)
        self.kernel.workspace.install()
        if context.with_spark:
            # A cell that needs Spark repeats a failed start, and shows why it failed.
            with contextlib.suppress(Exception):
                self.kernel.workspace.start_spark()

    def _release_streams(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            _await_pipe(stream)
            stream.flush()
        for name, text in self.session.release():
            content = {"name": name, "text": text}
            self.session.send(self.iopub_socket, "stream", content, self.kernel.get_parent())


def _silence_log() -> None:
    """Stop ipykernel's copies of the output of subprocesses in the kernel's log.

    The copies do not pass the redaction, and the runner shows the log when the kernel dies.
    """
    with open(os.devnull, "wb") as null_file:
        for stream in (sys.stdout, sys.stderr):
            copy = getattr(stream, "_original_stdstream_copy", None)
            if copy is not None:
                os.dup2(null_file.fileno(), copy)


def _await_pipe(stream: object, seconds: float = 1.0) -> None:
    """Wait until the output of subprocesses and the JVM to a file descriptor has arrived in its stream."""
    pipe = getattr(stream, "_fid", None)
    deadline = time.monotonic() + seconds
    while pipe is not None and time.monotonic() < deadline and select.select([pipe], [], [], 0)[0]:
        time.sleep(0.005)
    time.sleep(0.005)  # the text is on its way from ipykernel's thread


def main() -> None:
    """Serve until the runner sends the shutdown request."""
    app: Any = NotebookKernelApp.instance()
    app.initialize()
    app.start()
    # Python's end looks for garbage several times, a third of a second with all modules of a notebook.
    gc.freeze()


if __name__ == "__main__":
    main()
