"""`python -m workbench consume`: what Java's own Kafka and Avro classes read of what was written here."""

from __future__ import annotations

import io
import json
import re
import signal
from uuid import uuid4

import fastavro
import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from tests.support.environment import succeeded
from topiclake.config.kafka import KafkaSettings
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry.wire_format import frame

PLACE = {"type": "record", "name": "Place", "namespace": "t", "fields": [{"name": "zip", "type": "int"}]}
FIRST = {
    "type": "record",
    "name": "Hit",
    "namespace": "t",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "isp", "type": ["null", "string"]},
        {"name": "place", "type": "t.Place"},
        {"name": "raw", "type": "bytes"},
    ],
}
SECOND = FIRST | {"fields": [*FIRST["fields"], {"name": "tags", "type": {"type": "map", "values": "double"}}]}


class Topic:
    """A topic with one partition, and schemas of its own."""

    def __init__(self, addresses, registry):
        self.name, self.registry = f"console-{uuid4().hex[:8]}", registry
        settings = KafkaSettings(bootstrap_servers=addresses.kafka_bootstrap_servers)
        kafka_admin.ensure_topic(settings, self.name, 1)
        self.producer = Producer(kafka_client.client_settings(settings))

    def register(self, schema, part="value", **given):
        subject = f"{self.name}-{part}"
        return self.registry.register_schema(subject, Schema(json.dumps(schema), "AVRO", **given))

    def register_hits(self):
        place = f"{self.name}-place"
        self.registry.register_schema(place, Schema(json.dumps(PLACE), "AVRO"))
        reference = [SchemaReference("t.Place", place, 1)]
        return [self.register(schema, references=reference) for schema in (FIRST, SECOND)]

    def send(self, *records):
        for value, given in records:
            self.producer.produce(self.name, value=value, partition=0, **given)
        assert self.producer.flush(120) == 0


def avro(schema, value):
    written = io.BytesIO()
    known = {}
    fastavro.parse_schema(PLACE, named_schemas=known)
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema, named_schemas=known), value)
    return written.getvalue()


def hit(number, **more):
    return {"at": 1_700_000_000_000 + number, "isp": None, "place": {"zip": number}, "raw": b"\xff"} | more


def as_json(number, isp=None, **more):
    shown = {"at": 1_700_000_000_000 + number, "isp": isp, "place": {"zip": number}, "raw": "\xff"}
    return json.dumps(shown | more, separators=(",", ":"), ensure_ascii=False)


@pytest.fixture
def topic(embedded):
    _, addresses = embedded
    with SchemaRegistryClient({"url": addresses.schema_registry_url}) as registry:
        yield Topic(addresses, registry)


@pytest.mark.thorough("the tutorials show the console consumer")
def test_records_of_several_schemas_are_json_in_avros_own_encoding(topic, consume):
    v1, v2 = topic.register_hits()
    key = topic.register({"type": "string"}, "key")
    topic.send(
        (frame(v1, avro(FIRST, hit(1))), {"key": frame(key, avro({"type": "string"}, "a"))}),
        (
            frame(v2, avro(SECOND, hit(2, isp="x\té", tags={"n": 0.5}))),
            {"key": frame(key, avro({"type": "string"}, "b\n")), "headers": [("h", b"1"), ("i", b"2")]},
        ),
        (None, {"key": None}),
    )
    shown = succeeded(consume(topic.name, "--avro", "--from-beginning", "--max-messages", "3"))
    assert shown.splitlines() == [as_json(1), as_json(2, {"string": "x\té"}, tags={"n": 0.5}), "null"]

    chosen = [
        part for name in ("offset", "headers", "schema.ids") for part in ("--property", f"print.{name}=true")
    ]
    options = (
        "--avro-keys",
        "--from-beginning",
        "--max-messages",
        "2",
        *chosen,
        "--property",
        "key.separator=|",
    )
    shown = succeeded(consume(topic.name, *options)).splitlines()
    assert shown[0] == f'Offset:0|NO_HEADERS|"a"\t{key}|{as_json(1)}\t{v1}'
    assert shown[1].startswith(f'Offset:1|h:1,i:2|"b\\n"\t{key}|')


@pytest.mark.thorough("a further start of the console consumer")
def test_what_is_no_avro_is_named_and_ends_it_or_is_left_out(topic, consume):
    v1, _ = topic.register_hits()
    right, unknown = frame(v1, avro(FIRST, hit(1))), 2_000_000_000
    wrong = {
        b"{}": "2 bytes are less than the 5",
        b"{}    ": "byte 0 is 0x7B, not 0x00",
        right[:-1]: "its bytes end before",
        right + b"\0": "bytes remain after the record of schema t.Hit",
        frame(unknown, b""): f"answered 404 to http.*/schemas/ids/{unknown}",
        frame(v1, b"\0" * 3 + b"\xff" * 12): "",
    }
    topic.send(*((value, {}) for value in (right, *wrong, right)))
    stopped = consume(topic.name, "--avro", "--from-beginning", "--max-messages", "8")
    assert (stopped.returncode, stopped.stdout) == (1, f"{as_json(1)}\n")
    place = f"value of topic {topic.name}, partition 0, offset"
    assert f"{place} 1 is not shown: 2 bytes are less" in stopped.stderr
    assert "try: --skip-message-on-error" in stopped.stderr
    assert "\tat " not in stopped.stderr

    skipped = consume(
        topic.name, "--avro", "--from-beginning", "--max-messages", "8", "--skip-message-on-error"
    )
    assert succeeded(skipped).splitlines() == [as_json(1)] * 2
    lines = [line for line in skipped.stderr.splitlines() if place in line]
    assert len(lines) == len(wrong)
    for offset, (line, why) in enumerate(zip(lines, wrong.values(), strict=True), start=1):
        assert re.search(f"offset {offset} is not shown: .*{why}", line)


def test_a_topic_that_is_not_there_is_named_before_java_starts(consume):
    done = consume("nobody-has-made-it", "--avro")
    assert done.returncode == 1
    assert "topic nobody-has-made-it is not on the broker" in done.stderr


@pytest.mark.thorough("a further start of the console consumer")
def test_ctrl_c_ends_it_at_once(topic, consuming):
    v1, _ = topic.register_hits()
    topic.send((frame(v1, avro(FIRST, hit(1))), {}))
    with consuming(topic.name, "--avro", "--from-beginning") as console:
        assert console.stdout.readline() == f"{as_json(1)}\n"
        # Nothing that is secret, or may be, is among the arguments, which each user of the machine can read.
        assert "/apis/" not in " ".join(psutil.Process(console.pid).cmdline())
        console.send_signal(signal.SIGINT)
        _, errors = console.communicate(timeout=120)
    assert console.returncode == 128 + signal.SIGINT
    assert "Processed a total of 1 messages" in errors
