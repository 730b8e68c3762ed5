"""The report of a failed cell to the runner, in a form that a terminal can show."""

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
    frames = [*_frames(shell, error.__traceback__), *_syntax_frame(shell, error)]
    return {
        "name": type(error).__name__,
        # Python's text names the temporary file of the cell.
        "text": error.msg if isinstance(error, SyntaxError) else str(error),
        "expected": isinstance(error, TopiclakeError),
        "frames": [] if isinstance(error, TopiclakeError) else frames[-5:],
    }


def _syntax_frame(shell: Shell, error: BaseException) -> Iterator[dict[str, Any]]:
    """Return the line with a syntax error: no code was executed, so the trace does not hold it."""
    if isinstance(error, SyntaxError) and error.lineno and not (error.filename or "<").startswith("<"):
        cell = shell.compile._filename_map.get(error.filename)
        yield {"cell": cell, "file": error.filename, "line": error.lineno, "name": "<module>"}


def _frames(shell: Shell, trace: TracebackType | None) -> Iterator[dict[str, Any]]:
    libraries = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]), "<")
    while trace is not None:
        code = trace.tb_frame.f_code
        cell = shell.compile._filename_map.get(code.co_filename)
        project_code = not code.co_filename.startswith(libraries)
        if cell is not None or (project_code and "site-packages" not in code.co_filename):
            yield {"cell": cell, "file": code.co_filename, "line": trace.tb_lineno, "name": code.co_name}
        trace = trace.tb_next
