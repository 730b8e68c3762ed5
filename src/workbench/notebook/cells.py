"""Cells of Databricks' editor, typed into Jupyter: `%sql` on a separate line, `%md`, `%python`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from workbench.notebook.source import COMMANDS, LANGUAGE, LANGUAGES, NotebookSourceError, read_cell


class CellLanguages:
    """An input transformation for IPython, so that a cell means the same as in a source file.

    Args:
        is_magic: Returns whether IPython knows a magic; IPython runs magics that Databricks does not have.
    """

    # IPython must not apply it to a cell that is still being typed, where an error has no meaning.
    has_side_effects = True

    def __init__(self, is_magic: Callable[[str], bool]) -> None:
        self._is_magic = is_magic

    def __call__(self, lines: list[str]) -> list[str]:
        """Return the lines that IPython is to execute.

        Raises:
            NotebookSourceError: The cell's language does not run here.
        """
        match = LANGUAGE.match(lines[0]) if lines else None
        name = match["name"] if match else ""
        language = LANGUAGES.get(name)
        if not name or language in COMMANDS or (language is None and self._is_magic(name)):
            return lines
        magic = [f"# MAGIC {line}" for line in "".join(lines).split("\n")]
        try:
            cell = read_cell(Path(), 0, 1, "", magic)
        except NotebookSourceError as error:
            # IPython shows the file and line of the cell above the message.
            raise NotebookSourceError(error.cause.partition(": ")[2], error.remedy, **error.fields) from None
        code = f"%%markdown\n{cell.source}" if cell.language == "md" else cell.code
        return code.splitlines(keepends=True)
