"""What PySpark registers in its JVM for a listener, but with reports of micro-batches as one text.

PySpark's own asks the JVM for each part of a report: a hundred calls beside the next batch, which cost 4 % of
its time (`python -m bench.monitoring`). Not for Spark Connect, which has no JVM of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener


def json_listener(listener: StreamingQueryListener, take: Callable[[str], None]) -> Any:  # noqa: ANN401
    """Register what calls `take` with each report's JSON, and `listener` with all other events."""

    class JsonListener(JStreamingQueryListener):
        def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
            take(event.progress().json())

    assert SparkContext._jvm is not None  # noqa: S101 - a session has started it
    return SparkContext._jvm.PythonStreamingQueryListenerWrapper(JsonListener(listener))
