"""A program in a separate process group, which a test kills."""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class KilledProgram:
    """A program with a short life, and the folder of its output."""

    folder: Path

    def run(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a module in a separate process group, which ends with this process at the latest."""
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=PROJECT,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        atexit.register(_end, process)
        return process

    @property
    def log(self) -> Path:
        """The file of its errors."""
        return self.folder / "stderr.log"

    def tail(self) -> str:
        """Return the end of its errors."""
        return self.log.read_text(errors="replace")[-3000:]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def next_line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Return the next line that a program prints; nothing if there is none in time."""
    assert process.stdout is not None
    is_readable, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if is_readable else b""
