"""One JupyterLab: its start, its end, and the end of its child processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import click
import psutil
from tornado.netutil import bind_sockets

from topiclake.errors import PlatformError
from workbench.host import ports, processes
from workbench.host.home import Home
from workbench.host.jars import fetch_jars
from workbench.host.java import require_java
from workbench.lab.kernelspec import write_kernelspec
from workbench.services import control as services

USUAL_PORT = 8888
TASK_SECONDS = 5.0


def serve(home: Home, parameters: Mapping[str, str], *, port: int = 0, browser: bool = True) -> None:
    """Serve JupyterLab with the project's notebooks until Ctrl-C, SIGTERM or the end of the terminal.

    Args:
        home: The workbench; JupyterLab keeps its files below its `lab`.
        parameters: Values for the widgets of every notebook.
        port: Where; by default 8888, or a free one where that is taken.
        browser: Whether to open the user's browser.

    Raises:
        TopiclakeError: Java is missing, the state folder cannot be written, or the port is taken.
    """
    require_java()
    home.prepare()
    fetch_jars(click.echo)
    _show_addresses(home)
    with _own_folder(home) as folder:
        write_kernelspec(folder, home, parameters)
        from workbench.lab.app import initialize_lab
        from workbench.lab.settings import drop_ping_warnings, lab_config, set_environment

        set_environment(home, folder)
        drop_ping_warnings()
        listening = _listen(port)
        chosen = int(listening[0].getsockname()[1])
        try:
            _serve(initialize_lab(lab_config(home, folder, chosen, browser=browser), listening))
        finally:
            processes.stop(psutil.Process().children(recursive=True))


def _show_addresses(home: Home) -> None:
    addresses = services.addresses(home)
    kafka = (
        addresses.kafka_bootstrap_servers
        if addresses
        else "does not run; start it with  python -m workbench up"
    )
    click.echo(f"notebooks        {home.project / 'notebooks'}")
    click.echo(f"Kafka            {kafka}")
    click.echo("stop with        Ctrl-C")


def _listen(port: int) -> list[socket.socket]:
    """Listen at once: between a check of a port and its use, another lab may take it."""
    for candidate in [port] if port else [USUAL_PORT, 0]:
        with contextlib.suppress(OSError):
            return bind_sockets(candidate, ports.HOST)
    raise PlatformError(
        f"port {port} is taken", "run python -m workbench lab, which finds a free one", port=port
    )


def _serve(server: Any) -> None:  # noqa: ANN401 - Jupyter's carries half of its types
    def stop(number: int, frame: FrameType | None) -> None:
        # Jupyter would ask first, and only on a terminal. A second Ctrl-C doesn't wait for the kernels.
        signal.signal(number, signal.default_int_handler)
        server.stop(from_signal=True)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    server.start()
    _end_tasks(server.io_loop.asyncio_loop)


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the unfinished tasks of Jupyter; its worker threads would outlive a task that does not end."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=TASK_SECONDS))


@contextlib.contextmanager
def _own_folder(home: Home) -> Iterator[Path]:
    """Make a folder that only one lab uses; remove it afterwards, and those of labs that were killed."""
    home.lab.mkdir(mode=0o700, exist_ok=True)
    for leftover in home.lab.glob("server-*"):
        if not psutil.pid_exists(int(leftover.name.removeprefix("server-"))):
            shutil.rmtree(leftover, ignore_errors=True)
    folder = home.lab / f"server-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
