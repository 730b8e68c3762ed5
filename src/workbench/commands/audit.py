"""`python -m workbench audit`: the report of the notebook `audit`, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

#: Keys of the notebook's exit value, a `topiclake.ingest.audit.report.AuditReport`.
KEYS = frozenset({"ok", "partitions", "findings"})
#: Counts that must be 0 in each partition.
FAULTS = ("missing", "doubled", "in_both", "aborted", "unknown")
#: Columns that are always shown, then columns that are shown only where a count is not 0.
_COLUMNS = (
    *("partition", "first", "committed", "in_kafka", "in_table", "quarantined"),
    *("missing", "doubled", "in_both", "unknown"),
)
_RARE_COLUMNS = ("aborted", "skipped", "paused", "compacted", "aged_out", "in_flight")


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the partitions as a table, then the findings."""
    console.print(partitions_table(report["partitions"]))
    for finding in report["findings"]:
        location = f"topic {finding['topic']}, partition {finding['partition']}, offset {finding['offset']}"
        console.print(f"✗ {finding['kind']}: {location}", markup=False, soft_wrap=True)
    wrong = sum(partition[fault] for partition in report["partitions"] for fault in FAULTS)
    if wrong > len(report["findings"]):
        console.print(f"✗ {wrong:,} in all; the first {len(report['findings'])} are listed", markup=False)
    if report["ok"]:
        checked = sum(partition["in_kafka"] - partition["paused"] for partition in report["partitions"])
        console.print(f"✓ each of the {checked:,} records that Kafka holds is in exactly one place")


def partitions_table(partitions: list[dict[str, Any]]) -> Table:
    """Return a table with a row for each partition; rare columns are shown only if a count is not 0."""
    rare = [name for name in _RARE_COLUMNS if any(partition[name] for partition in partitions)]
    names = [*_COLUMNS, *rare]
    topics = sorted({str(partition["topic"]) for partition in partitions})
    table = Table(title=f"topic {escape(', '.join(topics))}", title_justify="left")
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for partition in partitions:
        table.add_row(*("–" if partition[name] is None else f"{partition[name]:,}" for name in names))
    return table
