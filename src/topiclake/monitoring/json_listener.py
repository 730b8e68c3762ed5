"""The JVM's side of a PySpark listener, which passes the report of a micro-batch as one text.

PySpark's own asks the JVM for each part of a report. These hundred calls run during the next batch, and cost
4 % of its time (`python -m bench.monitoring`). Spark Connect cannot use it, since its client has no JVM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener


def json_listener(listener: StreamingQueryListener, on_progress: Callable[[str], None]) -> Any:  # noqa: ANN401
    """Return a listener of the JVM: `on_progress` gets each report's JSON, `listener` all other events."""

    class JsonListener(JStreamingQueryListener):
        def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
            on_progress(event.progress().json())

    assert SparkContext._jvm is not None  # noqa: S101 - a session has started it
    return SparkContext._jvm.PythonStreamingQueryListenerWrapper(JsonListener(listener))
