"""The Spark jobs of the cell that is being executed, so that an interrupt ends only these jobs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import py4j.java_gateway
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession
from tenacity import retry, retry_if_exception_type, stop_after_attempt

PY4J_LOGGERS = ("py4j.java_gateway", "py4j.clientserver")


class CellJobs:
    """Puts each cell's Spark jobs into a separate job group.

    The jobs of a streaming query run in the query's own thread, and Spark puts them into another group. They
    continue when a cell is interrupted.

    Args:
        live: Returns the session, or None if no session is live.
    """

    def __init__(self, live: Callable[[], SparkSession | None]) -> None:
        self._live = live
        self._cells = 0
        _drop_interrupt_logs()

    def before_cell(self, *_: object) -> None:
        """Begin the next cell's group."""
        self._cells += 1
        if spark := self._live():
            self.group(spark)

    def after_cell(self, result: Any) -> None:  # noqa: ANN401 - IPython's ExecutionResult
        """Cancel the jobs of a cell that was interrupted."""
        if is_interrupt(result.error_in_exec) and (spark := self._live()):
            self._cancel(spark)

    def group(self, spark: SparkSession) -> None:
        """Put the jobs that this thread starts from now on into the running cell's group."""
        # If the session was stopped, or its JVM has died, the cell that needs it shows the error.
        with contextlib.suppress(Py4JError, OSError, AttributeError):
            spark.sparkContext.setJobGroup(self._name, self._name, interruptOnCancel=True)

    @retry(retry=retry_if_exception_type(Py4JNetworkError), stop=stop_after_attempt(5), reraise=True)
    def _cancel(self, spark: SparkSession) -> None:
        # py4j has given up this thread's connection. The request continues in the JVM, and may be about to
        # start a job.
        context: Any = spark.sparkContext._jsc.sc()
        context.cancelJobGroupAndFutureJobs(self._name)
        _activate(spark)

    @property
    def _name(self) -> str:
        return f"cell {self._cells}"


def is_interrupt(error: BaseException | None) -> bool:
    """Return whether a cell, or its request to the JVM, was interrupted.

    After an interrupt PySpark cleans up over a new connection to the JVM. On a busy machine the JVM may
    refuse this connection, and then py4j's error replaces the interrupt.
    """
    while isinstance(error, (Py4JError, OSError)):
        error = error.__context__
    return isinstance(error, KeyboardInterrupt)


def _activate(spark: SparkSession) -> None:
    """Make the session the active one of this thread's new connection, which is a new thread in the JVM."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def _drop_interrupt_logs() -> None:
    """Drop py4j's log records of an interrupt, which show its stack in the cell: the cell shows it anyway.

    py4j logs them by a function of the root logger, which would set up logging for the whole notebook.
    """
    module: Any = py4j.java_gateway
    module.logging = module.logger
    for name in PY4J_LOGGERS:
        logging.getLogger(name).addFilter(lambda record: not _is_interrupt_record(record))


def _is_interrupt_record(record: logging.LogRecord) -> bool:
    _, error, _ = record.exc_info or (None, None, None)
    return is_interrupt(error)
