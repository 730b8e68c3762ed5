"""Rows to topics as Avro, read back by Confluent's own deserializer."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from uuid import uuid4

import pytest
import requests
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

import topiclake as tl
from tests.support.local_rows import local_rows
from topiclake.config.load import load_settings
from topiclake.errors import ConfigError, EncodeError, SchemaRegistryError
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.kafka.writer import ID_HEADER

CONF = Path(__file__).parents[3] / "conf"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


class Out:
    """A topic of its own to write to, and what reads it."""

    def __init__(self, spark, folder):
        self.spark, self.folder, self.topic = spark, folder, f"out-{uuid4().hex[:8]}"
        parameters = {"topic": "unused", "table_path": f"{folder}/t", "checkpoint_path": f"{folder}/c"}
        self.settings = load_settings("gps", parameters | {"storage": folder.as_uri()}, conf=CONF)
        self.url = self.settings.schema_registry.url

    def rows(self, ddl, *values):
        return local_rows(self.spark, list(values), ddl)

    def propose(self, rows, **given):
        return tl.propose_schemas(rows, self.settings, **({"topic": self.topic} | given))

    def write(self, rows, **given):
        proposal = self.propose(rows, **given)
        for topic in proposal.topics:
            kafka_admin.ensure_topic(self.settings.kafka, topic, 2)
        tl.write_avro(rows, self.settings, proposal, write_id="one")

    def messages(self, topic=None):
        topic = topic or self.topic
        consumer = Consumer(kafka_client.client_settings(self.settings.kafka) | {"group.id": "tests"})
        try:
            parts = [
                TopicPartition(topic, n, 0) for n in consumer.list_topics(topic).topics[topic].partitions
            ]
            number = sum(consumer.get_watermark_offsets(one)[1] for one in parts)
            consumer.assign(parts)
            return consumer.consume(number, timeout=120) if number else []
        finally:
            consumer.close()

    def read(self, topic=None, field=MessageField.VALUE):
        with SchemaRegistryClient({"url": self.url}) as client:
            deserializer = AvroDeserializer(client)
            return [
                deserializer(
                    message.value() if field == MessageField.VALUE else message.key(),
                    SerializationContext(message.topic(), field),
                )
                for message in self.messages(topic)
            ]


@pytest.fixture
def out(connected, tmp_path):
    return Out(connected, tmp_path)


def by(name, found):
    return sorted(found, key=lambda value: value[name])


def test_rows_are_read_back_by_a_client_that_no_one_here_wrote(out):
    rows = out.rows("zip STRING NOT NULL, at TIMESTAMP, n BIGINT", ("94016", AT, 1), ("00501", None, None))
    out.write(rows, key=["zip"])
    assert by("zip", out.read()) == [
        {"zip": "00501", "at": None, "n": None},
        {"zip": "94016", "at": AT, "n": 1},
    ]
    messages = out.messages()
    assert sorted(message.key() for message in messages) == [b"00501", b"94016"]
    assert len({dict(message.headers())[ID_HEADER] for message in messages}) == 2
    version = requests.get(f"{out.url}/subjects/{out.topic}-value/versions/latest", timeout=120).json()
    assert [field["name"] for field in json.loads(version["schema"])["fields"]] == ["zip", "at", "n"]


def test_keys_are_avro_too_and_headers_go_along(out):
    headers = "headers ARRAY<STRUCT<key STRING, value BINARY>>"
    rows = out.rows(f"a INT NOT NULL, b STRING, n INT, {headers}", (1, "x", 7, [("source", b"test")]))
    out.write(rows, key=["a", "b"], avro_key=True)
    assert out.read() == [{"a": 1, "b": "x", "n": 7}]
    assert out.read(field=MessageField.KEY) == [{"a": 1, "b": "x"}]
    (message,) = out.messages()
    assert dict(message.headers())["source"] == b"test"


def test_each_row_goes_to_its_topic_with_the_schema_of_its_subject(out):
    topics = [f"{out.topic}-a", f"{out.topic}-b"]
    rows = out.rows("topic STRING, n INT", (topics[0], 1), (topics[1], 2), (topics[1], 3))
    out.write(rows, topic=topics)
    assert by("n", out.read(topics[0])) == [{"n": 1}]
    assert by("n", out.read(topics[1])) == [{"n": 2}, {"n": 3}]
    subjects = requests.get(f"{out.url}/subjects", timeout=120).json()
    assert {f"{topic}-value" for topic in topics} <= set(subjects)
    with pytest.raises(EncodeError, match="column topic is elsewhere, none of those named"):
        out.write(out.rows("topic STRING, n INT", ("elsewhere", 1)), topic=topics)


def test_nothing_is_sent_when_one_row_does_not_fit(out):
    schema = {
        "type": "record",
        "name": "Small",
        "fields": [{"name": "n", "type": "int"}, {"name": "k", "type": "string"}],
    }
    rows = out.rows("k STRING, n BIGINT", *((str(number), number) for number in range(1000)), ("last", 2**40))
    with pytest.raises(EncodeError) as raised:
        out.write(rows, key=["k"], schema=schema)
    assert 'column n is 1099511627776, no int of 32 bits; its key is {"k":"last"}' in raised.value.cause
    assert out.messages() == []
    out.write(rows.where("n < 1000"), key=["k"], schema=json.dumps(schema))
    assert len(out.read()) == 1000


def test_a_schema_is_shown_before_it_is_registered_and_refused_where_it_is_not_compatible(out):
    rows = out.rows("k STRING NOT NULL, n INT", ("a", 1))
    proposal = out.propose(rows)
    assert str(proposal).startswith(f"subject {out.topic}-value (value): compatible, or new\n{{")
    assert '"name": "k"' in str(proposal)
    subject = f"{out.url}/subjects/{out.topic}-value/versions"
    assert requests.get(subject, timeout=120).status_code == 404, "nothing is registered yet"
    proposal.register()
    level = {"compatibility": "BACKWARD"}
    answer = requests.put(f"{out.url}/config/{out.topic}-value", json=level, timeout=120)
    answer.raise_for_status()
    other = out.propose(out.rows("k STRING NOT NULL, n INT, more INT NOT NULL", ("a", 1, 2)))
    assert "not compatible: " in str(other)
    with pytest.raises(SchemaRegistryError, match="not compatible") as raised:
        other.register()
    assert raised.value.fields["subject"] == f"{out.topic}-value"
    assert requests.get(subject, timeout=120).json() == [1]


def test_a_registry_without_guids_is_told(out):
    proposal = out.propose(out.rows("n INT", (1,)), schema_in="header")
    with pytest.raises(SchemaRegistryError) as raised:
        proposal.register()
    assert raised.value.fields["reason"] == "no_guid"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"key": ["x"]}, "key names x"),
        ({"topic": ["a", "b"]}, "2 topics, and no column topic"),
        ({"topic": []}, "0 topics, and no column topic"),
        ({"key": ["k", "n"]}, "a key of several columns is Avro"),
        ({"schema": "{"}, "the schema is no JSON"),
        ({"schema_in": "value"}, "schema_in is 'value'"),
        ({"timestamps": "local"}, "timestamps is 'local'"),
        ({"schema": {"type": "record", "name": "R", "fields": []}}, "column k is not in the schema"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(out, given, message):
    with pytest.raises(ConfigError, match=message):
        out.propose(out.rows("k STRING, n INT", ("a", 1)), **given)


@pytest.mark.thorough("a further stream of the same writer")
def test_a_stream_of_counts_is_written_and_goes_on_where_it_stood(out):
    def write(*values):
        out.rows("k STRING", *((value,) for value in values)).write.mode("append").json(f"{out.folder}/rows")

    def run():
        stream = out.spark.readStream.schema("k STRING").json(f"{out.folder}/rows")
        query = tl.start_avro_writer(
            stream.groupBy("k").count(),
            out.settings,
            topic=out.topic,
            checkpoint_path=f"{out.folder}/checkpoint",
            key=["k"],
            output_mode="update",
        )
        tl.await_caught_up(query, "availableNow")

    write("a", "b", "a")
    run()
    assert by("k", out.read()) == [{"k": "a", "count": 2}, {"k": "b", "count": 1}]
    write("b")
    run()
    run()
    assert sorted((value["k"], value["count"]) for value in out.read()) == [("a", 2), ("b", 1), ("b", 2)]
    assert len({dict(message.headers())[ID_HEADER] for message in out.messages()}) == 3
