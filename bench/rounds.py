"""Code that the benchmarks share: separate services, sides in rounds, and a median with its spread."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

if TYPE_CHECKING:
    from workbench.services.service import Addresses

PROJECT = Path(__file__).resolve().parent.parent
#: In a pipe, rich would cut the names of the sides at 80 columns.
console = Console(width=None if sys.stdout.isatty() else 120)

#: The cost of a run of a side, and the content of its table.
Run = dict[str, Any]


@contextmanager
def own_services(name: str, extras: Sequence[str] = ()) -> Iterator[tuple[Path, Addresses]]:
    """Start a broker, a registry and stores in a folder that is gone afterwards, as they are."""
    from workbench.host.home import Home
    from workbench.services.control import down, up

    end_after_sigterm()
    with tempfile.TemporaryDirectory(prefix=f"topiclake-{name}-") as folder:
        home = Home(Path(folder) / "home", PROJECT)
        try:
            yield Path(folder), up(home, console.print, extras=extras)
        finally:
            down(home)


def end_after_sigterm() -> None:
    """End after SIGTERM as after Ctrl-C, so that the services end, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def separate_run(side: str, module: str, *arguments: str) -> Run:
    """Run a module for a side in a separate process; return the JSON of its last line.

    Raises:
        ClickException: It failed.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{side} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def in_rounds(
    sides: Sequence[str], rounds: int, run: Callable[[str], Run], describe: Callable[[Run], str]
) -> dict[str, list[Run]]:
    """Run each side once a round, in turned order every second round; print a description of each run."""
    results: dict[str, list[Run]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides[:: 1 if number % 2 == 0 else -1]:
            results[side].append(run(side))
            console.print(f"  round {number + 1}: {side:16} {describe(results[side][-1])}")
    return results


def spread(ratios: Iterable[float]) -> str:
    """Return the median, and between which values it lies."""
    values = list(ratios)
    return f"{statistics.median(values):.2f} ({min(values):.2f} – {max(values):.2f})"


def secret(scope: str, key: str) -> str:
    """Return a secret of the embedded stores, from the variables that they export."""
    return os.environ[f"TOPICLAKE_SECRET_{scope}_{key}".upper().replace("-", "_")]
