"""An ingest in a process group of its own that is killed: at a random moment, or by itself at a given step.

Used by test_crashes.py and by bench/torture.py. What record N is follows from N alone, so that the tables can
be checked in one query, without a list of what was sent.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from bench.drain import Mounts
from topiclake import avro, delta, ingest, kafka, micro_batch, progress
from topiclake.schema_registry import SchemaRegistry
from topiclake.session import local_session
from topiclake.settings import (
    KafkaSettings,
    PipelineSettings,
    SchemaRegistrySettings,
    Settings,
    StorageSettings,
)
from topiclake.wire_format import frame

PROJECT = Path(__file__).resolve().parents[2]
PARTITIONS = 3
#: Every place at which a batch can be cut in two: around its three commits, and before Spark's commit file.
STEPS = [f"{when} {commit}" for commit in ("table", "late", "quarantine") for when in ("before", "after")]
STEPS.append("before Spark's commit file")
#: Much longer than a start of Spark and a batch take, also on a busy machine.
PATIENCE_SECONDS = 180

FIELDS: list[dict[str, object]] = [{"name": "number", "type": "long"}, {"name": "text", "type": "string"}]
UNIT: list[dict[str, object]] = [{"name": "unit", "type": "string", "default": "km"}]
RATIO: list[dict[str, object]] = [{"name": "ratio", "type": ["null", "double"], "default": None}]
EXTRA: list[dict[str, object]] = [{"name": "extra", "type": "string"}]

#: What record N is, and where it belongs. `{n}` is N.
EXPECTED = """
    SELECT cast(id % {partitions} AS INT) AS partition, id div {partitions} AS offset,
           CASE id % 20 WHEN 7 THEN 'undecodable' WHEN 11 THEN 'unknown_schema_id' WHEN 13 THEN 'tombstone'
                        WHEN 17 THEN 'bad_magic' ELSE 'ok' END AS place,
           CASE WHEN id % 20 IN (7, 11, 13, 17) THEN NULL ELSE struct(
               id AS number, concat('n', id) AS text,
               CASE WHEN id % 20 = 3 OR id % 3 = 0 THEN 'km' ELSE concat('m', id) END AS unit,
               CASE WHEN id % 20 != 3 AND id % 3 = 2 THEN id / 2 END AS ratio,
               CASE WHEN id % 20 = 3 THEN concat('x', id) END AS extra) END AS event
    FROM range({first}, {end})
"""


def settings_for(kafka_servers: str, registry_url: str, topic: str, folder: Path, batch: int) -> Settings:
    """Configure an ingest of `topic` into `folder`, in batches of at most `batch` records."""
    return Settings(
        env="test",
        name=topic,
        kafka=KafkaSettings(bootstrap_servers=kafka_servers),
        schema_registry=SchemaRegistrySettings(url=registry_url),
        storage=StorageSettings(source=folder.as_uri(), mount_point="/mnt/datalake"),
        pipeline=PipelineSettings(
            topic=topic,
            trigger="1 second",
            max_offsets_per_trigger=batch,
            view="crashes",
            table_path="/mnt/datalake/table",
            checkpoint_path="/mnt/datalake/checkpoint",
        ),
    )


class Traffic:
    """The topic, and how many of its records were sent: number N is offset N // 3 of partition N % 3."""

    def __init__(self, settings: Settings) -> None:
        topic = settings.pipeline.topic
        kafka.ensure_topic(settings.kafka, topic, PARTITIONS)
        registry = SchemaRegistry.from_settings(settings.schema_registry)
        versions = (FIELDS, FIELDS + UNIT, FIELDS + UNIT + RATIO)
        self.ids = [registry.register(f"{topic}-value", _record(fields)) for fields in versions]
        # Not a subject of the topic: its id must be looked up, and its records are written by commit 2.
        self.late_id = registry.register(f"{topic}-other", _record(FIELDS + EXTRA))
        self.topic, self.sent = topic, 0
        self._producer = Producer(kafka.client_settings(settings.kafka) | {"enable.idempotence": True})

    def send(self, count: int) -> None:
        """Send the next `count` records."""
        for number in range(self.sent, self.sent + count):
            value = self.value(number)
            self._producer.produce(self.topic, value=value, partition=number % PARTITIONS)
            if number % 1000 == 0:
                self._producer.flush()
        assert self._producer.flush(30) == 0
        self.sent += count

    def value(self, number: int) -> bytes | None:
        """Return what Kafka holds under `number`."""
        start = avro.zigzag(number) + _text(f"n{number}")
        unit, ratio = _text(f"m{number}"), b"\2" + _double(number / 2)
        whole = [start, start + unit, start + unit + ratio][number % 3]
        schema_id = self.ids[number % 3]
        others: dict[int, bytes | None] = {
            3: frame(self.late_id, start + _text(f"x{number}")),
            7: frame(schema_id, whole[:-1]),
            11: frame(2**31 - 1, whole),
            13: None,
            17: b"\1" + frame(schema_id, whole)[1:],
        }
        return others.get(number % 20, frame(schema_id, whole))


def _record(fields: list[dict[str, object]]) -> str:
    return json.dumps({"type": "record", "name": "Reading", "fields": fields})


def _text(text: str) -> bytes:
    return avro.zigzag(len(text)) + text.encode()


def _double(number: float) -> bytes:
    import struct

    return struct.pack("<d", number)


@dataclass(frozen=True)
class Ingest:
    """The process that is killed, and where its output goes."""

    settings: Settings
    folder: Path

    def start(self, trigger: str = "1 second", step: str = "") -> subprocess.Popen[str]:
        """Start it in a group of its own; return when its query runs."""
        pipeline = self.settings.pipeline.model_copy(update={"trigger": trigger})
        told = self.settings.model_copy(update={"pipeline": pipeline}).model_dump_json()
        command = [sys.executable, "-m", "tests.integration.crash_run", told, str(self.folder), step]
        with self.log.open("a") as log:
            process = subprocess.Popen(
                command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n", self.tail()
        return process

    @property
    def log(self) -> Path:
        """What it says on stderr."""
        return self.folder / "stderr.log"

    def tail(self) -> str:
        """Return the last of what it said."""
        return self.log.read_text(errors="replace")[-3000:]

    def kill_at_random(self, chance: random.Random, most_seconds: float = 6.0) -> float:
        """Start it and kill the whole group, in the middle of whatever it does; return after how long."""
        process = self.start()
        seconds = chance.uniform(0, most_seconds)
        time.sleep(seconds)
        assert process.poll() is None, f"it ended by itself: {self.tail()}"
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        return seconds

    def stop_at(self, step: str) -> None:
        """Start it, and wait until it killed its group at `step`."""
        assert self.start(step=step).wait(PATIENCE_SECONDS) == -signal.SIGKILL, f"{step}: {self.tail()}"

    def drain(self) -> None:
        """Start it, and wait until it has processed everything."""
        process = self.start("availableNow")
        assert process.wait(10 * PATIENCE_SECONDS) == 0, self.tail()


# In the parent: what the tables hold


def committed(folder: Path) -> dict[int, int]:
    """Return by partition how many records Spark's checkpoint calls done."""
    done = sorted(int(file.name) for file in (folder / "checkpoint" / "commits").glob("[0-9]*"))
    if not done:
        return dict.fromkeys(range(PARTITIONS), 0)
    last = (folder / "checkpoint" / "offsets" / str(done[-1])).read_text().splitlines()[-1]
    (ends,) = json.loads(last).values()
    return {int(partition): end for partition, end in ends.items()}


def faults(spark: SparkSession, folder: Path, sent: int) -> list[str]:
    """Return the first records that are not right: missing although done, doubled, elsewhere, other values."""
    found = _found(spark, folder).groupBy("partition", "offset")
    got = found.agg({"what": "collect_list"}).withColumnRenamed("collect_list(what)", "got")
    done = ", ".join(f"({partition}, {end})" for partition, end in committed(folder).items())
    expected = spark.sql(EXPECTED.format(partitions=PARTITIONS, first=0, end=sent))
    should = expected.selectExpr("partition", "offset", "array(struct(place, event)) AS should")
    both = should.join(got, ["partition", "offset"], "full_outer")
    ends = spark.sql(f"SELECT * FROM VALUES {done} AS ends(partition, done)")
    wrong = both.join(ends, "partition", "left").where(
        "NOT (got <=> should) AND (got IS NOT NULL OR offset < done)"
    )
    return [str(row) for row in wrong.orderBy("offset").limit(10).collect()]


def _found(spark: SparkSession, folder: Path) -> DataFrame:
    """Return each row of both tables as `partition, offset, what STRUCT<place, event>`."""
    event_type = "STRUCT<number: BIGINT, text: STRING, unit: STRING, ratio: DOUBLE, extra: STRING>"
    frames = []
    if delta.is_table(spark, str(folder / "table")):
        rows = delta.read(spark, str(folder / "table"))
        names = ("number", "text", "unit", "ratio", "extra")
        fields = ", ".join(f"{name if name in rows.columns else 'NULL'} AS {name}" for name in names)
        event = f"cast(struct({fields}) AS {event_type})"
        frames.append(rows.selectExpr("_kafka.*", f"struct('ok' AS place, {event} AS event) AS what"))
    if delta.is_table(spark, str(folder / "table_quarantine")):
        rows = delta.read(spark, str(folder / "table_quarantine"))
        event = f"struct(reason AS place, cast(NULL AS {event_type}) AS event) AS what"
        frames.append(rows.selectExpr("partition", "offset", event))
    empty = f"partition INT, offset BIGINT, what STRUCT<place: STRING, event: {event_type}>"
    found = spark.createDataFrame([], empty)
    for frame_ in frames:
        found = found.unionAll(frame_)
    return found


# In the process that is killed


def kill_at(step: str) -> None:
    """Have the whole group killed at `step` of the next batch that comes there."""
    append, write = delta.append_once, micro_batch.write

    def append_once(
        rows: DataFrame, path: str, *, writer: str, batch_id: int, commit: dict[str, object]
    ) -> None:
        late = "late" if writer.endswith(micro_batch.LATE) else "table"
        kind = "quarantine" if path.endswith("_quarantine") else late
        _around(step, kind, lambda: append(rows, path, writer=writer, batch_id=batch_id, commit=commit))

    def write_batch(target: micro_batch.Target, records: DataFrame, batch_id: int) -> None:
        write(target, records, batch_id)
        _around(step, "Spark's commit file", lambda: None)

    delta.append_once, micro_batch.write = append_once, write_batch  # type: ignore[assignment]


def _around(step: str, commit: str, act: Callable[[], None]) -> None:
    for when in ("before", "after"):
        if step == f"{when} {commit}":
            os.killpg(0, signal.SIGKILL)
        if when == "before":
            act()


def main(told: str, folder: str, step: str, out: IO[str] = sys.stdout) -> None:
    """Ingest as `told`, and stop at `step`."""
    settings = Settings.model_validate_json(told)
    if step:
        kill_at(step)
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
    }
    here = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    scratch = {"spark.local.dir": f"{folder}/tmp", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
    spark = local_session("crashes", PROJECT / "jars", quiet | here | scratch)
    query = ingest.start_ingest(spark, settings, Mounts(Path(folder)))
    print("started", file=out, flush=True)
    progress.await_caught_up(query, settings.pipeline.trigger)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
