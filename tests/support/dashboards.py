"""The workbench's dashboard, as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.environment import without_workbench
from workbench.host.home import MARKER

PROJECT = Path(__file__).parents[2]
ADDRESS = re.compile(r"http://127\.0\.0\.\d:\d+/\?token=\S+")


@contextmanager
def dashboard(home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run it; give the process and the address, with its token. A home that a test has filled is marked."""
    home.mkdir(exist_ok=True)
    (home / MARKER).touch()
    with subprocess.Popen(
        [sys.executable, "-m", "workbench", "dashboard", "--no-browser", *options],
        cwd=PROJECT,
        env=without_workbench() | {"WORKBENCH_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            found = ADDRESS.search(process.stdout.readline())
            assert found
            yield process, found[0]
        finally:
            process.kill()
