"""The outputs of notebooks in source format, which has no place for them."""

from __future__ import annotations

import contextlib
import copy
import shutil
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import nbformat

from workbench.host.files import replace_private
from workbench.notebook.conversion import DATABRICKS_METADATA, WORKBENCH_METADATA

#: Metadata of a cell that come from the source file.
FROM_SOURCE = frozenset({DATABRICKS_METADATA, WORKBENCH_METADATA})


class SavedOutputs:
    """The last outputs of cells, kept as one .ipynb for each notebook.

    An output belongs to a cell's text. A cell that was changed elsewhere, in an editor or by git, comes back
    without an output. A cell that was only moved keeps its output.

    Args:
        folder: Where they are kept, each below its notebook's path.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, path: str, notebook: nbformat.NotebookNode) -> None:
        """Keep the outputs of a notebook, in place of those before."""
        file = self._file(path)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_private(file, nbformat.writes(notebook, version=nbformat.NO_CONVERT).encode("utf-8"))

    def restore(self, path: str, notebook: nbformat.NotebookNode) -> None:
        """Give the cells of a notebook the kept outputs of cells with the same text."""
        saved: dict[tuple[str, str], deque[Any]] = defaultdict(deque)
        for cell in self._cells(path):
            saved[cell.cell_type, cell.source].append(cell)
        for cell in notebook.cells:
            if candidates := saved[cell.cell_type, cell.source]:
                _restore(candidates.popleft(), cell)

    def move(self, old: str, new: str) -> None:
        """Move the outputs of a notebook, or of a folder of notebooks, to another path."""
        for before, after in ((self._file(old), self._file(new)), (self._folder / old, self._folder / new)):
            if before.exists():
                after.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                before.replace(after)

    def forget(self, path: str) -> None:
        """Delete the outputs of a notebook, or of a folder of notebooks."""
        self._file(path).unlink(missing_ok=True)
        if path:
            shutil.rmtree(self._folder / path, ignore_errors=True)

    def _file(self, path: str) -> Path:
        return self._folder / f"{path}.ipynb"

    def _cells(self, path: str) -> list[Any]:
        # A damaged file counts as absent: its outputs can be computed again.
        with contextlib.suppress(OSError, ValueError, AttributeError, nbformat.ValidationError):
            saved: list[Any] = nbformat.read(self._file(path), as_version=4).cells
            return saved
        return []


def _restore(saved: nbformat.NotebookNode, cell: nbformat.NotebookNode) -> None:
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = copy.deepcopy(saved.outputs), saved.execution_count
    for key, value in saved.metadata.items():
        if key not in FROM_SOURCE:
            cell.metadata[key] = value
