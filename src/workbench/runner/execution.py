"""One execution of a notebook: cell by cell in a fresh kernel, until the end, an exit or a failure."""

from __future__ import annotations

import asyncio
import contextlib
import linecache
import signal
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from rich.console import Console

from topiclake.errors import TopiclakeError
from workbench.kernel.messages import EXIT_MIME_TYPE
from workbench.kernel.process import KernelProcess
from workbench.notebook.conversion import to_notebook
from workbench.notebook.source import Cell, NotebookSource
from workbench.runner.client import Client
from workbench.runner.progress import Progress

STARTUP_SECONDS = 120
#: A Java exception carries hundreds of lines of the JVM's stack; the first ones name the cause.
MESSAGE_LINES = 8
#: How long the kernel's last messages may be on their way when its process has ended.
LAST_OUTPUT_SECONDS = 1.0


class NotebookRunError(TopiclakeError):
    """A notebook's run did not succeed; the fields `trace` and `page` are shown below its text.

    Open the saved page of the run.
    """

    id: ClassVar[str] = "TL-NOTEBOOK-002"

    def __str__(self) -> str:
        page = self.fields.get("page")
        return f"{super().__str__()}{self.fields.get('trace', '')}" + (f"\n  saved: {page}" if page else "")


class CellFailedError(NotebookRunError):
    """A cell raised an exception.

    Read the exception, and correct the cell.
    """

    id: ClassVar[str] = "TL-NOTEBOOK-003"


class KernelDiedError(NotebookRunError):
    """The kernel's process ended, or did not start.

    Look for a lack of memory, or for `kill`. Then run the notebook again.
    """

    id: ClassVar[str] = "TL-NOTEBOOK-004"


class NotebookExecution:
    """Executes a notebook once.

    Args:
        source: The notebook.
        kernel: Its kernel, which may have been started.
        console: Where progress is shown.
        cell_seconds: Seconds after which a cell, and the run with it, is stopped; 0 means no limit.

    Attributes:
        notebook: The notebook with the outputs of the cells executed so far.
        exit_value: The argument of `dbutils.notebook.exit`, or "".
    """

    def __init__(
        self,
        source: NotebookSource,
        kernel: KernelProcess,
        console: Console,
        cell_seconds: int = 0,
    ) -> None:
        self._source = source
        self._kernel = kernel
        self._progress = Progress(console, len(source.cells))
        self._cell_seconds = cell_seconds
        self._timed_out = False
        self._client: Client | None = None
        self._signal: signal.Signals | None = None
        self.notebook = to_notebook(source)
        self.exit_value = ""

    async def run(self) -> None:
        """Execute the cells, and end all processes of the kernel.

        Raises:
            CellFailedError: A cell raised an exception or took too long, or a stream that is shown failed.
            KernelDiedError: The kernel's process ended.
            KeyboardInterrupt: SIGINT came.
            SystemExit: SIGTERM came.
        """
        stopped = asyncio.Event()
        cells = asyncio.ensure_future(self._execute_cells())
        waiting = asyncio.ensure_future(stopped.wait())
        with self._signals_to(stopped), contextlib.closing(self._progress):
            try:
                await asyncio.wait({cells, waiting}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._progress.end(success=cells.done() and cells.exception() is None)
                last = asyncio.ensure_future(self._receive_last_output(cells))
                await self._kernel.stop(interrupted=self._timed_out or not cells.done())
                await asyncio.wait({last}, timeout=LAST_OUTPUT_SECONDS)
                for task in (cells, waiting, last):
                    task.cancel()
                await asyncio.gather(cells, waiting, last, return_exceptions=True)
                if self._client is not None and self._client.kc is not None:
                    self._client.kc.stop_channels()
        if self._signal is signal.SIGINT:
            raise KeyboardInterrupt
        if self._signal is not None:
            raise SystemExit(128 + self._signal)
        cells.result()

    @contextlib.contextmanager
    def _signals_to(self, stopped: asyncio.Event) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def stop(number: signal.Signals) -> None:
            self._signal = number
            stopped.set()

        # Only the main thread may take signals; a scheduler handles them itself.
        with contextlib.suppress(RuntimeError, ValueError):
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop, number)
        try:
            yield
        finally:
            with contextlib.suppress(RuntimeError, ValueError):
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.remove_signal_handler(number)

    async def _execute_cells(self) -> None:
        client = Client(
            self.notebook,
            km=self._kernel.manager,
            startup_timeout=STARTUP_SECONDS,
            timeout=self._cell_seconds,
        )
        self._client = client
        client.progress = self._progress
        try:
            await self._kernel.start()
            await client.async_start_new_kernel_client()
        except RuntimeError as error:
            raise await self._kernel_died("before the first cell") from error
        client.reset_execution_trackers()
        for index, cell in enumerate(self._source.cells):
            if cell in self._source.runnable:
                await self._execute_cell(client, index, cell)
                if _exit_of(self.notebook.cells[index]) is not None:
                    break
        await self._end_cells(client)

    async def _execute_cell(self, client: Client, index: int, cell: Cell) -> None:
        self._progress.start(cell)
        node = self.notebook.cells[index]
        try:
            await client.async_execute_cell(node, index)
        except DeadKernelError as error:
            raise await self._kernel_died(f"in {_named(cell)}") from error
        except CellTimeoutError:
            self._timed_out = True
            location = f"{self._source.path.name}, {_named(cell)}"
            raise CellFailedError(
                f"{location} did not end within {self._cell_seconds} s and was stopped",
                "pass a larger --cell-timeout",
                notebook=self._source.path.name,
                seconds=self._cell_seconds,
            ) from None
        except CellExecutionError as error:
            exit_value = _exit_of(node)
            if exit_value is None:
                raise self._cell_failed(cell, client.failure, error) from None
            self.exit_value = exit_value
        self._progress.end(success=True)

    async def _end_cells(self, client: Client) -> None:
        """Wait after the last cell for the streams that are shown."""
        try:
            await client.end_cells()
        except DeadKernelError as error:
            raise await self._kernel_died("after the last cell") from error
        except CellExecutionError as error:
            text = client.failure["text"] if client.failure else error.evalue
            raise CellFailedError(
                f"{self._source.path.name}: {text}", notebook=self._source.path.name
            ) from None

    async def _receive_last_output(self, cells: asyncio.Future[None]) -> None:
        """Take what the kernel shows while it ends: the last states of its streams."""
        await asyncio.wait({cells})
        if self._client is not None:
            await self._client.receive_last_updates()

    async def _kernel_died(self, location: str) -> KernelDiedError:
        cause = await self._kernel.end_cause()
        name = self._source.path.name
        return KernelDiedError(f"{name}: the Python kernel died {location} ({cause})", notebook=name)

    def _cell_failed(
        self, cell: Cell, failure: Mapping[str, Any] | None, error: CellExecutionError
    ) -> CellFailedError:
        name = self._source.path.name
        head = f"{name}, {_named(cell)} failed"
        if failure is None:
            return CellFailedError(f"{head}: {error.ename}: {error.evalue}", notebook=name)
        text = str(failure["text"])
        if failure["expected"]:
            return CellFailedError(f"{head}: {text}", notebook=name)
        lines = text.partition("JVM stacktrace:")[0].rstrip().split("\n")
        short = "\n".join([*lines[:MESSAGE_LINES], "…"] if len(lines) > MESSAGE_LINES else lines)
        trace = "".join(f"\n  {self._frame_text(frame)}" for frame in failure["frames"])
        return CellFailedError(f"{head}: {failure['name']}: {short}", notebook=name, trace=trace)

    def _frame_text(self, frame: Mapping[str, Any]) -> str:
        file, line = str(frame["file"]), int(frame["line"])
        if frame["cell"] is not None:
            # Executions are counted as the runnable cells are.
            cell = self._source.runnable[int(frame["cell"]) - 1]
            file, line = str(self._source.path), cell.line + line - 1
        code = linecache.getline(file, line).strip()
        return f"{file}:{line} in {frame['name']}" + (f"\n    {code}" if code else "")


def _named(cell: Cell) -> str:
    return f"cell {cell.number} '{cell.label}'"


def _exit_of(node: nbformat.NotebookNode) -> str | None:
    for output in node.get("outputs", []):
        if EXIT_MIME_TYPE in output.get("data", {}):
            return str(output["data"][EXIT_MIME_TYPE]["value"])
    return None
