"""Keeps what a notebook's streaming queries report, for the dashboard."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topiclake.monitoring.listener import QueryMonitor

_log = logging.getLogger("workbench.query_watch")


def reports_file(home_folder: Path) -> Path:
    """Return the file in which the kernels of a home keep what their queries report."""
    return home_folder / "data" / "reports.db"


class QueryWatch:
    """The watch of one kernel; a file that cannot be written costs the notebook a line in its log.

    Args:
        file: Where reports are kept.
        source: The notebook's name.
        redact: Takes secrets out of a text.
    """

    def __init__(self, file: Path, source: str, redact: Callable[[str], str]) -> None:
        self._file, self._source, self._redact = file, source, redact
        self._monitor: QueryMonitor | None = None

    def begin(self, spark: SparkSession) -> None:
        """Watch the queries that this session starts from now on."""
        from topiclake.monitoring.listener import monitor_queries

        self.end()
        try:
            self._monitor = monitor_queries(spark, self._file, source=self._source, redact=self._redact)
        except Exception as error:  # noqa: BLE001 - whatever it is, the notebook runs
            _log.warning("the dashboard will not show this notebook's queries: %s", error)

    def end(self) -> None:
        """Write what is still to be written; behind the session's end, which ends its queries."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
