"""What flows while an ingest is killed, and whether its tables hold just that.

What record N is follows from N alone, so that the tables can be checked in one query, without a list of what
was sent.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.local_rows import local_rows
from topiclake.config.kafka import KafkaSettings
from topiclake.config.pipeline import PipelineSettings
from topiclake.config.schema_registry import SchemaRegistrySettings
from topiclake.config.settings import Settings
from topiclake.config.storage import StorageSettings
from topiclake.delta import table as delta
from topiclake.formats.avro import decoding as avro_decoding
from topiclake.ingest.audit import audit
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame

PARTITIONS = 3

FIELDS: list[dict[str, object]] = [{"name": "number", "type": "long"}, {"name": "text", "type": "string"}]
UNIT: list[dict[str, object]] = [{"name": "unit", "type": ["null", "string"], "default": None}]
RATIO: list[dict[str, object]] = [{"name": "ratio", "type": ["null", "double"], "default": None}]
EXTRA: list[dict[str, object]] = [{"name": "extra", "type": "string"}]

#: What record N is, and where it belongs; N is `id`.
EXPECTED = """
    SELECT cast(id % {partitions} AS INT) AS partition, id div {partitions} AS offset,
           CASE id % 20 WHEN 7 THEN 'undecodable' WHEN 11 THEN 'unknown_schema_id' WHEN 13 THEN 'tombstone'
                        WHEN 17 THEN 'bad_magic' ELSE 'ok' END AS place,
           CASE WHEN id % 20 IN (7, 11, 13, 17) THEN NULL ELSE struct(
               id AS number, concat('n', id) AS text,
               CASE WHEN id % 20 != 3 AND id % 3 > 0 THEN concat('m', id) END AS unit,
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
        schema_registry=SchemaRegistrySettings(url=registry_url, new_id_seconds=0),
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
        kafka_admin.ensure_topic(settings.kafka, topic, PARTITIONS)
        registry = SchemaRegistry.from_settings(settings.schema_registry)
        versions = (FIELDS, FIELDS + UNIT, FIELDS + UNIT + RATIO)
        self.ids = [registry.register(f"{topic}-value", record(fields)) for fields in versions]
        self.registry, self.topic, self.sent = registry, topic, 0
        self._producer = Producer(kafka_client.client_settings(settings.kafka) | {"enable.idempotence": True})

    def send(self, count: int) -> None:
        """Send the next `count` records; some of them with a schema that no earlier record has.

        That is of another subject: it must be looked up, and its records are written by commit 2.
        """
        late = record(FIELDS + EXTRA, doc=f"from {self.sent} on")
        self.late_id = self.registry.register(f"{self.topic}-other", late)
        for number in range(self.sent, self.sent + count):
            value = self.value(number)
            self._producer.produce(self.topic, value=value, partition=number % PARTITIONS)
            if number % 1000 == 0:
                self._producer.flush()
        assert self._producer.flush(120) == 0
        self.sent += count

    def value(self, number: int) -> bytes | None:
        """Return what Kafka holds under `number`."""
        start = avro_decoding.zigzag(number) + _text(f"n{number}")
        unit, ratio = b"\2" + _text(f"m{number}"), b"\2" + _double(number / 2)
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


def record(fields: list[dict[str, object]], doc: str = "") -> str:
    return json.dumps({"type": "record", "name": "Reading", "doc": doc, "fields": fields})


def _text(text: str) -> bytes:
    return avro_decoding.zigzag(len(text)) + text.encode()


def _double(number: float) -> bytes:
    return struct.pack("<d", number)


# In the parent: what the tables hold


def committed(folder: Path) -> dict[int, int]:
    """Return by partition how many records Spark's checkpoint calls done."""
    done = sorted(int(file.name) for file in (folder / "checkpoint" / "commits").glob("[0-9]*"))
    if not done:
        return dict.fromkeys(range(PARTITIONS), 0)
    last = (folder / "checkpoint" / "offsets" / str(done[-1])).read_text().splitlines()[-1]
    (ends,) = json.loads(last).values()
    return {int(partition): end for partition, end in ends.items()}


def audit_faults(spark: SparkSession, settings: Settings, folder: Path) -> list[str]:
    """Return what Topiclake's own audit finds; it knows Kafka only, not what was sent."""
    return [str(one) for one in audit.audit_ingest(spark, settings).findings]


def wrong(spark: SparkSession, folder: Path, sent: int) -> list[str]:
    """Return the first records that are not right: missing though done, doubled, elsewhere, other values."""
    found = _found(spark, folder).groupBy("partition", "offset")
    got = found.agg(F.collect_list("what").alias("got"))
    done = ", ".join(f"({partition}, {end})" for partition, end in committed(folder).items())
    expected = spark.sql(EXPECTED.format(partitions=PARTITIONS, first=0, end=sent))
    should = expected.selectExpr("partition", "offset", "array(struct(place, event)) AS should")
    both = should.join(got, ["partition", "offset"], "full_outer")
    ends = spark.sql(f"SELECT * FROM VALUES {done} AS ends(partition, done)")
    faults = both.join(ends, "partition", "left").where(
        "NOT (got <=> should) AND (got IS NOT NULL OR offset < done)"
    )
    return [str(row) for row in faults.orderBy("offset").limit(10).collect()]


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
    found = local_rows(spark, [], empty)
    for frame_ in frames:
        found = found.unionAll(frame_)
    return found
