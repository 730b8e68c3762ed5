"""Python imports this at its start: a run numbers its functions for the JVM as no other run does.

Each Python numbers them from 0. The JVM that runs share sends the number of a function that it has dropped to
the running Python, also if the function was of an earlier run.
"""

import time

from py4j.java_gateway import PythonProxyPool

_initialize = PythonProxyPool.__init__


def _initialize_uniquely(pool: PythonProxyPool) -> None:
    _initialize(pool)
    pool.next_id = time.time_ns()


PythonProxyPool.__init__ = _initialize_uniquely
