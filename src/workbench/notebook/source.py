"""Notebooks in Databricks source format, read into cells."""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from topiclake.errors import TopiclakeError

FIRST_LINE = "# Databricks notebook source"
SEPARATOR_LINE = "# COMMAND ----------"
SEPARATOR = re.compile(r"# COMMAND -{10}\s*")
MAGIC = re.compile(r"# MAGIC(?: |$)")
TITLE = re.compile(r"# DBTITLE (?P<shown>\d),(?P<title>.*)")
LANGUAGE = re.compile(r"%(?P<name>[\w-]+)[ \t]*")
SHELL_ARGUMENTS = re.compile(r"(?P<arguments>-e)(?:[ \t]+|$)")

#: The language of a cell by its magic; a magic that is not listed is refused.
LANGUAGES = {
    "python": "python",
    "md": "md",
    "md-sandbox": "md",
    "sql": "sql",
    "sh": "sh",
    "run": "run",
    "fs": "fs",
    "pip": "pip",
}
#: Their cells are commands, and the magic is a part of them.
COMMANDS = frozenset({"run", "fs", "pip"})
#: A command that must be alone in its cell, as on Databricks.
ALONE = frozenset({"run", "fs"})


class NotebookSourceError(TopiclakeError):
    """A notebook file is not in Databricks source format, or holds a cell that cannot run here.

    Correct the line that the text names, or export the notebook as source from Databricks.
    """

    id: ClassVar[str] = "TL-NOTEBOOK-001"


@dataclass(frozen=True)
class Cell:
    """One cell as the file has it.

    Attributes:
        number: Counted from 1, text cells and empty cells included, as in the file.
        line: The line of the file that holds the first line of `source`.
        language: python, md, sql, sh, run, fs or pip.
        source: The cell's text without `# MAGIC` and, for the first four languages, without the magic.
        title: The text of `# DBTITLE`, or "".
        title_shown: Whether the author wants the title to be seen.
        arguments: The arguments after the magic: `-e` of `%sh`.
        marker: The line that begins the cell: `# COMMAND ----------`, or the file's first line.
        lines: The lines below it as the file has them.
    """

    number: int
    line: int
    language: str
    source: str
    title: str = ""
    title_shown: bool = False
    arguments: str = ""
    marker: str = SEPARATOR_LINE
    lines: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The title, or the first line that is not blank."""
        if self.title:
            return self.title
        return next((line.strip() for line in self.source.splitlines() if line.strip()), "")

    @property
    def code(self) -> str:
        """What a kernel executes: Python, a cell magic for SQL and shell, or a command's own line."""
        if self.language in ("sql", "sh") and self.source:
            return f"{f'%%{self.language} {self.arguments}'.rstrip()}\n{self.source}"
        return self.source


@dataclass(frozen=True)
class NotebookSource:
    """A parsed notebook file.

    Attributes:
        path: The file.
        cells: In the file's order.
        newline: The end of its lines.
        byte_order_mark: Whether it begins with one.
    """

    path: Path
    cells: tuple[Cell, ...]
    newline: str = "\n"
    byte_order_mark: bool = False

    @property
    def runnable(self) -> tuple[Cell, ...]:
        """The cells that are executed."""
        return tuple(cell for cell in self.cells if cell.language != "md" and cell.source.strip())


def parse_notebook(path: Path, content: bytes, *, lenient: bool = False) -> NotebookSource:
    """Parse the content of a notebook file.

    Args:
        path: The file, for errors.
        content: Its bytes.
        lenient: Accept a cell that cannot run here as a cell of text, for callers that only edit it.

    Raises:
        NotebookSourceError: It is not in Databricks source format, or a cell is not supported.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotebookSourceError(
            f"notebook {path} is not UTF-8 text ({error.reason})",
            "save the file as UTF-8",
            notebook=str(path),
            reason="no_text",
        ) from error
    bare = text.removeprefix("\ufeff")
    newline = "\r\n" if "\r\n" in bare and bare.count("\n") == bare.count("\r\n") else "\n"
    cells = tuple(_cells(path, bare.replace(newline, "\n").split("\n"), lenient))
    return NotebookSource(path, cells, newline, byte_order_mark=bare != text)


def is_notebook(path: Path) -> bool:
    """Return whether a file is a `.py` whose first line says that it is a notebook in source format."""
    if path.suffix != ".py":
        return False
    try:
        with path.open("rb") as file:
            first = file.readline(200)
    except OSError:
        return False
    return first.removeprefix(codecs.BOM_UTF8).rstrip() == FIRST_LINE.encode()


def _cells(path: Path, lines: list[str], lenient: bool) -> Iterator[Cell]:
    if lines[0].rstrip() != FIRST_LINE:
        raise NotebookSourceError(
            f"{path} is not a notebook in Databricks source format: its first line is not '{FIRST_LINE}'",
            "put that line on top of the file",
            notebook=str(path),
            reason="no_notebook",
        )
    starts = [0, *(at for at, line in enumerate(lines) if SEPARATOR.fullmatch(line)), len(lines)]
    for number, (start, end) in enumerate(itertools.pairwise(starts), 1):
        yield read_cell(path, number, start + 2, lines[start], lines[start + 1 : end], lenient=lenient)


def read_cell(
    path: Path, number: int, line: int, marker: str, lines: Sequence[str], *, lenient: bool = False
) -> Cell:
    """Parse the lines of one cell; `line` is the number of the first one in the file.

    Raises:
        NotebookSourceError: The cell is not supported, and `lenient` is not given.
    """
    title, title_shown, arguments, language = "", False, "", "python"
    at, body = _trim(line, [text.rstrip("\r") for text in lines])
    if body and (match := TITLE.fullmatch(body[0].rstrip())):
        title, title_shown = match["title"].strip(), match["shown"] != "0"
        at, body = _trim(at + 1, body[1:])
    if body and lenient and not _runs_here(at, body):
        body = _without_magic(body)
    elif body and MAGIC.match(body[0]):
        language, first, following = _magic(f"{path}, cell {number}", at, body)
        if language == "sh" and (flag := SHELL_ARGUMENTS.match(first)):
            arguments, first = flag["arguments"], first[flag.end() :]
        at, body = _trim(at if first else at + 1, [first, *following] if first else following)
    return Cell(
        number, at, language, "\n".join(body), title, title_shown, arguments, marker, lines=tuple(lines)
    )


def _trim(line: int, lines: list[str]) -> tuple[int, list[str]]:
    """Drop blank lines at both ends; return the number of the first remaining line, and the lines."""
    filled = [at for at, text in enumerate(lines) if text.strip()]
    return (line + filled[0], lines[filled[0] : filled[-1] + 1]) if filled else (line, [])


def _runs_here(line: int, lines: list[str]) -> bool:
    try:
        return not MAGIC.match(lines[0]) or bool(_magic("", line, lines))
    except NotebookSourceError:
        return False


def _without_magic(lines: list[str]) -> list[str]:
    """Return a magic cell's text, or the unchanged lines if one of them has no `# MAGIC`."""
    if all(MAGIC.match(text) for text in lines):
        return [MAGIC.sub("", text, count=1) for text in lines]
    return lines


def _refused(location: str, line: int, problem: str, remedy: str, **fields: str) -> NotebookSourceError:
    """Return an error that names the cell and the line."""
    cause = f"{location}, line {line}: {problem}"
    return NotebookSourceError(cause, remedy, location=location, line=line, **fields)


def _magic(location: str, line: int, lines: list[str]) -> tuple[str, str, list[str]]:
    """Return a magic cell's language, the text of the magic's line, and the lines below it."""
    for at, text in enumerate(lines):
        if text.strip() and not MAGIC.match(text):
            remedy = "put '# MAGIC ' before it, or '# COMMAND ----------' above it"
            problem = "a line without '# MAGIC' in a magic cell"
            raise _refused(location, line + at, problem, remedy, reason="no_magic")
    first, *following = [MAGIC.sub("", text, count=1) for text in lines]
    match = LANGUAGE.match(first)
    if match is None:
        problem = "'# MAGIC' without a magic such as %md or %sql"
        raise _refused(location, line, problem, "add its magic, or remove it", reason="no_language")
    language = LANGUAGES.get(match["name"])
    if language is None:
        remedy = f"use one of {', '.join(f'%{name}' for name in LANGUAGES)}"
        problem = f"%{match['name']} cells do not run in the workbench"
        raise _refused(location, line, problem, remedy, language=match["name"], reason="language")
    if language in ALONE and any(text.strip() for text in following):
        problem, remedy = f"%{language} is not alone in its cell", "put '# COMMAND ----------' below it"
        raise _refused(location, line, problem, remedy, language=language, reason="not_alone")
    return language, first if language in COMMANDS else first[match.end() :], following
