"""A driver that counts edits in windows, and starts again by itself for new schemas, until it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import topiclake as tl
from tests.support.environment import quiet_conf
from tests.support.waiting import wait_until
from topiclake.config.settings import Settings
from topiclake.session import local_session
from topiclake.streaming import queries
from topiclake_examples.wikimedia import edits_per_window, wikimedia_edits

PROJECT = Path(__file__).resolve().parents[2]


class KilledEdits:
    """The driver, in a process group of its own.

    Args:
        settings: The pipeline.
        folder: Where the windows and the checkpoint are.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._offsets, self._log = folder / "checkpoint" / "offsets", folder / "driver.log"
        command = [
            sys.executable,
            "-m",
            "tests.programs.killed_edits",
            settings.model_dump_json(),
            str(folder),
        ]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, cwd=PROJECT, stdout=log, stderr=log, start_new_session=True
            )

    def await_batch(self, number: int) -> None:
        """Wait until a batch is planned."""
        self._await((self._offsets / str(number)).exists)

    def await_log(self, text: str) -> None:
        """Wait until it says something."""
        self._await(lambda: text in self._log.read_text())

    def _await(self, condition: Callable[[], bool]) -> None:
        wait_until(lambda: self._process.poll() is not None or condition())
        assert self._process.poll() is None, self._log.read_text()[-3000:]

    def kill(self) -> None:
        """Kill the group."""
        os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.wait(120) == -signal.SIGKILL


def start(spark, settings, folder):
    """Start counting into Parquet files, as the test does it as well."""
    counts = edits_per_window(wikimedia_edits(tl.read_values(spark, settings)))
    checkpoint = f"{folder}/checkpoint"
    writer = counts.writeStream.queryName("edits").format("parquet").option("path", f"{folder}/windows")
    writer = writer.option("checkpointLocation", checkpoint)
    return queries.start(writer, settings, spark, checkpoint)


def main(settings_json: str, folder: str) -> None:
    """Count edits as `settings_json` says."""
    spark = local_session("killed", PROJECT / "jars", quiet_conf(folder) | {"spark.driver.memory": "1g"})
    settings = Settings.model_validate_json(settings_json)
    tl.start_restarted(lambda: start(spark, settings, folder)).keep_running(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
