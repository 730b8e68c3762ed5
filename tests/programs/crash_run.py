"""An ingest in a process group of its own that is killed: at a random moment, or by itself at a given step.

Used by test_crashes.py and by bench/torture.py.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tests.programs.killed import PROJECT, KilledProgram, next_line
from tests.support.environment import quiet_conf
from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.ingest import registered_batch, targets
from topiclake.ingest import start as ingest
from topiclake.session import local_session
from topiclake.streaming import checkpoint, progress

#: Every place at which a batch can be cut in two: around its three commits, and before Spark's commit file.
STEPS = [f"{when} {commit}" for commit in ("table", "late", "quarantine") for when in ("before", "after")]
STEPS.append("before Spark's commit file")
#: Much longer than a start of Spark and a batch take, also on a busy machine.
PATIENCE_SECONDS = 180
#: As long as a batch takes; a kill comes so late at most.
MOST_SECONDS = 6.0
#: What the process says when a batch begins.
BEGUN = b"a batch has begun\n"


@dataclass(frozen=True)
class Ingest(KilledProgram):
    """An ingest of one pipeline."""

    settings: Settings
    is_transformed: bool = False

    def start(self, trigger: str = "1 second", step: str = "") -> subprocess.Popen[bytes]:
        """Start it in a separate process group."""
        settings = self._with(trigger).model_dump_json()
        return self.run(
            "tests.programs.crash_run", settings, str(self.folder), step, str(self.is_transformed)
        )

    def kill_at_random(self, chance: random.Random, batches: int = 1) -> str:
        """Kill the whole group at a random moment of one of its first so many batches; say which."""
        process = self.start()
        number = chance.randint(1, batches)
        for _ in range(number):
            assert _batch_begins(process), self.tail()
        seconds = chance.uniform(0, MOST_SECONDS)
        time.sleep(seconds)
        assert process.poll() is None, f"it ended by itself: {self.tail()}"
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        return f"{seconds:.2f} s after batch {number} began"

    def stop_at(self, step: str) -> None:
        """Start it, and wait until it killed its group at `step`."""
        assert self._ended(self.start(step=step)) == -signal.SIGKILL, f"{step}: {self.tail()}"

    def drain(self) -> None:
        """Start it, and wait until it has processed everything; each batch may take as long as a start."""
        process = self.start("availableNow")
        while _batch_begins(process):
            pass
        assert self._ended(process) == 0, self.tail()

    def drain_in(self, spark: SparkSession) -> None:
        """Process everything in a session that is warm."""
        query = ingest.start_ingest(
            spark, self._with("availableNow"), transform=doubled if self.is_transformed else None
        )
        progress.await_caught_up(query, "availableNow")

    def _with(self, trigger: str) -> Settings:
        pipeline = self.settings.pipeline.model_copy(update={"trigger": trigger})
        return self.settings.model_copy(update={"pipeline": pipeline})

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        """Wait until it ends, and return how; one that does not is killed."""
        try:
            return process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _batch_begins(process: subprocess.Popen[bytes]) -> bool:
    """Wait for the next batch, and return whether it began."""
    return next_line(process, PATIENCE_SECONDS) == BEGUN


# In the process that is killed


def doubled(rows: DataFrame) -> DataFrame:
    """Add a column, as a transform of the ingest."""
    return rows.selectExpr("*", "2 * number AS doubled")


def watch(step: str) -> None:
    """Say when a batch begins, and have the whole group killed when one comes to `step`."""
    append, write = delta.append_once, registered_batch.write

    def append_once(
        rows: DataFrame, path: str, *, writer: str, batch_id: int, commit: dict[str, object]
    ) -> None:
        late = "late" if writer.endswith(targets.LATE) else "table"
        kind = "quarantine" if path.endswith("_quarantine") else late
        _around(step, kind, lambda: append(rows, path, writer=writer, batch_id=batch_id, commit=commit))

    def write_batch(
        target: targets.Target, records: DataFrame, batch_id: int, **given: checkpoint.Ranges
    ) -> None:
        sys.stdout.buffer.write(BEGUN)
        sys.stdout.flush()
        write(target, records, batch_id, **given)
        _around(step, "Spark's commit file", lambda: None)

    delta.append_once, registered_batch.write = append_once, write_batch  # type: ignore[assignment]


def _around(step: str, commit: str, act: Callable[[], None]) -> None:
    for when in ("before", "after"):
        if step == f"{when} {commit}":
            os.killpg(0, signal.SIGKILL)
        if when == "before":
            act()


def main(settings_json: str, folder: str, step: str, is_transformed: str) -> None:
    """Ingest as `settings_json` says, and stop at `step`."""
    settings = Settings.model_validate_json(settings_json)
    watch(step)
    spark = local_session("crashes", PROJECT / "jars", quiet_conf(folder) | {"spark.driver.memory": "1g"})
    transform = doubled if is_transformed == "True" else None
    query = ingest.start_ingest(spark, settings, transform=transform)
    progress.await_caught_up(query, settings.pipeline.trigger)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
