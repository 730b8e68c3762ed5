"""`%run`: which notebooks a notebook includes, and the values that it sets in their widgets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from topiclake.errors import ConfigError
from workbench.notebook.files import JUPYTER, read_notebook
from workbench.notebook.source import NotebookSource, NotebookSourceError

PATH = re.compile(
    r"%run[ \t]+(?:\"(?P<double>[^\"]+)\"|'(?P<single>[^']+)'|(?P<bare>[^$\"'=]*[^$\"'=\s]))\s*"
)
VALUE = re.compile(
    r"\$(?P<name>[\w.-]+)\s*=\s*(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>[^\s$\"']+))(?:\s+|$)"
)


@dataclass(frozen=True)
class Inclusion:
    """An included notebook, the values for its widgets, and the place of its `%run`."""

    source: NotebookSource
    values: Mapping[str, str]
    location: str


def inclusions(source: NotebookSource, including: Sequence[Path] = ()) -> Iterator[Inclusion]:
    """Read the notebooks that a notebook includes, and those that they include.

    Args:
        source: The notebook.
        including: The notebooks that include it.

    Raises:
        ConfigError: One does not exist.
        NotebookSourceError: One cannot run here, includes itself, or a `%run` is not written right.
    """
    chain = (*including, source.path)
    for cell in source.runnable:
        if cell.language == "run":
            location = f"{source.path}, cell {cell.number}, line {cell.line}"
            path, values = read_run(cell.source, location)
            file = find_notebook(path, source.path.parent, location)
            check_cycle((*chain, file))
            included = read_notebook(file)
            yield Inclusion(included, values, location)
            yield from inclusions(included, chain)


def read_run(text: str, location: str) -> tuple[str, dict[str, str]]:
    """Return path and values of `%run <path> $name="value" …`.

    Raises:
        NotebookSourceError: The line has another form.
    """
    match, values = PATH.match(text), {}
    at = match.end() if match else 0
    while at < len(text) and (value := VALUE.match(text, at)):
        values[value["name"]] = _written(value)
        at = value.end()
    if match is None or at < len(text):
        raise NotebookSourceError(
            f"{location}: '{text}' cannot be read",
            'use %run ./notebook $name="value"',
            location=location,
            text=text,
            reason="unreadable",
        )
    return _written(match), values


def find_notebook(path: str, folder: Path, location: str = "") -> Path:
    """Return the file of a notebook that another one names; `.py` and `.ipynb` are optional.

    Args:
        path: As it is written, relative to `folder`.
        folder: Where the notebook that names it lies.
        location: The place that names it, for the error.

    Raises:
        ConfigError: The file does not exist.
    """
    file_path = Path(os.path.normpath(folder / path))
    for suffix in ("", ".py", JUPYTER):
        if (file := file_path.with_name(f"{file_path.name}{suffix}")).is_file():
            return file
    raise ConfigError(
        f"{location}: {file_path}.py does not exist"
        if location
        else f"notebook {file_path}.py does not exist",
        "correct the path",
        notebook=f"{file_path}.py",
        location=location,
        reason="missing",
    )


def check_cycle(chain: Sequence[Path]) -> None:
    """Refuse a notebook that is included by one that it includes.

    Args:
        chain: The notebooks, each included by the one before it.

    Raises:
        NotebookSourceError: The last one is among those before it.
    """
    if chain[-1].resolve() in [path.resolve() for path in chain[:-1]]:
        names = " → ".join(path.name for path in chain)
        raise NotebookSourceError(
            f"%run goes round in a circle: {names}",
            "remove %run from one of them",
            chain=tuple(path.name for path in chain),
            reason="circle",
        )


def _written(match: re.Match[str]) -> str:
    return next(match[kind] for kind in ("double", "single", "bare") if match[kind] is not None)
