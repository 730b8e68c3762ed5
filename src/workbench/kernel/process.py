"""A kernel's operating system process: its start, its end, and the end of its child processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

from workbench.host import processes
from workbench.kernel.messages import KERNEL_COMMAND, Context, kernel_environment

#: A UNIX socket's path may have 107 characters; below a longer folder the kernel speaks TCP on loopback.
LONGEST_SOCKET_FOLDER = 80
GRACE_SECONDS = 20.0
INTERRUPTED_GRACE_SECONDS = 10.0
LAST_LOG_LINES = 5


class KernelProcess:
    """A fresh kernel in a separate session, so that a terminal's Ctrl-C reaches only the runner.

    Args:
        context: The context of the kernel.
        folder: Its working directory.
        environment: Its environment variables, all of them.
    """

    def __init__(self, context: Context, folder: Path, environment: Mapping[str, str]) -> None:
        self._context = context
        self._folder = folder
        self._environment = dict(environment)
        self._state = Path(tempfile.mkdtemp(prefix="workbench-kernel-"))
        self._log = self._state / "kernel.log"
        self._pid: int | None = None
        self.manager = self._kernel_manager()

    async def start(self) -> None:
        """Start the process unless it was started, without a wait for its first message."""
        if self._pid is not None:
            return
        context_file = self._state / "context.json"
        self._context.save(context_file)
        project = Path(self._context.project_folder)
        variables = kernel_environment(self._environment, context_file, self._state / "ipython", project)
        environment = {**self._environment, **variables}
        # ipykernel shows no output of subprocesses and the JVM when it finds this.
        environment.pop("PYTEST_CURRENT_TEST", None)
        with open(self._log, "wb") as log:
            await self.manager.start_kernel(cwd=str(self._folder), env=environment, stdout=log, stderr=log)
        provisioner: Any = self.manager.provisioner
        self._pid = provisioner.pid

    async def end_cause(self) -> str:
        """Return how the process ended: its exit code or signal, and the last lines of its log."""
        provisioner: Any = self.manager.provisioner
        status = await provisioner.poll()
        if status is None:
            return "it does not answer"
        lines = (
            self._log.read_text(encoding="utf-8", errors="replace").split("\n") if self._log.exists() else []
        )
        last_lines = " | ".join([line.strip() for line in lines if line.strip()][-LAST_LOG_LINES:])
        name = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
        return f"{name}: {last_lines}" if last_lines else name

    async def stop(self, *, interrupted: bool) -> None:
        """End the kernel, its JVM and its other child processes, and remove its files, unless that was done.

        Args:
            interrupted: The kernel starts or executes a cell, and is interrupted.
        """
        if not self._state.exists():
            return
        descendants = self._descendants()
        try:
            if interrupted:
                with contextlib.suppress(Exception):
                    await self.manager.interrupt_kernel()
            self.manager.shutdown_wait_time = INTERRUPTED_GRACE_SECONDS if interrupted else GRACE_SECONDS
            with contextlib.suppress(Exception):
                await self.manager.shutdown_kernel(now=False)
        finally:
            await asyncio.shield(asyncio.to_thread(self._sweep, descendants))

    def _kernel_manager(self) -> AsyncKernelManager:
        manager = AsyncKernelManager(
            connection_file=str(self._state / "kernel.json"), shutdown_wait_time=GRACE_SECONDS
        )
        if len(str(self._state)) < LONGEST_SOCKET_FOLDER:
            manager.transport = "ipc"
        manager._kernel_spec = KernelSpec(
            argv=list(KERNEL_COMMAND), display_name="Topiclake workbench", language="python"
        )
        return manager

    def _descendants(self) -> set[psutil.Process]:
        """Return the kernel's processes: its children, and its session, also if the kernel has died."""
        if self._pid is None:
            return set()
        descendants = {
            process for process in psutil.process_iter() if processes.session_of(process.pid) == self._pid
        }
        with contextlib.suppress(psutil.Error):
            descendants |= set(psutil.Process(self._pid).children(recursive=True))
        return {process for process in descendants if process.pid != os.getpid()}

    def _sweep(self, descendants: set[psutil.Process]) -> None:
        everything = list(descendants | self._descendants())
        # The JVM ends by itself when the kernel is gone, and removes its files then.
        running = processes.still_running(everything, 3)
        # A notebook that this one runs stops its kernel and saves its page first.
        processes.stop(running, grace_seconds=15)
        shutil.rmtree(self._state, ignore_errors=True)
