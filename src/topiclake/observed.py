"""What an action counted on its way, as Spark's Observation tells it, or does not."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import Observation

#: Spark tells it by a listener, behind those of others: for a slow one there is time.
WAIT_SECONDS = 60.0
_LONGEST_PAUSE = 0.05


def counts(observation: Observation) -> dict[str, Any] | None:
    """Wait for what an action counted that has ended.

    `Observation.get` waits for ever where Spark never tells: its listener bus drops events when it is full,
    and somebody may have cleared the session's listeners (https://issues.apache.org/jira/browse/SPARK-55037).

    Returns:
        The counts by name; None where Spark does not tell them within `WAIT_SECONDS`.
    """
    observed = getattr(observation, "_jo", None)
    if observed is None:
        # Spark Connect: the action's own answer held them.
        return observation.get
    told, end, pause = observed.future(), time.monotonic() + WAIT_SECONDS, 0.001
    while not told.isCompleted():
        if time.monotonic() > end:
            return None
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return observation.get or None
