"""The content of the page, read from the reports of `topiclake.monitoring`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from topiclake.monitoring.store import Store
from workbench.host.home import ProcessRecord
from workbench.host.processes import is_running

#: Batches of the charts.
POINTS = 300
#: Of more queries the page shows those that run, then the newest.
QUERIES = 200
#: Rows of each list of a query's page: of topics and partitions the most lagging ones. A search finds others.
LISTED = 100
_LATEST = """
SELECT runs.* FROM runs JOIN (SELECT query_id, max(began) AS began FROM runs GROUP BY query_id) AS newest
USING (query_id, began) ORDER BY ended IS NOT NULL, began DESC LIMIT ?
"""
_BATCH = "SELECT * FROM batches WHERE query_id = ? ORDER BY batch_id DESC LIMIT 1"
_TOTALS = "SELECT rows, late_rows FROM totals WHERE query_id = ?"
_LAG = (
    "SELECT sum(lag_records) AS lag_records, max(lag_seconds) AS lag_seconds,"
    " coalesce(max(at_least AND lag_records), 0) AS lag_at_least FROM partitions WHERE query_id = ?"
)
_WRITTEN = (
    "SELECT sum(rows * (NOT is_quarantine)) AS written, max(committed * (NOT is_quarantine)) AS committed"
    " FROM tables WHERE query_id = ?"
)
_PARTITIONS = (
    "SELECT * FROM partitions WHERE query_id = ? AND instr(lower(topic), lower(?))"
    " ORDER BY lag_records DESC, topic, partition"
)
_TOPICS = (
    "SELECT topic, count(*) AS partitions, sum(lag_records) AS lag_records, max(lag_seconds) AS lag_seconds,"
    " max(at_least AND lag_records) AS at_least FROM partitions"
    " WHERE query_id = ? AND instr(lower(topic), lower(?)) GROUP BY topic ORDER BY lag_records DESC, topic"
)
_TABLES = (
    "SELECT * FROM tables WHERE query_id = ? AND instr(lower(path), lower(?)) ORDER BY is_quarantine, path"
)
_REASONS = (
    "SELECT reason, sum(rows) AS rows FROM reasons WHERE query_id = ? GROUP BY reason"
    " ORDER BY rows DESC, reason"
)
_POINTS = (
    "SELECT at, input_rate, processing_rate, milliseconds, lag_records, lag_seconds, phases FROM batches"
    " WHERE query_id = ? ORDER BY batch_id DESC LIMIT ?"
)
_RUNS = "SELECT began, ended, error FROM runs WHERE query_id = ? ORDER BY began DESC LIMIT 20"
TERMINATED = "its driver (process {}) terminated unexpectedly: it was killed, or out of memory"
RESTART_REMEDY = "start it again: it resumes from its checkpoint"

IsAlive = Callable[[int, float], bool]


def table_id(path: str) -> str:
    """Return the id of a table in addresses: a browser never names a path."""
    return hashlib.sha256(path.encode()).hexdigest()[:16]


def is_alive(process: int, began: float) -> bool:
    """Whether a driver still runs; its id may belong to another process since."""
    return is_running(ProcessRecord(process, began))


def overview(store: Store, alive: IsAlive = is_alive) -> list[dict[str, Any]]:
    """Return the queries by their newest starts: those that run first, at most `QUERIES`.

    Returns:
        For each query: `id`, `name`, `source`, `state` (running, ended, failed or killed), `began`, `ended`,
        `error` and `remedy`. The further keys are the page's columns: values of the newest micro-batch, and
        totals of all micro-batches. Times are seconds since 1970.
    """
    return [_query(store, run, alive) for run in store.rows(_LATEST, QUERIES)]


def details(store: Store, query_id: str, search: str = "") -> dict[str, Any]:
    """Return the details of one query: points of the charts, phases, starts, topics, partitions and tables.

    Args:
        store: The reports.
        query_id: The query.
        search: A part of the names of topics and of the paths of tables that are listed, in any case.
    """
    topics, partitions, tables = (
        store.rows(sql, query_id, search) for sql in (_TOPICS, _PARTITIONS, _TABLES)
    )
    points = store.rows(_POINTS, query_id, POINTS)[::-1]
    return {
        "id": query_id,
        "search": search,
        "points": {
            name: [point[name] for point in points]
            for name in ("at", "input_rate", "processing_rate", "milliseconds", "lag_records", "lag_seconds")
        },
        "phases": json.loads(points[-1]["phases"]) if points else {},
        "runs": store.rows(_RUNS, query_id),
        "topics": topics[:LISTED],
        "partitions": sorted(partitions[:LISTED], key=itemgetter("topic", "partition")),
        "tables": [row | {"id": table_id(row["path"])} for row in tables[:LISTED]],
        "found": {"topics": len(topics), "partitions": len(partitions), "tables": len(tables)},
    }


def _query(store: Store, run: Mapping[str, Any], alive: IsAlive) -> dict[str, Any]:
    query_id = run["query_id"]
    newest = store.rows(_BATCH, query_id)
    batch = newest[0] if newest else {}
    totals = store.rows(_TOTALS, query_id)
    (lag,), (written,) = store.rows(_LAG, query_id), store.rows(_WRITTEN, query_id)
    state, error, remedy = _state(run, alive)
    columns = ("batch_id", "at", "input_rate", "processing_rate", "milliseconds", "state_rows", "state_bytes")
    return {
        "id": query_id,
        "name": run["name"],
        "source": run["source"],
        "state": state,
        "began": run["began"],
        "ended": run["ended"],
        "heard": run["heard"],
        "error": error,
        "remedy": remedy,
        **{name: batch.get(name) for name in columns},
        **(totals[0] if totals else {"rows": 0, "late_rows": 0}),
        "sink": batch.get("sink", ""),
        **lag,
        **written,
        "quarantined": {row["reason"]: row["rows"] for row in store.rows(_REASONS, query_id)},
    }


def _state(run: Mapping[str, Any], alive: IsAlive) -> tuple[str, str | None, str | None]:
    if run["ended"] is not None:
        return ("failed", run["error"], run["remedy"]) if run["error"] else ("ended", None, None)
    processes = [(run["process"], run["process_began"]), (run["jvm"], run["jvm_began"])]
    terminated = [process for process, began in processes if process and not alive(process, began)]
    return (
        ("killed", TERMINATED.format(terminated[0]), RESTART_REMEDY)
        if terminated
        else ("running", None, None)
    )
