"""A driver that keeps counts in a database, in a process group of its own that is killed.

Used by test_jdbc.py and by bench/jdbc_kills.py.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.services.databases import PASSWORD, USER, Server
from tests.support.environment import quiet_conf
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.session import local_session
from topiclake.sinks.jdbc import connection as jdbc_connection
from topiclake.sinks.jdbc import upsert as jdbc_upsert
from topiclake.streaming import progress
from topiclake.streaming.sink import SinkBatch

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 180
BEGUN = "a batch has begun\n"
#: Of a batch's transaction, around its commit.
STEPS = ("before the commit", "after the commit")
#: Longer than a key may be, so that the quarantine gets it.
TOO_LONG = "long" * 100
TABLE = "counts"


def settings_for(folder: Path, server: Server, **database: object) -> Settings:
    """Return the configuration of a pipeline `counts` whose database is `server`."""
    given = {
        "url": server.url,
        "username": "{{secrets/db/username}}",
        "password": "{{secrets/db/password}}",
        "retry_seconds": 60,
    }
    tls = {"ca_file": str(server.certificate.authority)} if server.certificate else {"tls": False}
    paths = {"table_path": f"{folder}/table", "checkpoint_path": f"{folder}/checkpoint"}
    conf = {
        "kafka": {"bootstrap_servers": "127.0.0.1:9"},
        "schema_registry": {"url": "http://127.0.0.1:9"},
        "storage": {"source": folder.as_uri(), "mount_point": "/mnt/datalake", "mounted": False},
        "database": given | tls | database,
        "pipelines": {"counts": {"topic": "hits", "view": "hits"} | paths},
    }
    (folder / "base.yaml").write_text(json.dumps(conf))
    (folder / "local.yaml").write_text("")
    return read_settings(folder)


def read_settings(folder: Path, parameters: dict[str, str] | None = None) -> Settings:
    """Return the configuration that `settings_for` wrote."""
    secrets = {"username": USER, "password": PASSWORD, "reader": "reader", "wrong": "not the password"}
    return load_settings("counts", parameters or {}, secrets=lambda _, key: secrets[key], conf=folder)


def write_hits(folder: Path, files: int, seed: int) -> None:
    """Write files of hits; each becomes one micro-batch. Two thirds have a key that is too long."""
    chance = random.Random(seed)
    (folder / "hits").mkdir(parents=True, exist_ok=True)
    for number in range(files):
        hits = [{"key": f"k{chance.randrange(200)}", "bytes": chance.randrange(1000)} for _ in range(300)]
        hits += [{"key": TOO_LONG, "bytes": 1}] if number % 3 else []
        file = folder / "hits" / f"{number:05}.json"
        file.write_text("".join(json.dumps(hit) + "\n" for hit in hits))
        # Spark takes the oldest first.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def count_hits(hits: DataFrame) -> DataFrame:
    """Count by key: `key STRING, hits BIGINT, bytes BIGINT`."""
    return hits.groupBy("key").agg(F.count("*").alias("hits"), F.sum("bytes").alias("bytes"))


def expected(folder: Path) -> tuple[set[tuple[str, int, int]], list[int]]:
    """Compute without Spark what the table holds, and the counts of the key that is too long, in order."""
    hits, sizes, refused = Counter[str](), Counter[str](), []
    for file in sorted((folder / "hits").iterdir()):
        for line in file.read_text().splitlines():
            hit = json.loads(line)
            hits[hit["key"]] += 1
            sizes[hit["key"]] += hit["bytes"]
            if hit["key"] == TOO_LONG:
                refused.append(hits[TOO_LONG])
    return {(key, hits[key], sizes[key]) for key in hits if key != TOO_LONG}, refused


def found(server: Server) -> tuple[set[tuple[str, int, int]], list[int]]:
    """Return what is there, in the form of `expected`."""
    bytes_ = server.quoted("bytes")
    rows = server.query(f"SELECT {server.quoted('key')}, hits, {bytes_} FROM {TABLE}")
    refused = server.query(f"SELECT row_json FROM {TABLE}_quarantine ORDER BY batch_id, number")
    return set(rows), [json.loads(row)["hits"] for (row,) in refused]


@dataclass(frozen=True)
class Driver:
    """The process that is killed, and where its output goes."""

    folder: Path

    def start(self, step: str = "") -> subprocess.Popen[str]:
        """Start it in a group of its own."""
        command = [sys.executable, "-m", "tests.programs.jdbc_run", str(self.folder), step]
        with (self.folder / "stderr.log").open("a") as log:
            return subprocess.Popen(
                command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )

    def kill_at_random(self, chance: random.Random, most_seconds: float) -> bool:
        """Kill the group so many seconds after its first batch began; tell whether it still ran."""
        process = self.start()
        assert process.stdout is not None
        if process.stdout.readline() != BEGUN:
            assert process.wait(PATIENCE_SECONDS) == 0, self.tail()
            return False
        time.sleep(chance.uniform(0, most_seconds))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait(PATIENCE_SECONDS) == -signal.SIGKILL

    def stop_at(self, step: str) -> None:
        """Start it, and wait until it killed its group at `step` of its second batch."""
        assert self.start(step).wait(PATIENCE_SECONDS) == -signal.SIGKILL, self.tail()

    def drain(self) -> None:
        """Start it, and wait until it is done."""
        assert self.start().wait(3 * PATIENCE_SECONDS) == 0, self.tail()

    def tail(self) -> str:
        """Return the last of what it said."""
        return (self.folder / "stderr.log").read_text(errors="replace")[-3000:]


# In the process that is killed


def watch(step: str) -> None:
    """Say when a batch begins, and have the group killed when its second one comes to `step`."""
    write = jdbc_upsert.UpsertBatches.write
    batches = 0

    def write_batch(target: Any, rows: DataFrame, batch: SinkBatch) -> None:
        nonlocal batches
        batches += 1
        sys.stdout.write(BEGUN)
        sys.stdout.flush()
        write(target, rows, batch)
        if step == STEPS[1] and batches == 2:
            os.killpg(0, signal.SIGKILL)

    def before_commit(write_once: Callable[..., bool]) -> Callable[..., bool]:
        def written(*given: Any) -> bool:
            is_new = write_once(*given)
            if step == STEPS[0] and batches == 2:
                os.killpg(0, signal.SIGKILL)
            return is_new

        return written

    jdbc_upsert.UpsertBatches.write = write_batch  # type: ignore[method-assign, assignment]
    jdbc_upsert._write_once = before_commit(jdbc_upsert._write_once)


def start(spark: SparkSession, folder: Path) -> None:
    """Count what is there, a file a batch, and end."""
    settings = read_settings(folder)
    hits = spark.readStream.schema("key STRING, bytes BIGINT").option("maxFilesPerTrigger", 1)
    query = jdbc_upsert.start_upsert(
        count_hits(hits.json(f"{folder}/hits")),
        settings,
        table=TABLE,
        keys=["key"],
        checkpoint_path=f"{folder}/checkpoint",
    )
    progress.await_caught_up(query, "availableNow")
    assert jdbc_connection._pools, "the pool is kept while it is used"


def main(folder: str, step: str) -> None:
    """Count, and stop at `step`."""
    watch(step)
    small = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    spark = local_session("jdbc", PROJECT / "jars", quiet_conf(folder) | small)
    start(spark, Path(folder))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
