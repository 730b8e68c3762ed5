"""`python -m workbench quarantine`: the notebook for quarantined records, and what it tells as tables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from topiclake.errors import IngestError
from workbench import services
from workbench.home import Home
from workbench.java import require_java

#: What the notebook tells: `topiclake.replay.quarantine_summary`.
KEYS = frozenset({"path", "reasons", "rows", "replay"})
_REASONS = ("reason", "schema_id", "waiting", "replayed", "first", "last", "example")
_ROWS = ("partition", "offset", "key", "reason", "schema_id", "length", "first_bytes", "detail")
_COUNTS = ("length", "waiting", "replayed")
_NUMBERS = ("partition", "offset", "schema_id", *_COUNTS)


def run_for_value(
    notebook: Path, parameters: Mapping[str, str], home: Home, keys: Set[str]
) -> dict[str, Any]:
    """Run a notebook and return its exit value, a JSON object with at least `keys`.

    Its progress goes to standard error, so that standard output carries the value only.

    Raises:
        TopiclakeError: The notebook failed, as in `run`.
        IngestError: It ended with another value.
    """
    require_java()
    home.prepare()
    addresses = services.addresses(home)
    from workbench.runner import run_notebook

    environment = (addresses.environment() if addresses else {}) | os.environ
    done = run_notebook(notebook.absolute(), parameters, home, environment, Console(stderr=True))
    try:
        value = json.loads(done.exit_value)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not keys <= value.keys():
        raise IngestError(f"{notebook} ended without {', '.join(sorted(keys))}", f"a look at {done.html}")
    return value


def print_summary(console: Console, action: str, found: Mapping[str, Any]) -> None:
    """Print what an action of `quarantine` told: reasons, after `show` rows, after `replay` what it did."""
    if replay := found["replay"]:
        left = sum(replay["left"].values())
        console.print(f"✓ {replay['replayed']:,} replayed, {left:,} wait on", markup=False)
    if not found["reasons"]:
        console.print(
            f"no record of the topic is in quarantine ({found['path']})", markup=False, soft_wrap=True
        )
        return
    if action == "show":
        console.print(as_table("the first records", _ROWS, found["rows"]))
    else:
        console.print(as_table(found["path"], _REASONS, found["reasons"]))


def as_table(title: str, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return one row a row; whatever came from a record stands there as it is."""
    table = Table(title=escape(title), title_justify="left")
    for name in names:
        justify: Literal["left", "right"] = "right" if name in _NUMBERS else "left"
        table.add_column(name.replace("_", " "), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(name, row[name])) for name in names))
    return table


def _cell(name: str, value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if name in _COUNTS else str(value)
