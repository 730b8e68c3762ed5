"""The results of a run: the executed notebook, and a page of it that needs no network."""

from __future__ import annotations

import copy
import html
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter

from workbench.notebook.conversion import DATABRICKS_METADATA, WORKBENCH_METADATA

#: nbconvert's own page asks the network for RequireJS, MathJax and Mermaid; these blocks are the places.
TEMPLATE = """\
{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
"""


@dataclass(frozen=True)
class RunFacts:
    """The facts about the run that the page shows above the notebook."""

    notebook: str
    parameters: Mapping[str, str]
    started: datetime
    seconds: float
    result: str


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
    for cell in notebook.cells:
        title = cell.metadata.get(DATABRICKS_METADATA, {})
        if title.get("showTitle"):
            cells.append(_text_cell(f"<h4>{html.escape(title['title'])}</h4>"))
        if cell.source.strip():
            cells.append(cell)
    shown.cells = cells
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
    cells = "".join(
        f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{_one_line(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table>{cells}</table>"


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
