"""Keys of each format in the column `_key`, on the embedded broker."""

import json

import pytest
from confluent_kafka import Producer

import topiclake as tl
from tests.support.numbers_topic import Numbers, right
from topiclake.delta import table as delta
from topiclake.errors import DecodeError, IngestError
from topiclake.formats.avro.decoding import zigzag
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry.wire_format import frame

NO_TEXT = b"\xff\xfe"


@pytest.fixture
def numbers(connected, tmp_path):
    numbers = Numbers(connected, tmp_path)
    numbers.topic("a")
    return numbers


def send(numbers, *records):
    """Send keys and values to partition 0."""
    producer = Producer(kafka_client.client_settings(numbers.settings().kafka))
    for key, value in records:
        producer.produce(f"{numbers.name}-a", key=key, value=value, partition=0)
    assert producer.flush(120) == 0


def keys(numbers):
    rows = delta.read(numbers.spark, f"{numbers.folder}/table").orderBy("_kafka.offset")
    return [row["_key"] for row in rows.collect()]


def quarantined(numbers, settings):
    rows = tl.quarantine_rows(numbers.spark, settings).orderBy("offset").collect()
    return [(row["offset"], row["reason"], row["detail"]) for row in rows]


JSON_KEY = {"key": "json", "key_schema": "id INT NOT NULL"}
REGISTERED = {"value_format": "avro"}
DECLARED = {"value_format": "json", "value_schema": "n BIGINT"}


BINARY = ({"key": "binary"}, b"\x00\x01", bytearray(b"\x00\x01"), None)
STRING = ({"key": "string"}, "schlüssel".encode(), "schlüssel", "key: its bytes are no UTF-8")
JSON = (JSON_KEY, b'{"id": 7}', (7,), "key: byte 0 is no UTF-8 (invalid start byte)")
FURTHER = pytest.mark.thorough("a further format of keys or values")


def test_a_key_of_text_is_a_column_and_a_wrong_one_is_in_quarantine(numbers):
    given, sent, expected, detail = STRING
    settings = numbers.settings(**REGISTERED, **given)
    value = right(numbers.register("a"), 1)
    send(numbers, (sent, value), (None, value), (NO_TEXT, value))
    numbers.ingested(settings)
    assert keys(numbers) == [expected, None]
    assert quarantined(numbers, settings) == [(2, "undecodable", detail)]


@FURTHER
@pytest.mark.slow("two runs")
@pytest.mark.parametrize(
    ("values", "given", "sent", "expected", "detail"),
    [
        pytest.param(REGISTERED, *BINARY, id="registered-binary"),
        pytest.param(DECLARED, *JSON, id="declared-json"),
    ],
)
def test_a_key_without_a_schema_is_a_column_and_a_wrong_one_is_in_quarantine(
    numbers, values, given, sent, expected, detail
):
    settings = numbers.settings(**values, **given)
    value = right(numbers.register("a"), 1) if values is REGISTERED else b'{"n": 1}'
    send(numbers, (sent, value), (None, value), (NO_TEXT, value))
    numbers.ingested(settings)
    assert keys(numbers)[:2] == [expected, None]
    if detail is None:
        assert keys(numbers)[2] == bytearray(NO_TEXT)
    else:
        assert quarantined(numbers, settings) == [(2, "undecodable", detail)]
        send(numbers, (NO_TEXT, value))
        with pytest.raises(DecodeError, match="offset 3"):
            numbers.ingested(numbers.settings(**values, **given, mode="FAILFAST"))


@pytest.mark.thorough("a run and a replay; test_replay tests each part")
@pytest.mark.slow("a run and a replay")
def test_a_wrong_key_is_replayed_when_the_configuration_reads_it(numbers):
    value = right(numbers.register("a"), 1)
    send(numbers, (b'{"name": "seven"}', value))
    strict = numbers.settings(**REGISTERED, key="json", key_schema="id INT NOT NULL, name STRING")
    numbers.ingested(strict)
    # The table has a struct as _key.
    text = numbers.settings(**REGISTERED, key="string")
    with pytest.raises(IngestError, match="_key is struct<id:int,name:string> in the table and would become"):
        tl.start_ingest(numbers.spark, text)
    with pytest.raises(IngestError, match="set key, key_schema and value_schema to what the table has"):
        tl.replay_quarantine(numbers.spark, text)
    loose = numbers.settings(**REGISTERED, key="json", key_schema="id INT, name STRING")
    assert tl.replay_quarantine(numbers.spark, loose).replayed == 1
    assert keys(numbers) == [(None, "seven")]


SCHEMAS = {
    "AVRO": json.dumps({"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}]}),
    "JSON": json.dumps(
        {"type": "object", "properties": {"id": {"type": "integer"}}, "additionalProperties": False}
    ),
    "PROTOBUF": 'syntax = "proto3"; message K { int64 id = 1; }',
}


@pytest.mark.thorough("keys of Avro are tested in test_micro_batch")
@pytest.mark.parametrize(
    ("key", "schema_type", "payload"),
    [
        ("avro", "AVRO", zigzag(7)),
        ("json_schema", "JSON", b'{"id": 7}'),
        ("protobuf", "PROTOBUF", b"\x00\x08\x07"),
    ],
)
def test_a_key_with_a_schema_is_a_column_whatever_values_are(numbers, key, schema_type, payload):
    schema_id = numbers.registry.register(
        f"{numbers.name}-a-key", SCHEMAS[schema_type], schema_type=schema_type
    )
    value = right(numbers.register("a"), 1)
    send(numbers, (frame(schema_id, payload), value), (None, value), (frame(schema_id, b"\x00\xff"), value))
    settings = numbers.settings(key=key)
    numbers.ingested(settings)
    assert keys(numbers) == [(7,), None]
    ((offset, reason, detail),) = quarantined(numbers, settings)
    assert (offset, reason) == (2, "undecodable")
    assert detail.startswith("key: ")
