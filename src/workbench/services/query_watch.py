"""The reports of a notebook's streaming queries, kept for the dashboard."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topiclake.monitoring.listener import QueryMonitor

_log = logging.getLogger("workbench.services.query_watch")


def reports_file(home_folder: Path) -> Path:
    """Return the file in which the kernels of a home keep the reports of their queries."""
    return home_folder / "data" / "reports.db"


class QueryWatch:
    """The watch of one kernel; if the file cannot be written, it only logs a line.

    Args:
        file: Where reports are kept.
        source: The notebook's name.
        redact: Removes secrets from a text.
    """

    def __init__(self, file: Path, source: str, redact: Callable[[str], str]) -> None:
        self._file, self._source, self._redact = file, source, redact
        self._monitor: QueryMonitor | None = None
        self._spark: SparkSession | None = None

    def begin(self, spark: SparkSession) -> None:
        """Watch the queries that this session starts from now on."""
        from topiclake.monitoring.listener import monitor_queries

        self.end()
        try:
            self._monitor = monitor_queries(
                spark, self._file, source=self._source, redact=self._redact, jvm=_jvm()
            )
            self._spark = spark
        except Exception as error:  # noqa: BLE001 - whatever it is, the notebook runs
            _log.warning("the dashboard will not show this notebook's queries: %s", error)

    def end(self) -> None:
        """Write the remaining reports, and end. To be called before the session stops."""
        if self._monitor is None or self._spark is None:
            return
        from topiclake.monitoring.listener import stop_monitoring

        # The JVM may have ended first.
        try:
            stop_monitoring(self._spark, self._monitor)
        except Exception:  # noqa: BLE001
            self._monitor.close()
        self._monitor = self._spark = None


def _jvm() -> int | None:
    """Return the JVM that runs the queries; None if it belongs to another process."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    return None if process is None else int(process.pid)
