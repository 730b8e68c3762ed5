"""`python -m workbench quarantine`: the exit value of the quarantine notebook, printed as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

#: Keys of the exit value, a `topiclake.ingest.quarantine.replay.quarantine_summary`.
KEYS = frozenset({"path", "reasons", "rows", "replay"})
_REASONS = ("reason", "schema_id", "waiting", "replayed", "last", "example")
_ROWS = ("partition", "offset", "key", "reason", "schema_id", "length", "first_bytes", "detail")
_COUNTS = ("length", "waiting", "replayed")
_NUMBERS = ("partition", "offset", "schema_id", *_COUNTS)
#: Columns that a narrow terminal does not fold.
_WHOLE = ("reason", "last")


def print_summary(console: Console, summary: Mapping[str, Any], action: str) -> None:
    """Print the reasons, or the rows if the action is `show`; after `replay` print its counts first."""
    if replay := summary["replay"]:
        waiting = sum(replay["waiting"].values())
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
    """Return a table with one line for each row; text of a record is shown as it is, not as markup."""
    table = Table(title=escape(title), title_justify="left")
    for name in names:
        justify: Literal["left", "right"] = "right" if name in _NUMBERS else "left"
        heading = name.replace("_", " ")
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=name in _WHOLE)
    for row in rows:
        table.add_row(*(escape(_cell(name, row[name])) for name in names))
    return table


def _cell(name: str, value: object) -> str:
    if value is None:
        return "–"
    if name == "last":
        # Two short lines: 2026-11-27, and 23:40:45Z.
        return f"{str(value)[:19]}Z".replace("T", "\n")
    return f"{value:,}" if name in _COUNTS else str(value)
