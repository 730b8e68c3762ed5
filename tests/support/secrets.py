"""Secrets that a search finds however they are written."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Secret:
    """A secret with characters that quoting gets wrong, between two cores that survive any quoting."""

    cores: tuple[str, str] = field(default_factory=lambda: (secrets.token_hex(9), secrets.token_hex(9)))
    between: str = ""

    def __str__(self) -> str:
        return self.between.join(self.cores)

    @cached_property
    def spellings(self) -> list[bytes]:
        """Each core as it is, and as base64 writes it at each of the three places it can begin at."""
        return [spelling for core in self.cores for spelling in (core.encode(), *_in_base64(core.encode()))]


def _in_base64(core: bytes) -> Iterator[bytes]:
    for before in range(3):
        # Only characters that depend on the core alone: the neighbours reach into the first and the last.
        first, last = -(-before * 4 // 3), (before + len(core)) * 8 // 6
        yield base64.b64encode(b"\0" * before + core)[first:last]


def leaks(folder: Path, wanted: list[Secret], *, but: tuple[Path, ...] = ()) -> list[str]:
    """Return the files below `folder` that hold a secret, or whose name does; `but` are not looked at."""
    spellings = [spelling for secret in wanted for spelling in secret.spellings]
    files = [file for file in folder.rglob("*") if file.is_file() and file not in but]
    assert files, f"nothing to look at in {folder}"
    texts = ((file, os.fsencode(file) + b"\n" + file.read_bytes()) for file in files)
    return [
        str(file.relative_to(folder))
        for file, text in texts
        if any(spelling in text for spelling in spellings)
    ]
