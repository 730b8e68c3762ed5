"""Files that are replaced in one step."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from topiclake.errors import StorageError

OWNER_ONLY = 0o600
#: Permissions of other files; the user's umask removes some of them.
ANYBODY = 0o666


def replace_json(file: Path, value: object) -> None:
    """Write JSON, so that a reader sees the old content or the new one, never half.

    At no time can another user than the owner read it.
    """
    _replace(file, json.dumps(value, indent=2).encode("utf-8"), OWNER_ONLY)


def replace_private(file: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, in one step as `replace_json` does."""
    _replace(file, content, OWNER_ONLY)


def replace_bytes(file: Path, content: bytes) -> None:
    """Write a file in one step; keep the mode of an existing file, and write to the target of a link."""
    target = Path(os.path.realpath(file))
    mode_before = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    _replace(target, content, ANYBODY, mode_before)


def write_all(texts: Mapping[Path, str], private: Collection[Path] = ()) -> None:
    """Write new files and the folders that they need, all of them or none.

    Args:
        texts: By file its text.
        private: The files that their owner alone may read.

    Raises:
        StorageError: A file exists or cannot be written; the files that were written before it are deleted.
    """
    for file in texts:
        if file.exists():
            raise StorageError(
                f"{file} exists already", "delete it, or choose another name", file=str(file), reason="exists"
            )
    begun: list[Path] = []
    try:
        for file, text in texts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            begun.append(file)
            replace = replace_private if file in private else replace_bytes
            replace(file, text.encode("utf-8"))
    except BaseException as error:
        for new in begun:
            new.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise StorageError(
            f"{file} cannot be written ({error.strerror})",
            "free space, or use another folder",
            file=str(file),
        ) from None


@contextmanager
def write_errors(problem: str, folder: Path, remedy: str) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError, whose cause is the `problem`."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{problem} ({error.strerror})", remedy, folder=str(folder), reason="not_writable"
        ) from error


def _replace(file: Path, content: bytes, mode: int, mode_before: int | None = None) -> None:
    new = file.with_name(f".{file.name}.{secrets.token_hex(8)}.tmp")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as written:
            if mode_before is not None:
                os.fchmod(written.fileno(), mode_before)
            written.write(content)
            written.flush()
            os.fsync(written.fileno())
        os.replace(new, file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
