"""Notebooks from Databricks source format into Jupyter's and back, byte for byte."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat

from workbench.notebook.source import (
    FIRST_LINE,
    LANGUAGES,
    SEPARATOR,
    SEPARATOR_LINE,
    Cell,
    NotebookSource,
    read_cell,
)

_v4: Any = nbformat.v4  # its functions carry no types

#: The metadata key in which Databricks keeps a cell's title in an .ipynb.
DATABRICKS_METADATA = "application/vnd.databricks.v1+cell"
#: The metadata key for data that only source format has.
WORKBENCH_METADATA = "workbench"
CELL_MAGIC = re.compile(r"%%(?P<name>[\w-]+)(?:\s.*)?")


def to_notebook(source: NotebookSource) -> nbformat.NotebookNode:
    """Turn a parsed notebook into a Jupyter notebook, one cell for one cell.

    The cell's `workbench` metadata hold its number, line and language. They also hold the lines of the file
    if `to_source` would write others. The title is in Databricks' own metadata.
    """
    metadata: dict[str, object] = {"notebook": source.path.name}
    if source.newline != "\n":
        metadata["newline"] = source.newline
    if source.byte_order_mark:
        metadata["byte_order_mark"] = True
    notebook: nbformat.NotebookNode = _v4.new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Topiclake workbench", "language": "python"},
            "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
            WORKBENCH_METADATA: metadata,
        }
    )
    notebook.cells = [_notebook_cell(cell) for cell in source.cells]
    return notebook


def to_source(notebook: nbformat.NotebookNode) -> bytes:
    """Turn a Jupyter notebook into a file in Databricks source format.

    A cell that nobody changed since `to_notebook` has the bytes it had; others are written as Databricks
    writes them.
    """
    lines: list[str] = []
    for index, node in enumerate(notebook.cells):
        lines += _unchanged_lines(node, index) or [_marker(index), *_written_lines(node, index)]
    text = "\n".join(lines or [FIRST_LINE, ""])
    stored = notebook.metadata.get(WORKBENCH_METADATA, {})
    start = "\ufeff" if stored.get("byte_order_mark") else ""
    return (start + text.replace("\n", stored.get("newline", "\n"))).encode("utf-8")


def _notebook_cell(cell: Cell) -> nbformat.NotebookNode:
    described: dict[str, object] = {"number": cell.number, "line": cell.line, "language": cell.language}
    metadata: dict[str, object] = {WORKBENCH_METADATA: described}
    if cell.title:
        metadata[DATABRICKS_METADATA] = {"title": cell.title, "showTitle": cell.title_shown}
    node: nbformat.NotebookNode
    if cell.language == "md":
        node = _v4.new_markdown_cell(cell.source, metadata=metadata)
    else:
        node = _v4.new_code_cell(cell.code, metadata=metadata)
    node.id = f"cell-{cell.number}"
    index = cell.number - 1
    if [cell.marker, *cell.lines] != [_marker(index), *_written_lines(node, index)]:
        node.metadata[WORKBENCH_METADATA] |= {"marker": cell.marker, "lines": list(cell.lines)}
    return node


def _marker(index: int) -> str:
    return SEPARATOR_LINE if index else FIRST_LINE


def _unchanged_lines(node: nbformat.NotebookNode, index: int) -> list[str]:
    """Return the marker and lines that `to_notebook` kept, or no lines if the cell was changed."""
    metadata = node.metadata.get(WORKBENCH_METADATA, {})
    if "lines" not in metadata:
        return []
    cell = read_cell(Path(), index + 1, 0, metadata["marker"], metadata["lines"], lenient=True)
    kind, text = ("markdown", cell.source) if cell.language == "md" else ("code", cell.code)
    title = (cell.title, cell.title_shown) if cell.title else ("", False)
    if (kind, text, title) != (node.cell_type, node.source, _title(node)):
        return []
    is_valid_marker = SEPARATOR.fullmatch(cell.marker) if index else cell.marker.rstrip() == FIRST_LINE
    return [cell.marker if is_valid_marker else _marker(index), *cell.lines]


def _written_lines(node: nbformat.NotebookNode, index: int) -> list[str]:
    """Write a cell as Databricks does; a blank line separates it from the markers above and below."""
    title, is_shown = _title(node)
    head = [f"# DBTITLE {int(is_shown)},{title}"] if title else []
    return [*([""] if index else []), *head, *_text_lines(node), ""]


def _text_lines(node: nbformat.NotebookNode) -> list[str]:
    lines = node.source.split("\n")
    if node.cell_type != "code":
        return _as_magic(["%md", *(lines if node.source else [])])
    if (match := CELL_MAGIC.fullmatch(lines[0])) and match["name"] in LANGUAGES:
        return _as_magic([lines[0][1:], *lines[1:]])
    return _as_magic(lines) if lines[0].startswith("%") else lines


def _as_magic(lines: list[str]) -> list[str]:
    return [f"# MAGIC {line}" if line else "# MAGIC" for line in lines]


def _title(node: nbformat.NotebookNode) -> tuple[str, bool]:
    metadata = node.metadata.get(DATABRICKS_METADATA, {})
    title = " ".join(str(metadata.get("title") or "").split("\n")).strip()
    return title, bool(title and metadata.get("showTitle"))
