"""`topiclake purge`: old deletions out of a pipeline's table of changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

#: Keys of the exit value of the notebook `purge`.
KEYS = frozenset({"table", "removed"})


def print_removed(console: Console, result: Mapping[str, Any]) -> None:
    """Print the number of removed deletions."""
    text = f"✓ {result['removed']:,} old deletions removed from {result['table']}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
