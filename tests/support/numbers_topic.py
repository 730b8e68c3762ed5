"""Topics of their own with numbers in Avro, and what tests do with them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from uuid import uuid4

import fastavro
from confluent_kafka import Producer

import topiclake as tl
from topiclake.config.load import load_settings
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame

CONF = Path(__file__).parents[2] / "conf"
SCHEMA = json.dumps({"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]})


def right(schema_id, n):
    """Return a record's value."""
    written = io.BytesIO()
    fastavro.schemaless_writer(written, json.loads(SCHEMA), {"n": n})
    return frame(schema_id, written.getvalue())


def crash_after_batch(checkpoint, number):
    """Leave a checkpoint as a crash does between a batch's commits and Spark's note of it."""
    (checkpoint / "commits" / str(number)).unlink()
    (checkpoint / "commits" / f".{number}.crc").unlink(missing_ok=True)


class Numbers:
    """Topics whose names begin alike, `a` first, and the pipeline that reads it."""

    def __init__(self, spark, folder):
        self.spark, self.folder, self.name = spark, folder, f"numbers-{uuid4().hex[:8]}"
        self.several = {
            "topic": f"{self.topic_name('a')},{self.topic_name('b')}",
            "table_path": f"{folder}/tables/{{topic}}",
        }
        self.registry = SchemaRegistry.from_settings(self.settings().schema_registry)

    def settings(self, **given):
        parameters = {
            "topic": self.topic_name("a"),
            "table_path": f"{self.folder}/table",
            "checkpoint_path": f"{self.folder}/checkpoint",
            "storage": self.folder.as_uri(),
        }
        if "table" in given:
            del parameters["table_path"]
        # No parameters of a notebook, so of a file's only.
        fixed = {"value_format", "value_schema", "consumer_group"} & set(given)
        changed = {"table_properties": {}} | {name: given.pop(name) for name in fixed}
        settings = load_settings("gps", parameters | given, conf=CONF)
        return settings.model_copy(update={"pipeline": settings.pipeline.model_copy(update=changed)})

    def topic_name(self, name):
        return f"{self.name}-{name}"

    def topic(self, name):
        kafka_admin.ensure_topic(self.settings().kafka, self.topic_name(name), 2)

    def register(self, name):
        return self.registry.register(f"{self.topic_name(name)}-value", SCHEMA)

    def send(self, name, *values):
        """Send values to partitions 0 and 1 in turn."""
        producer = Producer(kafka_client.client_settings(self.settings().kafka))
        for number, value in enumerate(values):
            producer.produce(self.topic_name(name), value=value, partition=number % 2)
        assert producer.flush(120) == 0

    def ingested(self, settings, transform=None):
        query = tl.start_ingest(self.spark, settings, transform=transform)
        tl.await_caught_up(query, settings.pipeline.trigger)
        return query
