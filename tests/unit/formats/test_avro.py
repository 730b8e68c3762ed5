"""The part of avro_decoding that needs no Spark."""

import io
import json
import random

import fastavro
import pytest

from topiclake.formats.avro import decoding as avro_decoding
from topiclake.formats.avro import reader_schema
from topiclake.formats.codec import END, END_FIELD

EXTREMES = [0, -1, 1, 63, 64, -64, -65, 2**31 - 1, -(2**31), 2**31, 2**62, -(2**62), 2**63 - 1, -(2**63)]
RECORD = {"type": "record", "name": "E", "namespace": "n", "fields": [{"name": "a", "type": "long"}]}


def encoded(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def test_zigzag_is_avros_long_at_the_edges():
    assert [avro_decoding.zigzag(number) for number in EXTREMES] == [
        encoded("long", number) for number in EXTREMES
    ]


def test_zigzag_is_avros_long_for_numbers_of_every_length():
    chance = random.Random(1)
    numbers = [chance.getrandbits(bits) * chance.choice([1, -1]) for bits in range(64) for _ in range(50)]
    assert [avro_decoding.zigzag(number) for number in numbers] == [
        encoded("long", number) for number in numbers
    ]


PREFIX = b"\0\xff\xff\xff\xff"


def test_the_end_is_a_long_of_ten_bytes_that_no_short_record_holds():
    assert encoded("long", END) == avro_decoding.END_BYTES
    assert len(avro_decoding.END_BYTES) == 10


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (RECORD, {"a": 5}),
        ("string", "x"),
        (["null", "long"], None),
        ({"type": "array", "items": RECORD}, [{"a": 1}, {"a": 2}]),
        ({"type": "map", "values": "bytes"}, {"k": b"v"}),
    ],
)
def test_a_framed_schema_reads_the_payload_and_the_end(schema, value):
    framed, prefixed = frames(avro_decoding.framed, schema)
    payload = encoded(schema, value) + avro_decoding.END_BYTES
    whole = {"event": value, END_FIELD: END}
    assert read_all(payload, framed) == whole
    assert read_all(PREFIX + payload, prefixed, framed) == whole


def test_a_framed_row_reads_the_fields_and_the_end():
    framed, prefixed = frames(avro_decoding.framed_row, RECORD)
    payload = encoded(RECORD, {"a": 5}) + avro_decoding.END_BYTES
    whole = {"a": 5, END_FIELD: END}
    assert read_all(payload, framed) == whole
    assert read_all(PREFIX + payload, prefixed, framed) == whole


def frames(wrapped, schema):
    """The reader schema, and the writer schema of a value with a prefix."""
    texts = wrapped(json.dumps(schema)), wrapped(json.dumps(schema), after_prefix=True)
    return [fastavro.parse_schema(json.loads(text)) for text in texts]


def read_all(payload, *schemas):
    stream = io.BytesIO(payload)
    read = fastavro.schemaless_reader(stream, *schemas)
    assert stream.read() == b""
    return read


@pytest.mark.parametrize("namespace", [None, "io.topiclake.gps"])
def test_names_inside_a_framed_schema_mean_what_they_meant(namespace):
    inner = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
    schema = {
        "type": "record",
        "name": "Way",
        "fields": [{"name": "start", "type": inner}, {"name": "end", "type": "Point"}],
    }
    if namespace:
        schema["namespace"] = namespace
    framed = json.loads(avro_decoding.framed(json.dumps(schema)))
    assert framed["fields"][0]["type"] == schema
    assert "namespace" not in framed
    prefix = f"{namespace}." if namespace else ""
    parsed = fastavro.parse_schema(framed)
    way = parsed["fields"][0]["type"]
    assert way["name"] == f"{prefix}Way"
    assert way["fields"][1]["type"] == f"{prefix}Point"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (RECORD, True),
        ("string", False),
        ({"type": "string"}, False),
        (["null", RECORD], False),
        ({"type": "array", "items": RECORD}, False),
        ({"type": "enum", "name": "record", "symbols": ["record"]}, False),
    ],
)
def test_only_a_record_has_fields_that_become_columns(schema, expected):
    assert reader_schema.is_record(json.dumps(schema)) is expected
