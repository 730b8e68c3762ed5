"""`python -m workbench plan`: what the next ingest of a pipeline would do, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from topiclake.reasons import TOMBSTONE

#: Keys of the notebook's exit value, a `topiclake.ingest.plan.IngestPlan`.
KEYS = frozenset({"pipeline", "records", "has_changes", "ranges", "tables"})
#: The exit code of a plan with changes, as in `terraform plan -detailed-exitcode`.
CHANGES = 2


def print_plan(console: Console, plan: Mapping[str, Any]) -> None:
    """Print the ranges, then what becomes of each topic's records, then the checkpoint."""
    console.print(_ranges_table(plan))
    for table in plan["tables"]:
        _print_table(console, table, plan["value_format"])
        # Records without a value say nothing about the format of values.
        if not table["sample"].get("ok") and table["sample"].keys() - {TOMBSTONE}:
            file = f"conf/pipelines/{plan['pipeline']}.yaml"
            console.print(
                f"✗ no sampled record would become a row; try: another value_format in {file}",
                markup=False,
                soft_wrap=True,
            )
    started = "begins" if plan["is_first_start"] else "continues"
    console.print(f"checkpoint  {plan['checkpoint_path']} ({started})", markup=False, soft_wrap=True)
    if plan["records"]:
        seconds = plan["seconds"]
        duration = "unknown" if seconds is None else f"about {max(seconds, 1):,.0f} s, by the last run's rate"
        console.print(f"duration    {duration}", markup=False, soft_wrap=True)
    if not plan["has_changes"]:
        console.print("✓ nothing to do", markup=False)


def _ranges_table(plan: Mapping[str, Any]) -> Table:
    table = Table(title=f"pipeline {escape(plan['pipeline'])}: what would be read", title_justify="left")
    for name in ("topic", "partition", "first", "after", "records"):
        table.add_column(name, justify="left" if name == "topic" else "right")
    for planned in plan["ranges"]:
        numbers = (f"{planned[name]:,}" for name in ("partition", "first", "after", "records"))
        table.add_row(escape(planned["topic"]), *numbers)
    table.add_section()
    table.add_row("all", "", "", "", f"{plan['records']:,}")
    return table


def _print_table(console: Console, table: Mapping[str, Any], value_format: str) -> None:
    def show(label: str, text: str) -> None:
        console.print(f"{label:<11} {text}", markup=False, soft_wrap=True)

    show("topic", table["topic"])
    sample = table["sample"]
    counts = ", ".join(f"{reason}: {count:,}" for reason, count in sorted(sample.items()))
    evidence = f"of {sum(sample.values()):,} sampled records {counts}" if sample else "no record to sample"
    show("format", f"{value_format}; {evidence}")
    for schema in table["schemas"]:
        fits = schema["refusal"] or "fits"
        show("schema", f"{schema['subject']}, version {schema['version']}, id {schema['schema_id']}: {fits}")
    show("table", f"{table['path']} ({'exists' if table['exists'] else 'would be created'})")
    show("columns", table["columns"])
    for change in table["changes"]:
        show("change", change)
    show("quarantine", table["quarantine_path"])
