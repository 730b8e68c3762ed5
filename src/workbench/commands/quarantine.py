"""`python -m workbench quarantine`: what the notebook for quarantined records tells, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

#: What the notebook tells: `topiclake.ingest.quarantine.replay.quarantine_summary`.
KEYS = frozenset({"path", "reasons", "rows", "replay"})
_REASONS = ("reason", "schema_id", "waiting", "replayed", "first", "last", "example")
_ROWS = ("partition", "offset", "key", "reason", "schema_id", "length", "first_bytes", "detail")
_COUNTS = ("length", "waiting", "replayed")
_NUMBERS = ("partition", "offset", "schema_id", *_COUNTS)


def print_summary(console: Console, action: str, summary: Mapping[str, Any]) -> None:
    """Print what an action of `quarantine` told: reasons, after `show` rows, after `replay` what it did."""
    if replay := summary["replay"]:
        waiting = sum(replay["left"].values())
        console.print(f"✓ {replay['replayed']:,} replayed, {waiting:,} wait on", markup=False)
    if not summary["reasons"]:
        console.print(
            f"no record of the topic is in quarantine ({summary['path']})", markup=False, soft_wrap=True
        )
        return
    if action == "show":
        console.print(as_table("the first records", _ROWS, summary["rows"]))
    else:
        console.print(as_table(summary["path"], _REASONS, summary["reasons"]))


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
