"""What two queries reported: everything that /metrics tells, of one that runs and one that has failed."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone

import psutil

from topiclake.monitoring.lag import Lag
from topiclake.monitoring.reports import BatchReport, PartitionReport, read_report
from topiclake.monitoring.store import Run, Store
from topiclake.streaming.batch_counts import TableCount

LAGS = {PartitionReport("gps", 0, 4, 9): Lag(5, 2.5), PartitionReport("gps", 1, 8, 9): Lag(1, 0.5)}
COUNTS = [TableCount("/gps", 7), TableCount("/gps_quarantine", 3, {"bad_magic": 2, "too_short": 1})]


def report_queries(store: Store) -> None:
    """Let `gps` run, with lag, rows, quarantine, late rows and state; `isp` has failed."""
    now = time.time()
    store.begin(_run("isp"), now)
    store.end("run of isp", now, "cause", "remedy")
    store.add(_run("gps"), _report(now), LAGS, COUNTS, now)


def _run(name: str) -> Run:
    process = psutil.Process()
    return Run(f"run of {name}", f"id of {name}", name, "tests", process.pid, process.create_time())


def _report(at: float) -> BatchReport:
    progress = {
        "batchId": 3,
        "timestamp": datetime.fromtimestamp(at, timezone.utc).isoformat().replace("+00:00", "Z"),
        "numInputRows": 10,
        "inputRowsPerSecond": 20.0,
        "processedRowsPerSecond": 30.0,
        "durationMs": {"addBatch": 300, "triggerExecution": 400},
        "stateOperators": [{"numRowsTotal": 5, "memoryUsedBytes": 100, "numRowsDroppedByWatermark": 2}],
        "sources": [],
        "sink": {"description": "tests"},
    }
    return read_report(json.dumps(progress))
