"""Metrics of Spark's Observation, with a limit on the time to wait for them."""

from __future__ import annotations

import logging
import time
from typing import Any

from pyspark.sql import Observation

#: Time to wait for metrics (s). A listener of Spark delivers them, after the session's other listeners, which
#: may be slow.
WAIT_SECONDS = 60.0
#: Time to wait for metrics that may not exist (s). Spark usually delivers metrics within milliseconds.
_SHORT_WAIT_SECONDS = 1.0
_LONGEST_PAUSE = 0.05
_log = logging.getLogger(__name__)


def counts(action: str, *observations: Observation) -> dict[str, Any] | None:
    """Wait for the metrics of an action that has ended.

    `Observation.get` may wait for ever. Spark's listener bus drops events when it is full, and a user may
    have cleared the session's listeners (https://issues.apache.org/jira/browse/SPARK-55037).

    Args:
        action: Description of the action for the log, which is written if its metrics are lost.
        observations: The observations of that action.

    Returns:
        The metrics of all observations by name, or None if Spark does not deliver them in `WAIT_SECONDS`.
    """
    end = time.monotonic() + WAIT_SECONDS
    counted: dict[str, Any] = {}
    for observation in observations:
        metrics = _metrics(observation) if _has_metrics(observation, end) else {}
        if not metrics:
            _log.warning("%s, but Spark did not deliver its metrics: the records are read again", action)
            return None
        counted |= metrics
    return counted


def has_metrics(observation: Observation) -> bool:
    """Return whether Spark has delivered metrics of an action that has ended.

    False: Spark may still deliver them, or the action was not executed, such as an append that Delta skipped.
    """
    # On Spark Connect, reading metrics that do not exist is an error.
    has_metrics = hasattr(observation, "_jo") and _has_metrics(
        observation, time.monotonic() + _SHORT_WAIT_SECONDS
    )
    return has_metrics and bool(_metrics(observation))


def _metrics(observation: Observation) -> dict[str, Any]:
    """Return the delivered metrics, which are empty if the action computed none."""
    observed = getattr(observation, "_jo", None)
    # PySpark fails on an empty row. Spark delivers one for an append by name that Delta skipped.
    if observed is not None and observed.getRow().size() == 0:
        return {}
    return observation.get


def _has_metrics(observation: Observation, end: float) -> bool:
    observed = getattr(observation, "_jo", None)
    if observed is None:
        # On Spark Connect the response of the action contains the metrics.
        return True
    metrics, pause = observed.future(), 0.001
    while not metrics.isCompleted():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True
