"""What a failed cell tells the runner, in a form that a terminal can show."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from topiclake.errors import TopiclakeError

Shell: TypeAlias = Any  # IPython carries only half of its types


def failure_report(shell: Shell, error: BaseException) -> dict[str, Any]:
    """Return an exception's name, text and the frames of the user's code."""
    frames = list(_frames(shell, error.__traceback__))
    return {
        "name": type(error).__name__,
        "text": str(error),
        "expected": isinstance(error, TopiclakeError),
        "frames": [] if isinstance(error, TopiclakeError) else frames[-5:],
    }


def _frames(shell: Shell, trace: TracebackType | None) -> Iterator[dict[str, Any]]:
    libraries = (sys.prefix, sys.base_prefix, str(Path(__file__).parent), "<")
    while trace is not None:
        code = trace.tb_frame.f_code
        cell = shell.compile._filename_map.get(code.co_filename)
        project_code = not code.co_filename.startswith(libraries)
        if cell is not None or (project_code and "site-packages" not in code.co_filename):
            yield {"cell": cell, "file": code.co_filename, "line": trace.tb_lineno, "name": code.co_name}
        trace = trace.tb_next
