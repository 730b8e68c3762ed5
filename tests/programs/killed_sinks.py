"""A driver that writes hits into sinks, one small batch after the other, until it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import topiclake as tl
from tests.support.environment import quiet_conf
from topiclake.config.settings import Settings
from topiclake.session import local_session
from topiclake_examples.isp import count_records, dated_hits, hits_per_zip

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120


def kill_within_batch(settings: Settings, folder: Path, sink: str, batch: int) -> None:
    """Start the driver in a process group of its own, and kill it when the offsets of `batch` are fixed."""
    command = [
        sys.executable,
        "-m",
        "tests.programs.killed_sinks",
        settings.model_dump_json(),
        str(folder),
        sink,
    ]
    with (folder / "driver.log").open("w") as log:
        driver = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log, start_new_session=True)
    begun, end = folder / f"{sink}_checkpoint" / "offsets" / str(batch), time.monotonic() + PATIENCE_SECONDS
    try:
        while not begun.exists():
            assert driver.poll() is None, (folder / "driver.log").read_text()[-3000:]
            assert time.monotonic() < end, "no batch"
            time.sleep(0.01)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
    assert driver.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def start_files(spark, settings, folder):
    """Start the stream into files, as the test does it as well."""
    return tl.start_files(
        dated_hits(tl.read_values(spark, settings)),
        settings,
        path=f"{Path(folder).as_uri()}/files",
        checkpoint_path=f"{Path(folder).as_uri()}/files_checkpoint",
        partition_by=["zip", "day"],
    )


def start_both(spark, settings, folder):
    """Start the stream of changed counts into a Delta table and a topic, as the test does it as well."""
    where = Path(folder).as_uri()
    place = f"{where}/both_checkpoint"
    sinks = {
        "table": tl.delta_batches(
            settings,
            spark,
            path=f"{where}/per_zip",
            mode="merge",
            keys=["zip"],
        ),
        "topic": tl.topic_batches(
            settings,
            topic=f"{settings.pipeline.topic}-per-zip",
            records=count_records,
        ),
    }
    counts = hits_per_zip(tl.read_values(spark, settings))
    return tl.start_sinks(counts, settings, sinks, checkpoint_path=place, output_mode="update")


SINKS = {"files": start_files, "both": start_both}


def main(settings_json: str, folder: str, sink: str) -> None:
    """Write into a sink as `settings_json` says."""
    spark = local_session("killed", PROJECT / "jars", quiet_conf(folder) | {"spark.driver.memory": "1g"})
    SINKS[sink](spark, Settings.model_validate_json(settings_json), folder).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
