"""The last lines of log files, and the lines that follow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from topiclake.errors import PlatformError

POLL_SECONDS = 0.3


def read(paths: Sequence[Path], lines: int, follow: bool = False) -> Iterator[str]:
    """Yield the last lines of each log, then (with `follow`) what is added, without end.

    Args:
        paths: The logs; with more than one, each line starts with the name of its log.
        lines: How many of each.
        follow: Also yield new lines; a log that a restart replaced is read from its beginning.

    Raises:
        PlatformError: None of the logs exists.
    """
    if not follow and not any(path.exists() for path in paths):
        names = ", ".join(path.stem for path in paths)
        raise PlatformError(f"there is no log of {names} yet", "python -m workbench up", logs=names)
    positions: dict[Path, tuple[int, int]] = {}
    for path in paths:
        tail = deque(_new_lines(path, positions), maxlen=lines)
        yield from (_labelled(path, line, paths) for line in tail)
    while follow:
        time.sleep(POLL_SECONDS)
        for path in paths:
            yield from (_labelled(path, line, paths) for line in _new_lines(path, positions))


def _new_lines(path: Path, positions: dict[Path, tuple[int, int]]) -> list[str]:
    """Return the complete lines since the last call; `positions` holds inode and offset of each log."""
    try:
        with path.open("rb") as file:
            inode = path.stat().st_ino
            last_inode, offset = positions.get(path, (inode, 0))
            file.seek(offset if last_inode == inode else 0)
            start, text = file.tell(), file.read()
    except FileNotFoundError:
        return []
    complete_lines = text[: text.rfind(b"\n") + 1]
    positions[path] = (inode, start + len(complete_lines))
    return complete_lines.decode("utf-8", errors="replace").splitlines()


def _labelled(path: Path, line: str, paths: Sequence[Path]) -> str:
    return f"{path.stem} | {line}" if len(paths) > 1 else line
