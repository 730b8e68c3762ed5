"""One driver at a time, where Delta's log cannot keep a second one from overwriting commits.

Those of this machine are seen. The lock is the operating system's: whatever ends a process ends its lock.
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

#: By table, for as long as this process lives.
_held: dict[str, TextIO] = {}


def take(table: str, reason: str, remedy: str) -> None:
    """Keep other processes of this machine from writing a table.

    Args:
        table: Its address, as Spark reads it.
        reason: Why there may be one only, for people to read.
        remedy: What to do instead of ending the other one.

    Raises:
        PlatformError: Another process has it; names that.
    """
    address = _canonical(table)
    if address in _held:
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
    _held[address] = file


def _canonical(table: str) -> str:
    """Return one spelling of an address: folders may be written in several ways."""
    folder = table.removeprefix("file:")
    return str(Path(folder).resolve()) if folder.startswith("/") else table


def _opened(path: Path) -> TextIO:
    """Open the lock, which all users may take and only the one who made it may write."""
    # Never where somebody has laid a link.
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except PermissionError:
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8")
    if os.fstat(descriptor).st_uid == os.geteuid():
        # Whatever the umask says: another user could not even look who has it.
        os.fchmod(descriptor, 0o644)
    return os.fdopen(descriptor, "r+", encoding="utf-8")
