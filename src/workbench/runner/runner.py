"""Runs of a notebook from top to bottom in a fresh kernel, and their results."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

from rich.console import Console

from workbench.host.home import Home
from workbench.host.processes import signals_delayed
from workbench.host.redaction import Redactor
from workbench.kernel.messages import Context
from workbench.kernel.process import KernelProcess
from workbench.notebook.files import read_notebook
from workbench.notebook.parameters import check_parameters
from workbench.runner.execution import NotebookExecution, NotebookRunError
from workbench.runner.report import RunFacts, make_run_folder, save_run


@dataclass(frozen=True)
class NotebookRun:
    """A run that succeeded.

    Attributes:
        exit_value: The argument of `dbutils.notebook.exit`, or "".
        ipynb: The executed notebook.
        html: The executed notebook as a page.
        seconds: How long it took.
    """

    exit_value: str
    ipynb: Path
    html: Path
    seconds: float


def run_notebook(
    notebook: Path,
    parameters: Mapping[str, str],
    home: Home,
    environment: Mapping[str, str],
    console: Console | None = None,
    cell_seconds: int = 0,
    secrets: Iterable[str] = (),
    kernel: KernelProcess | None = None,
) -> NotebookRun:
    """Run a notebook and save it, executed, as .ipynb and .html, also when it fails.

    Args:
        notebook: A file in Databricks source format; its folder is the working directory.
        parameters: Values for the notebook's widgets.
        home: Where state, runs and project are.
        environment: Variables for the kernel, over those of this process.
        console: Where progress is shown; standard output by default.
        cell_seconds: Seconds after which a cell is stopped with its Spark job and streams, and the run
            fails; 0 means no limit.
        secrets: Values that are neither shown nor saved, though a parameter may hold one.
        kernel: The kernel of `early_kernel` for this notebook and its parameters; None: a new one.

    Raises:
        ConfigError, NotebookSourceError: The notebook or a parameter is wrong; nothing was started.
        NotebookRunError: A cell failed or the kernel died; the message names the saved page.
        KeyboardInterrupt, SystemExit: Ctrl-C or SIGTERM; kernel and JVM have ended, and the page is named.
    """
    source = read_notebook(notebook.absolute())
    redactor = Redactor(secrets)
    shown = {name: redactor.redact(value) for name, value in parameters.items()}
    check_parameters(source, shown)
    started, clock = datetime.now(timezone.utc), time.monotonic()
    run_folder = make_run_folder(home.runs, notebook, started)
    if kernel is None:
        kernel = _kernel(source.path, parameters, home, environment, secrets=redactor.values)
    console = console or Console()
    execution = NotebookExecution(source, kernel, console, cell_seconds)
    failure: BaseException | None = None
    # For the page. Its half second passes while the kernel starts.
    threading.Thread(target=import_module, args=["nbconvert"]).start()
    try:
        asyncio.run(execution.run())
    except (NotebookRunError, KeyboardInterrupt, SystemExit) as error:
        failure = error
    seconds = time.monotonic() - clock
    facts = RunFacts(notebook.name, shown, started, seconds, _result(failure), execution.exit_value)
    # The sender of a stop signal may repeat it: the page is saved all the same.
    with signals_delayed():
        ipynb, page = save_run(execution.notebook, facts, run_folder)
    if failure is not None:
        raise _with_page(failure, page, console) from None
    return NotebookRun(execution.exit_value, ipynb, page, seconds)


@contextmanager
def early_kernel(
    notebook: Path, parameters: Mapping[str, str], home: Home, environment: Mapping[str, str]
) -> Iterator[KernelProcess]:
    """Start a kernel with Spark for a later `run_notebook` of the same arguments; end it if none came."""
    kernel = _kernel(notebook.absolute(), parameters, home, environment, with_spark=True)
    try:
        asyncio.run(kernel.start())
        yield kernel
    finally:
        asyncio.run(kernel.stop(interrupted=True))


def _kernel(
    notebook: Path,
    parameters: Mapping[str, str],
    home: Home,
    environment: Mapping[str, str],
    *,
    secrets: tuple[str, ...] = (),
    with_spark: bool = False,
) -> KernelProcess:
    folder, project = str(home.folder.absolute()), str(home.project)
    context = Context(str(notebook), folder, project, dict(parameters), secrets, with_spark=with_spark)
    return KernelProcess(context, notebook.parent, {**os.environ, **environment})


def _with_page(failure: BaseException, page: Path, console: Console) -> BaseException:
    if isinstance(failure, NotebookRunError):
        return type(failure)(failure.cause, failure.remedy, **{**failure.fields, "page": str(page)})
    # An interruption has no text, and a job's page links what its task's output names.
    console.print(f"  saved: {page}", markup=False, highlight=False, soft_wrap=True)
    return failure


def _result(failure: BaseException | None) -> str:
    match failure:
        case None:
            return "succeeded"
        case NotebookRunError():
            return f"failed: {failure}"
        case _:
            return "interrupted"
