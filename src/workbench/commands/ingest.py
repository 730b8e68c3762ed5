"""`python -m workbench ingest`: what one run of the ingest of a pipeline did, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

#: Keys of the notebook's exit value: a `topiclake.ingest.tables.RunSummary`, and the audit.
KEYS = frozenset({"rows_written", "quarantined", "table", "quarantine", "audit"})


def print_run(console: Console, run: Mapping[str, Any], pipeline: str) -> None:
    """Print the counts of a run, and whether the audit found each record in one place."""
    reasons = ", ".join(f"{reason}: {count:,}" for reason, count in sorted(run["quarantined"].items()))
    table = Table(title=f"pipeline {escape(pipeline)}", title_justify="left", show_header=False)
    table.add_row("rows written", f"{run['rows_written']:,} in this run")
    table.add_row("quarantined", f"{sum(run['quarantined'].values()):,} in this run" + f" {reasons}".rstrip())
    table.add_row("rows in the table", f"{run['table']['rows']:,} (version {run['table']['version']})")
    table.add_row("rows in quarantine", f"{run['quarantine']['rows']:,}")
    table.add_row("table", escape(run["table"]["path"]))
    console.print(table)
    if run["quarantined"] and not run["table"]["rows"]:
        console.print(
            f"✗ the table has no row; try: topiclake quarantine list {pipeline}, then another "
            f"value_format in conf/pipelines/{pipeline}.yaml",
            markup=False,
            soft_wrap=True,
        )
    if run["audit"] is None:
        console.print("kafka_column is false: nothing can be audited", markup=False)
    else:
        in_kafka = sum(partition["in_kafka"] for partition in run["audit"]["partitions"])
        console.print(
            f"✓ each of the {in_kafka:,} records that Kafka holds is in exactly one place", markup=False
        )
