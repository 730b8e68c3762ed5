"""`display` and `displayHTML`: DataFrames, pictures and HTML in a notebook's output."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, cast

import IPython.display

from topiclake.errors import TopiclakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_ROWS = 100
MAX_TEXT_ROWS = 20
MAX_CELL_CHARACTERS = 300
MAX_TEXT_CHARACTERS = 40

_publish = cast("Callable[..., None]", IPython.display.display)  # it carries no types

#: Colours come from the page, so that the table is readable on light and dark alike.
STYLE = (
    "<style>.topiclake-rows{max-height:420px;overflow:auto}.topiclake-table{border-collapse:collapse;font-size:13px}"
    ".topiclake-table th,.topiclake-table td{border:1px solid rgba(128,128,128,.35);padding:3px 8px;"
    "text-align:left;vertical-align:top}.topiclake-table th small{font-weight:normal;opacity:.65}"
    ".topiclake-table td.number{text-align:right}.topiclake-table td.null{opacity:.5;font-style:italic}"
    "</style>"
)


class DisplayError(TopiclakeError):
    """An object cannot be shown."""


class Display:
    """What a notebook knows as `display`.

    Args:
        redact: Applied to each value before it is cut to its width, so that no half secret stays.
    """

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        self._redact = redact
        self._plotly_is_there = False

    def __call__(self, obj: object = None) -> None:
        """Show a DataFrame or named tuples as a table, a plotly figure as a picture, others as Jupyter does.

        Raises:
            DisplayError: The DataFrame is a stream.
        """
        if is_dataframe(obj):
            self._show_dataframe(cast("DataFrame", obj))
        elif is_figure(obj):
            self._show_figure(obj)
        elif isinstance(obj, list) and (names := field_names(obj)):
            self._show_tuples(names, obj)
        else:
            _publish(obj)

    def html(self, html: str) -> None:
        """Show HTML; a notebook knows this as `displayHTML`."""
        _publish({"text/html": html, "text/plain": "<HTML>"}, raw=True)

    def _show_dataframe(self, frame: DataFrame) -> None:
        if frame.isStreaming:
            raise DisplayError(
                "display shows no streaming DataFrame yet",
                "write the stream to a table with availableNow, then display(spark.read.table(...))",
            )
        rows = frame.limit(MAX_ROWS + 1).collect()
        columns = [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
        self._show_rows(columns, rows)

    def _show_tuples(self, names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> None:
        kinds = ("bigint" if isinstance(value, int) else "string" for value in rows[0])
        self._show_rows(list(zip(names, kinds, strict=True)), rows)

    def _show_rows(self, columns: Columns, rows: Sequence[Sequence[object]]) -> None:
        values = [
            [None if value is None else self._redact(as_text(value)) for value in row]
            for row in rows[: MAX_ROWS + 1]
        ]
        shown, more = values[:MAX_ROWS], len(values) > MAX_ROWS
        data = {"text/html": html_table(columns, shown, more), "text/plain": text_table(columns, shown, more)}
        _publish(data, raw=True)

    def _show_figure(self, figure: Any) -> None:  # noqa: ANN401 - plotly carries no types
        # plotly.js has 4 MB, and once in a page is enough.
        page = figure.to_html(full_html=False, include_plotlyjs=not self._plotly_is_there)
        self._plotly_is_there = True
        self.html(page)


def is_dataframe(obj: object) -> bool:
    """Tell whether it is a Spark DataFrame, classic or Connect, without importing PySpark."""
    sql = sys.modules.get("pyspark.sql")
    return sql is not None and isinstance(obj, sql.DataFrame)


def is_figure(obj: object) -> bool:
    """Tell whether it is a plotly figure."""
    return type(obj).__module__.startswith("plotly.") and hasattr(obj, "to_html")


def field_names(rows: Sequence[object]) -> tuple[str, ...]:
    """Return the names that all rows have as named tuples, such as `dbutils.fs.ls` returns; none if not."""
    kinds = {type(row) for row in rows}
    names: tuple[str, ...] = getattr(next(iter(kinds)), "_fields", ()) if len(kinds) == 1 else ()
    return names


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


Columns = Sequence[tuple[str, str]]
Rows = Sequence[Sequence[str | None]]


def html_table(columns: Columns, rows: Rows, more: bool) -> str:
    """Return rows of text as an HTML table under column names and types; None is shown as null."""
    head = "".join(
        f"<th>{html.escape(name)}<br><small>{html.escape(kind)}</small></th>" for name, kind in columns
    )
    kinds = [kind for _, kind in columns]
    lines = ("".join(map(_html_cell, row, kinds)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'{STYLE}<div class="topiclake-rows"><table class="topiclake-table"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f"<p><small>{_counted(len(rows), more)}</small></p>"
    )


def text_table(columns: Columns, rows: Rows, more: bool) -> str:
    """Return the first rows as a table of plain text."""
    names = [_cut(name, MAX_TEXT_CHARACTERS) for name, _ in columns]
    cells = [
        [_cut("null" if value is None else value, MAX_TEXT_CHARACTERS).replace("\n", " ") for value in row]
        for row in rows[:MAX_TEXT_ROWS]
    ]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = [
        " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in [names, ["-" * width for width in widths], *cells]
    ]
    return "\n".join([*lines, f"({_counted(len(cells), more or len(rows) > len(cells))})"])


def _html_cell(value: str | None, kind: str) -> str:
    if value is None:
        return '<td class="null">null</td>'
    numeric = kind.startswith(("int", "bigint", "smallint", "tinyint", "double", "float", "decimal"))
    text = html.escape(_cut(value, MAX_CELL_CHARACTERS))
    return f'<td class="number">{text}</td>' if numeric else f"<td>{text}</td>"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _counted(count: int, more: bool) -> str:
    if more:
        return f"first {count} rows"
    return "1 row" if count == 1 else f"{count} rows"
