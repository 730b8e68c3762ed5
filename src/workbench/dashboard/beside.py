"""The dashboard beside something that runs, such as the demo."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from psutil import Process

from workbench.host import processes
from workbench.host.home import Home


@contextmanager
def dashboard_beside(home: Home, tell: Callable[[str], None], *, browser: bool) -> Iterator[None]:
    """Run the dashboard in a process of its own while a block runs; where it does not start, the block does.

    Args:
        home: Whose queries are shown.
        tell: Is told the page's address, or that there is none.
        browser: Whether the page is opened.
    """
    command = [sys.executable, "-m", "workbench", "dashboard", *([] if browser else ["--no-browser"])]
    # Marked: should this process be killed, `down` ends it.
    marks = processes.marks(home, "dashboard")
    with subprocess.Popen(
        command,
        cwd=home.project,
        env=os.environ | {"WORKBENCH_HOME": str(home.folder)} | marks,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        threading.Thread(target=_tell_address, args=(process, tell), daemon=True).start()
        try:
            yield
        finally:
            processes.stop([Process(process.pid)] if process.poll() is None else [])


def _tell_address(process: subprocess.Popen[str], tell: Callable[[str], None]) -> None:
    assert process.stdout is not None  # noqa: S101 - for the type checker
    name, _, address = process.stdout.readline().partition(" ")
    if name == "dashboard":
        tell(f"its streams, live: {address.strip()}")
    elif process.wait():
        tell("its streams are not shown: python -m workbench dashboard tells why")
