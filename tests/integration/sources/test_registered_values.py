"""JSON with a schema of the registry, and Protobuf, as Confluent's own serializers write them."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

import topiclake as tl
from tests.services.fault_proxy import FaultProxy
from tests.support.hits_topic import PROJECT
from topiclake.config.load import load_settings
from topiclake.delta import table as delta
from topiclake.errors import IngestError, NewSchemaError
from topiclake.formats.protobuf import schema as protobuf_schema
from topiclake.schema_registry.wire_format import frame
from topiclake.streaming import queries


def json_schema(text, **given):
    return Schema(text, "JSON", **given)


class Registered:
    """A topic of values with schemas of the registry, its table and its quarantine."""

    def __init__(self, spark, folder, value_format):
        self.spark, self.folder, self.format = spark, folder, value_format
        self.topic = f"registered-{uuid4().hex[:8]}"
        self.registry = SchemaRegistryClient({"url": self.settings().schema_registry.url})
        tl.ensure_topic(self.settings().kafka, self.topic, partitions=1)

    def settings(self, **given):
        parameters = {
            "topic": self.topic,
            "value_format": self.format,
            "value_schema": None,
            "table_path": f"{self.folder}/table",
            "checkpoint_path": f"{self.folder}/checkpoint",
            "storage": self.folder.as_uri(),
        }
        return load_settings("isp", parameters | given, conf=PROJECT / "conf")

    def send(self, *values):
        producer = Producer({"bootstrap.servers": self.settings().kafka.bootstrap_servers})
        for value in values:
            producer.produce(self.topic, value)
        assert producer.flush(120) == 0

    def context(self):
        return SerializationContext(self.topic, MessageField.VALUE)

    def ingest(self, **given):
        settings = self.settings(**given)
        tl.await_caught_up(tl.start_ingest(self.spark, settings), settings.pipeline.trigger)
        return delta.read(self.spark, f"{self.folder}/table").orderBy("_kafka.offset")

    def quarantined(self):
        waiting = tl.quarantine_rows(self.spark, self.settings())
        return Counter(row["reason"] for row in waiting.collect())


def offsets(rows):
    return [row["_kafka"]["offset"] for row in rows.collect()]


NUMBER = {"type": "number"}
PLACE = {
    "$id": "place.json",
    "type": "object",
    "properties": {"zip": {"type": "string"}},
    "required": ["zip"],
}


def person_schema(**properties):
    known = {"id": {"type": "integer"}, "name": {"type": "string"}} | properties
    return json.dumps({"type": "object", "title": "Person", "properties": known, "required": ["id", "name"]})


@pytest.mark.thorough("JSON Schema is tested in test_json_schema and by a stream next to it")
def test_json_of_confluents_serializer_with_new_versions_and_bad_records(connected, tmp_path):
    topic = Registered(connected, tmp_path, "json_schema")
    first = JSONSerializer(person_schema(), topic.registry)
    right = [first({"id": number, "name": f"n{number}"}, topic.context()) for number in range(3)]
    avro = topic.registry.register_schema(f"{topic.topic}-avro", Schema('"string"', "AVRO"))
    bad = [
        right[0][:4],
        b"\1" + right[0][1:],
        frame(999_999, right[0][5:]),
        frame(avro, right[0][5:]),
        right[0][:-1],
        right[0][:5] + b'{"id":"1","name":"a"}',
        right[0][:5] + b'{"id":1}',
        None,
    ]
    topic.send(*right, *bad)
    table = topic.ingest()
    assert [(row["id"], row["name"]) for row in table.collect()] == [(0, "n0"), (1, "n1"), (2, "n2")]
    reasons = Counter(
        too_short=1, bad_magic=1, unknown_schema_id=1, wrong_schema_type=1, undecodable=3, tombstone=1
    )
    assert topic.quarantined() == reasons
    waiting = tl.quarantine_rows(topic.spark, topic.settings()).collect()
    details = "\n".join(row["detail"] for row in waiting)
    for why in ('field id is "1", no long', "field name is missing", "no JSON:", "is AVRO, not JSON"):
        assert why in details

    # A further version, which refers to another schema; a record of it by id from a subject not its own.
    place = topic.registry.register_schema(f"{topic.topic}-place", json_schema(json.dumps(PLACE)))
    assert place
    second = json_schema(
        person_schema(place={"$ref": "place.json"}, age={"type": ["integer", "null"]}),
        references=[SchemaReference("place.json", f"{topic.topic}-place", 1)],
    )
    newer = topic.registry.register_schema(f"{topic.topic}-value", second)
    late = topic.registry.register_schema(f"{topic.topic}-late", json_schema(person_schema(score=NUMBER)))
    topic.send(
        frame(newer, b'{"id":3,"name":"n3","place":{"zip":"94016"},"age":7}'),
        frame(newer, b'{"id":4,"name":"n4","place":{}}'),
        frame(late, b'{"id":5,"name":"n5","score":1}'),
        right[0],
    )
    table = topic.ingest()
    assert offsets(table) == [0, 1, 2, 11, 13, 14]
    rows = {row["_kafka"]["offset"]: row for row in table.collect()}
    assert (rows[11]["place"]["zip"], rows[11]["age"], rows[11]["score"]) == ("94016", 7, None)
    assert (rows[13]["score"], rows[0]["age"]) == (1.0, None)
    assert topic.quarantined() == reasons + Counter(undecodable=1)
    assert tl.audit_ingest(topic.spark, topic.settings()).ok


@pytest.mark.thorough("a decision about a schema is tested next to it")
def test_a_stream_of_values_ends_at_a_schema_that_came_later_and_goes_on_from_there(connected, tmp_path):
    topic = Registered(connected, tmp_path, "json_schema")
    first = JSONSerializer(person_schema(), topic.registry)
    right = first({"id": 1, "name": "a"}, topic.context())
    topic.send(right, right[:-1])

    def run(stream):
        checkpoint = f"{tmp_path}/stream_checkpoint"
        writer = stream.writeStream.format("parquet").queryName("stream")
        writer = writer.option("checkpointLocation", checkpoint).option("path", f"{tmp_path}/stream")
        # Which gets around SPARK-55271 where the last run left a batch undone.
        query = queries.start(writer, topic.settings(), topic.spark, checkpoint)
        tl.await_caught_up(query, "availableNow")
        return written()

    def written():
        read = topic.spark.read.option("mergeSchema", "true")
        return read.parquet(f"{tmp_path}/stream").orderBy("id")

    def keep(query):
        tl.await_caught_up(query, "availableNow")

    stream = tl.read_values(topic.spark, topic.settings())
    assert run(stream).select("id", "name").collect() == [(1, "a")]
    keep(tl.start_quarantine(topic.spark, topic.settings()))
    assert delta.latest_version(topic.spark, f"{tmp_path}/table_quarantine") == 0

    late = topic.registry.register_schema(
        f"{topic.topic}-value", json_schema(person_schema(age={"type": "integer"}))
    )
    topic.send(frame(late, b'{"id":2,"name":"b","age":7}'), right[:5])
    with pytest.raises(IngestError, match=f"offset 2, schema {late}: its .*try: start it again"):
        run(stream)
    assert written().count() == 1
    rows = run(tl.read_values(topic.spark, topic.settings())).select("id", "age").collect()
    assert rows == [(1, None), (2, 7)]
    keep(tl.start_quarantine(topic.spark, topic.settings()))
    assert topic.quarantined() == Counter(undecodable=2)


PERSON = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "place.proto";
message Header { string id = 1; }
message Person {
  int64 id = 1; optional string name = 2; Place place = 3; google.protobuf.Timestamp seen = 4;%s
}
"""
PLACE_FILE = 'syntax = "proto3"; package shop; message Place { string zip = 1; }'


def message_class(schema, name="shop.Person"):
    pool = DescriptorPool()
    references = (("place.proto", PLACE_FILE),)
    files = descriptor_pb2.FileDescriptorSet.FromString(protobuf_schema.compiled(schema, references))
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


@pytest.mark.thorough("each rule of Protobuf is tested in tests/spark/formats")
def test_protobuf_of_confluents_serializer_with_two_versions_and_bad_records(connected, tmp_path):
    topic = Registered(connected, tmp_path, "protobuf")
    kind = message_class(PERSON % "")
    first = ProtobufSerializer(kind, topic.registry, {"use.deprecated.format": False})
    person = kind(id=2**53 + 1, name="", place={"zip": "94016"})
    person.seen.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, 678901))
    right = [first(person, topic.context()), first(kind(id=1), topic.context())]
    other = topic.registry.register_schema(f"{topic.topic}-other", json_schema(person_schema()))
    schema_id = int.from_bytes(right[0][1:5], "big")
    bad = [right[0][:-1], right[0][:3], frame(999_999, right[0][5:]), frame(other, right[0][5:])]
    bad += [frame(schema_id, b"\0"), b"\1" + right[0][1:], None]
    # The text of a .proto file, as Confluent's client for Java registers it, with a reference.
    topic.registry.register_schema(f"{topic.topic}-place", Schema(PLACE_FILE, "PROTOBUF"))
    newer = PERSON % " repeated double scores = 5;"
    references = [SchemaReference("place.proto", f"{topic.topic}-place", 1)]
    second = topic.registry.register_schema(
        f"{topic.topic}-value", Schema(newer, "PROTOBUF", references=references)
    )
    value = message_class(newer)(id=3, scores=[0.5]).SerializeToString()
    topic.send(*right, *bad, frame(second, b"\x02\x02" + value), right[1])

    rows = topic.ingest(record_names="shop.Person").collect()

    assert [row["_kafka"]["offset"] for row in rows] == [0, 1, 9, 10]
    assert [(row["id"], row["name"]) for row in rows] == [(2**53 + 1, ""), (1, None), (3, None), (1, None)]
    assert rows[0]["seen"] == datetime(2026, 1, 2, 3, 4, 5, 678901)
    assert (rows[0]["place"]["zip"], rows[1]["place"]) == ("94016", None)
    assert [row["scores"] for row in rows] == [None, None, [0.5], None]
    assert topic.quarantined() == {
        "undecodable": 2,
        "too_short": 1,
        "unknown_schema_id": 1,
        "wrong_schema_type": 1,
        "bad_magic": 1,
        "tombstone": 1,
    }


def simple(value_format, **fields):
    """A schema with whole numbers, and a value of it."""
    if value_format == "json_schema":
        schema = {"type": "object", "properties": {name: {"type": "integer"} for name in fields}}
        return Schema(json.dumps(schema), "JSON"), json.dumps(fields).encode()
    lines = "".join(f" int64 {name} = {number};" for number, name in enumerate(fields, 1))
    schema = f'syntax = "proto3"; message Simple {{{lines} }}'
    return Schema(schema, "PROTOBUF"), b"\0" + message_class(schema, "Simple")(**fields).SerializeToString()


@pytest.mark.slow("six streams")
def test_a_schema_that_no_subject_lists_is_decided_once_for_rows_and_quarantine(
    connected, tmp_path, monkeypatch
):
    """One that the registry knows all the same, and one that it comes to know later."""
    topic = Registered(connected, tmp_path, "json_schema")
    (schema, value), (wider, newer) = simple("json_schema", a=1), simple("json_schema", a=2, b=3)
    listed = topic.registry.register_schema(f"{topic.topic}-value", schema)
    elsewhere = topic.registry.register_schema(f"{topic.topic}-other", wider)
    late = topic.registry.register_schema(f"{topic.topic}-late", simple("json_schema", a=4, c=5)[0])
    topic.send(
        frame(listed, value), frame(elsewhere, newer), frame(late, b'{"a":4,"c":5}'), frame(listed, value)
    )

    def rows():
        out, settings = f"{tmp_path}/out", topic.settings()
        paths = {"path": out, "checkpoint_path": f"{tmp_path}/rows"}
        values = tl.read_values(connected, settings)
        query = tl.start_files(values, settings, partition_by=["a"], **paths)
        tl.await_caught_up(query, "availableNow")
        return sorted(row["_kafka"]["offset"] for row in connected.read.parquet(out).collect())

    def quarantined():
        query = tl.start_quarantine(connected, topic.settings())
        tl.await_caught_up(query, "availableNow")
        waiting = tl.quarantine_rows(connected, topic.settings())
        return [(row["offset"], row["reason"]) for row in waiting.collect()]

    with FaultProxy(topic.settings().schema_registry.url) as proxy:
        monkeypatch.setenv("WORKBENCH_SCHEMA_REGISTRY", proxy.url)
        proxy.fault("own 404 without schema", path=f"/schemas/ids/{late}")
        for attempt in (rows, rows, quarantined):
            with pytest.raises(NewSchemaError):
                attempt()
        assert quarantined() == [(2, "unknown_schema_id")]
        proxy.heal()
        # Now its subject lists it, too.
        topic.registry.register_schema(f"{topic.topic}-value", simple("json_schema", a=4, c=5)[0])
        assert rows() == [0, 1, 3]
