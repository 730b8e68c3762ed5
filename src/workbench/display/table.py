"""Rows as a table: HTML for a page, plain text for everything else."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime

MAX_ROWS = 100
MAX_TEXT_ROWS = 20
MAX_CELL_CHARACTERS = 300
MAX_TEXT_CHARACTERS = 40
#: Of all cells of one table together; further rows are not shown.
MAX_TABLE_CHARACTERS = 500_000

#: Colours come from the page, so that the table is readable on light and dark alike.
STYLE = (
    "<style>.topiclake-rows{max-height:420px;overflow:auto}.topiclake-table{border-collapse:collapse;font-size:13px}"
    ".topiclake-table th,.topiclake-table td{border:1px solid rgba(128,128,128,.35);padding:3px 8px;"
    "text-align:left;vertical-align:top}.topiclake-table th small{font-weight:normal;opacity:.65}"
    ".topiclake-table td.number{text-align:right}.topiclake-table td.null{opacity:.5;font-style:italic}"
    "</style>"
)

Columns = Sequence[tuple[str, str]]
Rows = Sequence[Sequence[str | None]]


@dataclass(frozen=True)
class Redaction:
    """The removal of secrets from displayed text.

    Attributes:
        redact: Replaces secrets in a text.
        open_end: Returns how many characters at the end of a text may be the beginning of a secret.
    """

    redact: Callable[[str], str] = str
    open_end: Callable[[str], int] = lambda text: 0

    def columns(self, columns: Columns) -> Columns:
        """Return names and types without secrets: an expression is its column's name."""
        return [(self.redact(name), self.redact(kind)) for name, kind in columns]

    def cell(self, value: object, characters: int | None = None) -> str | None:
        """Return a value's text without secrets, cut to the width of a cell; None is null.

        Args:
            value: A value that Spark returned.
            characters: The length at which Spark cut the value; the end may then be half a secret.
        """
        if value is None:
            return None
        text = self.redact(as_text(value))
        if characters is not None and isinstance(value, str) and len(value) >= characters:
            return cut(text[: len(text) - self.open_end(text)] + "…", MAX_CELL_CHARACTERS)
        return cut(text, MAX_CELL_CHARACTERS)


def fitting(rows: Rows, characters: int = MAX_TABLE_CHARACTERS) -> tuple[Rows, bool]:
    """Return the first rows, as many as a table holds, and whether there are more."""
    for count, row in enumerate(rows):
        characters -= sum(len(value or "") for value in row)
        if count == MAX_ROWS or (characters < 0 and count):
            return rows[:count], True
    return rows, False


def as_text(value: object) -> str:
    """Return a cell's text; binary is shown in hexadecimal digits, structs as `{name: value}`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex(" ")
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, date):
        return value.isoformat()
    if (as_dict := getattr(value, "asDict", None)) is not None:
        value = as_dict()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_text(key)}: {as_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_text, value)) + "]"
    return str(value)


def html_table(columns: Columns, rows: Rows, more: bool) -> str:
    """Return rows of text as an HTML table under column names and types; None is shown as null."""
    head = "".join(
        f"<th>{html.escape(name)}<br><small>{html.escape(cut(kind, MAX_CELL_CHARACTERS))}</small></th>"
        for name, kind in columns
    )
    kinds = [kind for _, kind in columns]
    lines = ("".join(map(_html_cell, row, kinds)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'{STYLE}<div class="topiclake-rows"><table class="topiclake-table"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f"<p><small>{counted(len(rows), more)}</small></p>"
    )


def text_table(columns: Columns, rows: Rows, more: bool) -> str:
    """Return the first rows as a table of plain text."""
    names = [cut(name, MAX_TEXT_CHARACTERS) for name, _ in columns]
    cells = [list(map(text_cell, row)) for row in rows[:MAX_TEXT_ROWS]]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = [
        " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in [names, ["-" * width for width in widths], *cells]
    ]
    return "\n".join([*lines, f"({counted(len(cells), more or len(rows) > len(cells))})"])


def text_cell(value: str | None) -> str:
    """Return a cell's text in one short line."""
    return cut("null" if value is None else value, MAX_TEXT_CHARACTERS).replace("\n", " ")


def printable(line: str) -> str:
    """Return a line without the control characters of a terminal."""
    return "".join(character if character.isprintable() else " " for character in line)


def is_number(kind: str) -> bool:
    """Return whether a column of this type is right-aligned."""
    return kind.startswith(("int", "bigint", "smallint", "tinyint", "double", "float", "decimal"))


def counted(count: int, more: bool) -> str:
    """Return the number of displayed rows as text, and whether there are more."""
    if more:
        return f"first {count} rows"
    return "1 row" if count == 1 else f"{count} rows"


def _html_cell(value: str | None, kind: str) -> str:
    if value is None:
        return '<td class="null">null</td>'
    text = html.escape(cut(value, MAX_CELL_CHARACTERS))
    return f'<td class="number">{text}</td>' if is_number(kind) else f"<td>{text}</td>"


def cut(text: str, width: int) -> str:
    """Return a text, or its beginning and an ellipsis where it is longer than `width` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"
