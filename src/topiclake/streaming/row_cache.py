"""The cache for rows that several jobs use."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from topiclake.session import is_connect

_LOG = logging.getLogger(__name__)


@contextmanager
def cached(rows: DataFrame) -> Iterator[DataFrame]:
    """Cache rows while several jobs use them, unless the caller has cached them.

    Serverless compute refuses to cache. Then each job computes the rows, and the log has one line.
    """
    is_own = False
    try:
        if not rows.storageLevel.useMemory:
            rows.persist()
            is_own = True
    except PySparkException as error:
        if not is_connect(rows.sparkSession):
            raise
        _log_once(str(error.getCondition()))
    try:
        yield rows
    finally:
        if is_own:
            rows.unpersist()


@functools.cache
def _log_once(condition: str) -> None:
    _LOG.warning("this compute caches no rows (%s): each job of a micro-batch computes them", condition)
