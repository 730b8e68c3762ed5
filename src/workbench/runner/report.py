"""The results of a run: the executed notebook, and a page of it that needs no network."""

from __future__ import annotations

import copy
import html
import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import nbformat

from workbench.display.table import as_text, cut
from workbench.kernel.messages import EXIT_MIME_TYPE
from workbench.notebook.conversion import DATABRICKS_METADATA, WORKBENCH_METADATA

#: nbconvert's own page asks the network for RequireJS, MathJax and Mermaid; these blocks are the places.
TEMPLATE = """\
{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
"""


#: Of one value in the table on top. The executed notebook has the whole exit value.
EXIT_CHARACTERS = 200


@dataclass(frozen=True)
class RunFacts:
    """The facts about the run that the page shows above the notebook; its exit value becomes table rows."""

    notebook: str
    parameters: Mapping[str, str]
    started: datetime
    seconds: float
    result: str
    exit_value: str = ""


def make_run_folder(runs: Path, notebook: Path, started: datetime) -> Path:
    """Create the folder of one run, named by time and notebook; two runs never share one."""
    name = f"{started:%Y%m%dT%H%M%SZ}-{notebook.stem}-{uuid.uuid4().hex[:6]}"
    folder = runs / name
    folder.mkdir(parents=True)
    return folder


def save_run(notebook: nbformat.NotebookNode, facts: RunFacts, folder: Path) -> tuple[Path, Path]:
    """Write the executed notebook and its page; return both paths."""
    stem = Path(facts.notebook).stem
    executed, page = folder / f"{stem}.ipynb", folder / f"{stem}.html"
    marked = copy.deepcopy(notebook)
    marked.metadata[WORKBENCH_METADATA] |= {
        "notebook": facts.notebook,
        "parameters": dict(facts.parameters),
        "started": facts.started.isoformat(),
        "seconds": round(facts.seconds, 3),
        "result": facts.result,
    }
    to_text: Any = nbformat.writes
    _write(executed, to_text(marked))
    _write(page, as_page(marked, facts))
    return executed, page


def as_page(notebook: nbformat.NotebookNode, facts: RunFacts) -> str:
    """Return the notebook as one HTML page with the run's facts on top and the cells' titles."""
    shown = copy.deepcopy(notebook)
    shown.metadata["title"] = facts.notebook
    cells = [_text_cell(_header(facts))]
    for cell in shown.cells:
        title = cell.metadata.get(DATABRICKS_METADATA, {})
        if title.get("showTitle"):
            cells.append(_text_cell(f"<h4>{html.escape(title['title'])}</h4>"))
        if cell.source.strip():
            _remove_exit(cell)
            cells.append(cell)
    shown.cells = cells
    from nbconvert import HTMLExporter

    exporter: Any = HTMLExporter  # it carries no types
    page, _ = exporter(raw_template=TEMPLATE, embed_images=True).from_notebook_node(shown)
    return str(page)


def _header(facts: RunFacts) -> str:
    rows = {
        "Notebook": facts.notebook,
        "Parameters": ", ".join(f"{name}={value}" for name, value in facts.parameters.items()) or "none",
        "Started": f"{facts.started.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC",
        "Duration": f"{facts.seconds:.1f} s",
        "Result": facts.result,
    }
    left = 'style="text-align:left"'
    cells = "".join(
        f"<tr><th {left}>{_one_line(name)}</th><td {left}>{_one_line(value)}</td></tr>"
        for name, value in (*rows.items(), *exit_rows(facts.exit_value).items())
    )
    return f"<table>{cells}</table>"


def exit_rows(exit_value: str) -> dict[str, str]:
    """Return an exit value as rows of a table: one for each key of a JSON object, without nulls."""
    try:
        value = json.loads(exit_value)
    except ValueError:
        value = exit_value
    values = value if isinstance(value, dict) else {"Exit value": value}
    return {
        name: cut(_exit_text(value), EXIT_CHARACTERS)
        for name, value in values.items()
        if value not in (None, "")
    }


def _exit_text(value: object) -> str:
    """Return a value in one line; of a list of objects only their number, since the cells show them."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "1 entry" if len(value) == 1 else f"{len(value):,} entries"
    if isinstance(value, dict):
        texts = {name: _exit_text(item) for name, item in value.items() if item is not None}
        return ", ".join(f"{name}: {text}" for name, text in texts.items()) or "none"
    return as_text(value) if value != [] else "none"


def _remove_exit(cell: nbformat.NotebookNode) -> None:
    """Remove the output of `dbutils.notebook.exit` from a cell: the table on top shows it."""
    if "outputs" in cell:
        cell.outputs = [output for output in cell.outputs if EXIT_MIME_TYPE not in output.get("data", {})]


def _one_line(text: str) -> str:
    # A blank line would end the HTML block in Markdown.
    return re.sub(r"\s*\n\s*", "<br>", html.escape(text))


def _text_cell(source: str) -> nbformat.NotebookNode:
    v4: Any = nbformat.v4
    cell: nbformat.NotebookNode = v4.new_markdown_cell(source)
    return cell


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    os.chmod(path, 0o600)
