"""The ingests of the shop's changes in a separate process group, which is killed.

Used by bench/torture_changes.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import topiclake as tl
from tests.programs.killed import PROJECT, KilledProgram, next_line
from tests.support.environment import quiet_conf
from topiclake.config.settings import Settings
from topiclake.delta import merge
from topiclake.session import local_session

#: Much longer than a start of Spark and a batch take, also on a busy machine.
PATIENCE_SECONDS = 600
#: The line that the process prints once all of its queries run.
STARTED = b"all queries run\n"


@dataclass(frozen=True)
class ChangeIngests(KilledProgram):
    """The ingests of several pipelines in one process."""

    settings: Sequence[Settings]

    def start(self, *, trigger: str = "1 second", share: float | None = None) -> subprocess.Popen[bytes]:
        """Start the ingests in a separate process group, and return once all of them run.

        Args:
            trigger: The trigger of each ingest.
            share: The share of a MERGE's time after which the group is killed. None: it is not.
        """
        # A default may contradict other keys if it is set.
        given = [each.model_dump_json(exclude_unset=True) for each in self._triggered(trigger)]
        process = self.run(
            "tests.programs.changes_run", str(self.folder), "" if share is None else str(share), *given
        )
        line = next_line(process, PATIENCE_SECONDS)
        # A MERGE of the first query may end the process before the last query is started.
        assert line == STARTED or share is not None, f"{line!r}, {process.poll()}: {self.tail()}"
        return process

    def drain(self) -> None:
        """Process everything that Kafka holds."""
        process = self.start(trigger="availableNow")
        assert process.wait(PATIENCE_SECONDS) == 0, self.tail()

    def _triggered(self, trigger: str) -> list[Settings]:
        return [
            each.model_copy(update={"pipeline": each.pipeline.model_copy(update={"trigger": trigger})})
            for each in self.settings
        ]


# In the process that is killed


def kill_within_merge(share: float) -> None:
    """Have the whole group killed in a MERGE, after a share of the time that the MERGE before took."""
    execute = merge.execute_once
    seconds: list[float] = []

    def execute_once(*args: Any, **options: Any) -> int:
        begin = time.monotonic()
        timer = threading.Timer(share * seconds[-1], os.killpg, (0, signal.SIGKILL)) if seconds else None
        if timer is not None:
            timer.start()
        changed_rows = execute(*args, **options)
        if timer is not None:
            timer.cancel()
        seconds.append(time.monotonic() - begin)
        return changed_rows

    merge.execute_once = execute_once


def main(folder: str, share: str, *given: str) -> None:
    """Run an ingest of each of the `given` settings."""
    if share:
        kill_within_merge(float(share))
    settings = [Settings.model_validate_json(each) for each in given]
    spark = local_session("changes", PROJECT / "jars", quiet_conf(folder) | {"spark.driver.memory": "2g"})
    queries = [tl.start_ingest(spark, each) for each in settings]
    sys.stdout.buffer.write(STARTED)
    sys.stdout.flush()
    for query, each in zip(queries, settings, strict=True):
        tl.await_caught_up(query, each.pipeline.trigger)
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
