"""The topic of docs/your-topic.md, with orders of two versions and bad records, and the page's commands."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import fastavro
from confluent_kafka import Producer

from topiclake.config.load import load_settings
from topiclake.kafka.admin import ensure_topic
from topiclake.kafka.client import client_settings
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame

PROJECT = Path(__file__).parents[2]
TOPIC = "shop.orders"
ORDERS = [
    {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]},
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    },
]
POISON = (b"", b"no Avro", None, frame(2**30, b"x"), b"\0\0")


def send_by_confluent_kafka(topic: str) -> None:
    """Send 20 orders of two versions, and five records that are none."""
    settings = load_settings("gps", {}, conf=PROJECT / "conf")
    ensure_topic(settings.kafka, topic, 3)
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    ids = [registry.register(f"{topic}-value", json.dumps(schema)) for schema in ORDERS]
    producer = Producer(client_settings(settings.kafka))
    for number in range(20):
        written = io.BytesIO()
        fastavro.schemaless_writer(written, ORDERS[number % 2], {"id": number, "note": f"n{number}"})
        producer.produce(topic, frame(ids[number % 2], written.getvalue()), partition=number % 3)
    for value in POISON:
        producer.produce(topic, value, partition=0)
    assert producer.flush(120) == 0


def page_commands(topic: str) -> list[str]:
    """Return the commands of the page, for a topic."""
    page = (PROJECT / "docs" / "your-topic.md").read_text("utf-8")
    (block,) = re.findall(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return block.replace(TOPIC, topic).splitlines()
