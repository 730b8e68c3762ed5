"""A lock that lets one driver at a time write a table whose log store is safe for one driver only.

The lock covers the processes of this machine. The operating system releases it when the process ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from datetime import datetime, timezone
from hashlib import blake2b
from pathlib import Path
from typing import TextIO

from topiclake.errors import PlatformError

#: The lock file of each table that this process writes, held until the process ends.
_locks: dict[str, TextIO] = {}


def acquire(table: str, reason: str, remedy: str) -> None:
    """Keep other processes of this machine from writing a table.

    Args:
        table: Address of the table, as Spark reads it.
        reason: Why only one process may write it, for the error.
        remedy: An alternative to ending the other process, for the error.

    Raises:
        PlatformError: Another process holds the lock; the error names it.
    """
    address = _canonical(table)
    if address in _locks:
        return
    name = f"topiclake-{blake2b(address.encode(), digest_size=16).hexdigest()}.lock"
    file = _opened(Path(tempfile.gettempdir(), name))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        first = file.read().strip() or "another process"
        file.close()
        raise PlatformError(
            f"{table} is written by {first}, and {reason}",
            f"end that one, or {remedy}",
            table=table,
            other=first,
        ) from None
    if file.writable():
        file.truncate(0)
        file.write(f"process {os.getpid()} (since {datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC)")
        file.flush()
    _locks[address] = file


def _canonical(table: str) -> str:
    """Return the canonical form of an address, since a local folder can be written in several ways."""
    folder = table.removeprefix("file:")
    return str(Path(folder).resolve()) if folder.startswith("/") else table


def _opened(path: Path) -> TextIO:
    """Open the lock file, which all users may lock and only its owner may write."""
    # Never follow a symbolic link that another user has created.
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except PermissionError:
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8")
    if os.fstat(descriptor).st_uid == os.geteuid():
        # The umask may forbid reading, and then another user could not see which process holds the lock.
        os.fchmod(descriptor, 0o644)
    return os.fdopen(descriptor, "r+", encoding="utf-8")
