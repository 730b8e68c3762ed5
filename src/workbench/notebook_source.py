"""Notebooks in Databricks source format, read into cells and turned into Jupyter notebooks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from topiclake.errors import ConfigError, TopiclakeError

FIRST_LINE = "# Databricks notebook source"
SEPARATOR = re.compile(r"# COMMAND -{10}\s*")
MAGIC = re.compile(r"# MAGIC(?: |$)")
TITLE = re.compile(r"# DBTITLE (?P<shown>\d),(?P<title>.*)")
LANGUAGE = re.compile(r"%(?P<name>[\w-]+)[ \t]*")

#: What a magic makes of its cell; a magic that is not listed is refused.
LANGUAGES = {"python": "python", "md": "md", "md-sandbox": "md", "sql": "sql"}

_v4: Any = nbformat.v4  # its functions carry no types

#: Where Databricks itself keeps a cell's title in an .ipynb.
DATABRICKS_METADATA = "application/vnd.databricks.v1+cell"


class NotebookSourceError(TopiclakeError):
    """A notebook file is not in Databricks source format, or holds a cell that cannot run here."""


@dataclass(frozen=True)
class Cell:
    """One cell as the file has it.

    Attributes:
        number: Counted from 1, text cells and empty cells included, as in the file.
        line: The line of the file that the first line of `source` stands on.
        language: python, md or sql.
        source: The cell's text without `# MAGIC` and without the magic itself.
        title: The text of `# DBTITLE`, or "".
        title_shown: Whether the author wants the title to be seen.
    """

    number: int
    line: int
    language: str
    source: str
    title: str = ""
    title_shown: bool = False

    @property
    def label(self) -> str:
        """The title, or the first line that says something."""
        if self.title:
            return self.title
        return next((line.strip() for line in self.source.splitlines() if line.strip()), "")


@dataclass(frozen=True)
class NotebookSource:
    """A parsed notebook file."""

    path: Path
    cells: tuple[Cell, ...]

    @property
    def runnable(self) -> tuple[Cell, ...]:
        """The cells that are executed."""
        return tuple(cell for cell in self.cells if cell.language != "md" and cell.source.strip())


def read_notebook(path: Path) -> NotebookSource:
    """Parse a notebook file.

    Raises:
        ConfigError: The file is missing or not text.
        NotebookSourceError: The file is not in Databricks source format, or a cell is not supported.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"notebook {path} cannot be read ({error.strerror})", "another path") from error
    except UnicodeDecodeError as error:
        raise NotebookSourceError(f"notebook {path} is not UTF-8 text ({error.reason})") from error
    return NotebookSource(path, tuple(_cells(path, text.split("\n"))))


def _cells(path: Path, lines: list[str]) -> Iterator[Cell]:
    if lines[0].rstrip() != FIRST_LINE:
        raise NotebookSourceError(
            f"{path} is not a notebook in Databricks source format: its first line is not '{FIRST_LINE}'",
            "that line on top of the file",
        )
    starts = [0, *(at for at, line in enumerate(lines) if SEPARATOR.fullmatch(line)), len(lines)]
    for number, (start, end) in enumerate(itertools.pairwise(starts), 1):
        yield _cell(path, number, start + 2, lines[start + 1 : end])


def _cell(path: Path, number: int, line: int, lines: list[str]) -> Cell:
    title, title_shown = "", False
    line, lines = _trim(line, lines)
    if lines and (found := TITLE.fullmatch(lines[0].rstrip())):
        title, title_shown = found["title"].strip(), found["shown"] != "0"
        line, lines = _trim(line + 1, lines[1:])
    language = "python"
    if lines and MAGIC.match(lines[0]):
        language, first, body = _magic(f"{path}, cell {number}", line, lines)
        line, lines = _trim(line if first else line + 1, [first, *body] if first else body)
    return Cell(number, line, language, "\n".join(lines), title, title_shown)


def _trim(line: int, lines: list[str]) -> tuple[int, list[str]]:
    """Drop blank lines at both ends; return the number of the first line that is left."""
    filled = [at for at, text in enumerate(lines) if text.strip()]
    return (line + filled[0], lines[filled[0] : filled[-1] + 1]) if filled else (line, [])


def _magic(where: str, line: int, lines: list[str]) -> tuple[str, str, list[str]]:
    """Return a magic cell's language, what follows the magic on its line, and the lines below it."""
    for at, text in enumerate(lines):
        if text.strip() and not MAGIC.match(text):
            raise NotebookSourceError(
                f"{where}, line {line + at}: a line without '# MAGIC' in a magic cell",
                "'# MAGIC ' before it, or '# COMMAND ----------' above it",
            )
    bare = [MAGIC.sub("", text, count=1) for text in lines]
    found = LANGUAGE.match(bare[0])
    if found is None:
        raise NotebookSourceError(f"{where}, line {line}: '# MAGIC' without a magic such as %md or %sql")
    if found["name"] not in LANGUAGES:
        allowed = ", ".join(f"%{name}" for name in LANGUAGES)
        raise NotebookSourceError(
            f"{where}, line {line}: %{found['name']} cells do not run in the workbench", f"one of {allowed}"
        )
    return LANGUAGES[found["name"]], bare[0][found.end() :], bare[1:]


def to_notebook(source: NotebookSource) -> nbformat.NotebookNode:
    """Turn a parsed notebook into a Jupyter notebook, one cell for one cell.

    Cell number, line and language stay in the cell's `workbench` metadata, the title where
    Databricks keeps it.
    """
    notebook: nbformat.NotebookNode = _v4.new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Topiclake workbench", "language": "python"},
            "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
            "workbench": {"notebook": source.path.name},
        }
    )
    notebook.cells = [_notebook_cell(cell) for cell in source.cells]
    return notebook


def _notebook_cell(cell: Cell) -> nbformat.NotebookNode:
    metadata: dict[str, object] = {
        "workbench": {"number": cell.number, "line": cell.line, "language": cell.language}
    }
    if cell.title:
        metadata[DATABRICKS_METADATA] = {"title": cell.title, "showTitle": cell.title_shown}
    made: nbformat.NotebookNode
    if cell.language == "md":
        made = _v4.new_markdown_cell(cell.source, metadata=metadata)
    else:
        text = f"%%sql\n{cell.source}" if cell.language == "sql" and cell.source else cell.source
        made = _v4.new_code_cell(text, metadata=metadata)
    made.id = f"cell-{cell.number}"
    return made
