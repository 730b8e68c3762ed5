"""`topiclake show`: rows of a pipeline's table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

#: Keys of the exit value of the notebook `query`.
KEYS = frozenset({"table", "records", "rows"})


def print_rows(console: Console, result: Mapping[str, Any]) -> None:
    """Print the rows of a query, and the number of records in the table."""
    rows: Sequence[Mapping[str, Any]] = result["rows"]
    if rows:
        table = Table(title=escape(result["table"]), title_justify="left")
        for name in rows[0]:
            table.add_column(escape(name), overflow="fold")
        for row in rows:
            table.add_row(*(escape(_cell(value)) for value in row.values()))
        console.print(table)
    records = result["records"]
    console.print(f"{len(rows):,} rows; the table has {records:,} records", markup=False, highlight=False)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
