"""The pages of one table and of one reason, by their addresses."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

from topiclake.config.pipeline import QUARANTINE
from topiclake.config.table_name import is_name, without_suffix
from topiclake.monitoring.store import Store
from topiclake.reasons import OTHER, REASONS
from workbench.dashboard.delta_log import read_table
from workbench.dashboard.quarantined import read_records
from workbench.dashboard.readings import Readings
from workbench.dashboard.snapshot import POINTS, table_id

#: Quarantines of one query whose records are shown, and tables that are looked at for small files.
QUARANTINES = 3
LOOKED_AT = 10
#: Age of a reading that a query's page accepts: it shows only whether there are many small files.
SMALL_SECONDS = 60.0
_TABLES = "SELECT * FROM tables WHERE query_id = ? ORDER BY committed DESC, path"
_NAME = "SELECT name FROM runs WHERE query_id = ? ORDER BY began DESC LIMIT 1"
_REASON = (
    "SELECT path, folder, reasons.rows, committed FROM reasons JOIN tables USING (query_id, path)"
    " WHERE query_id = ? AND reason = ? ORDER BY committed DESC, path"
)
_PERIOD = (
    "SELECT min(at) AS first, max(at) AS last, sum(rows) AS rows FROM reason_batches"
    " WHERE query_id = ? AND reason = ?"
)
#: A batch without such a record counts 0. A batch that only `reason_batches` has is a point, too.
_COURSE = (
    "SELECT min(at) AS at, sum(rows) AS rows FROM ("
    " SELECT batch_id, at, 0 AS rows FROM batches WHERE query_id = ?1"
    " UNION ALL SELECT batch_id, at, rows FROM reason_batches WHERE query_id = ?1 AND reason = ?2"
    ") GROUP BY batch_id ORDER BY batch_id DESC LIMIT ?3"
)
_TOPICS = "SELECT DISTINCT topic FROM partitions WHERE query_id = ? ORDER BY topic LIMIT 2"


def small_tables(store: Store, readings: Readings, query_id: str) -> dict[str, dict[str, int]]:
    """Return how many small files the tables of a query have, by `table_id`, where they have too many."""
    tables = {}
    for table in store.rows(_TABLES, query_id)[:LOOKED_AT]:
        reading = readings.get(read_table, *_read_by(table), seconds=SMALL_SECONDS) or {}
        if reading.get("small"):
            tables[table_id(table["path"])] = reading["small"]
    return tables


def page(store: Store, readings: Readings, address: str) -> dict[str, Any] | None:
    """Return the content of the page at `table/<query id>/<table_id>` or `reason/<query id>/<reason>`.

    It reads only tables that `store` names. The result is `None` if the page does not exist.
    """
    kind, query_id, name = [*map(unquote, address.split("/")), "", ""][:3]
    reader = {"table": _table, "reason": _reason}.get(kind)
    details = reader(store, readings, query_id, name) if reader else None
    if details is None:
        return None
    names = store.rows(_NAME, query_id)
    return {"address": address, "query": query_id, "name": names[0]["name"] if names else query_id} | details


def _table(store: Store, readings: Readings, query_id: str, name: str) -> dict[str, Any] | None:
    for table in store.rows(_TABLES, query_id):
        if table_id(table["path"]) == name:
            return {"kind": "table", "table": table, "read": readings.get(read_table, *_read_by(table))}
    return None


def _read_by(table: dict[str, Any]) -> list[str]:
    """Return the path of a table, and its name in a catalog, if it has one."""
    return [table["folder"], *([table["path"]] if is_name(table["path"]) else [])]


def _reason(store: Store, readings: Readings, query_id: str, reason: str) -> dict[str, Any] | None:
    tables = store.rows(_REASON, query_id, reason)
    if not tables:
        return None
    rows = sum(row["rows"] for row in tables)
    (period,) = store.rows(_PERIOD, query_id, reason)
    description = REASONS.get(reason, OTHER)
    topics = [row["topic"] for row in store.rows(_TOPICS, query_id)]
    course = store.rows(_COURSE, query_id, reason, POINTS)[::-1]
    return {
        "kind": "reason",
        "reason": reason,
        "rows": rows,
        "first": period["first"],
        "last": period["last"],
        # Older counts by batch were deleted, or did not exist yet.
        "is_older": rows > (period["rows"] or 0),
        "points": {name: [point[name] for point in course] for name in ("at", "rows")},
        "tables": [
            {
                "path": row["path"],
                "id": table_id(row["path"]),
                "rows": row["rows"],
                "commands": _commands(row["path"], reason, topics, may_replay=description.may_replay),
                "read": readings.get(read_records, row["folder"], reason),
            }
            for row in tables[:QUARANTINES]
        ],
        "more_tables": max(0, len(tables) - QUARANTINES),
        **asdict(description),
    }


def _commands(path: str, reason: str, topics: list[str], *, may_replay: bool) -> list[str]:
    """Return the commands that show these records and put them into the table."""
    assignments = [f"topic={topics[0]}"] if len(topics) == 1 else ["topic=<topic>"]
    if (table := without_suffix(path, QUARANTINE)) is not None:
        assignments.append(f"{'table' if is_name(path) else 'table_path'}={table}")
    options = " ".join(f"-p {shlex.quote(assignment)}" for assignment in assignments)
    actions = ("show", "replay") if may_replay else ("show",)
    return [
        f"python -m workbench quarantine {action} --reason {shlex.quote(reason)} {options}"
        for action in actions
    ]
