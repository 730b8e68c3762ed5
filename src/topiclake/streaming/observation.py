"""What an action counted on its way, as Spark's Observation tells it, or does not."""

from __future__ import annotations

import logging
import time
from typing import Any

from pyspark.sql import Observation

#: Spark tells it by a listener, behind those of others: for a slow one there is time.
WAIT_SECONDS = 60.0
#: So long it is waited for where it may not be told at all: mostly it takes some milliseconds.
_SOON_SECONDS = 1.0
_LONGEST_PAUSE = 0.05
_log = logging.getLogger(__name__)


def counts(done: str, *observations: Observation) -> dict[str, Any] | None:
    """Wait for what an action counted that has ended.

    `Observation.get` waits for ever where Spark never tells: its listener bus drops events when it is full,
    and somebody may have cleared the session's listeners (https://issues.apache.org/jira/browse/SPARK-55037).

    Args:
        done: What the action did, for the log, in which it stands when its counts are lost.
        observations: Of that one action.

    Returns:
        The counts of all by name; None where Spark does not tell them within `WAIT_SECONDS`, or tells none.
    """
    end = time.monotonic() + WAIT_SECONDS
    counted: dict[str, Any] = {}
    for observation in observations:
        metrics = observation.get if _has_metrics(observation, end) else {}
        if not metrics:
            _log.warning("%s, but Spark does not tell its counts: what is left of it is looked for", done)
            return None
        counted |= metrics
    return counted


def has_metrics(observation: Observation) -> bool:
    """Return whether Spark tells what an action counted that has ended; False where it may still do so.

    An action that was not executed, as an append that is there already, counts nothing.
    """
    # On Spark Connect to ask for what was not counted is an error.
    is_told = hasattr(observation, "_jo") and _has_metrics(observation, time.monotonic() + _SOON_SECONDS)
    return is_told and bool(observation.get)


def _has_metrics(observation: Observation, end: float) -> bool:
    observed = getattr(observation, "_jo", None)
    if observed is None:
        # Spark Connect: the action's own answer held them.
        return True
    metrics, pause = observed.future(), 0.001
    while not metrics.isCompleted():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True
