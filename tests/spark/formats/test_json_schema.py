"""JSON with a schema of the registry: which columns it has, what is right, and why something is not."""

from __future__ import annotations

import json
from datetime import date, datetime

import jsonschema
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tests.spark.formats.plain_values import plain
from topiclake.formats.codec import Codecs
from topiclake.formats.json import codec as json_codec
from topiclake.formats.json.codec import JsonSchemaCodec
from topiclake.ingest import quarantine_rows
from topiclake.schema_registry.answers import RegisteredSchema
from topiclake.schema_registry.wire_format import frame, identifier
from topiclake.sources import fixed_schemas, registered_rows
from topiclake.sources.fixed_schemas import FixedSchemas
from topiclake.sources.layout import Layout

FIRST = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string", "minLength": 1},
        "speed": {"type": ["number", "null"]},
        "seen": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "active": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "codes": {"type": "array", "items": {"type": ["integer", "null"]}},
        "place": {"$ref": "#/definitions/Place"},
        "sizes": {"type": "object", "additionalProperties": {"type": "string"}},
        "free": {},
        "mixed": {"type": ["string", "integer"]},
        "times": {
            "type": "array",
            "items": {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}},
        },
    },
    "required": ["id", "name"],
    "definitions": {
        "Place": {
            "type": "object",
            "properties": {"zip": {"type": "string"}, "inner": {"$ref": "#/definitions/Place"}},
            "required": ["zip"],
        }
    },
}
COLUMNS = (
    "id BIGINT, name STRING, speed DOUBLE, seen TIMESTAMP, day DATE, active BOOLEAN, tags ARRAY<STRING>, "
    "codes ARRAY<BIGINT>, place STRUCT<zip: STRING, inner: STRING>, sizes MAP<STRING, STRING>, free STRING, "
    "mixed STRING, times ARRAY<STRUCT<at: TIMESTAMP>>"
)
#: Explicit nulls; a validator allows none of them.
NULLS = (
    b'{"id":5,"name":"a","place":{"zip":"94016","inner":{"zip":"1","inner":null}},"mixed":5,"seen":null,'
    b'"times":[{"at":null}]}'
)
#: What else is there is null.
RIGHT = {
    b'{"id":1,"name":"a"}': {"id": 1, "name": "a"},
    b' {"id":-9223372036854775808,"name":"","other":[1]}\n': {"id": -(2**63), "name": ""},
    b'{"id":9007199254740993,"name":"5","speed":null,"active":null}': {"id": 2**53 + 1, "name": "5"},
    b'{"id":2,"name":"a","speed":7,"active":true,"free":"text"}': {
        "id": 2,
        "name": "a",
        "speed": 7.0,
        "active": True,
        "free": "text",
    },
    b'{"id":3,"name":"\\u00e9\\u0000","seen":"2026-01-02T03:04:05.123456+01:00","day":"2026-02-28"}': {
        "id": 3,
        "name": "é\x00",
        "seen": datetime(2026, 1, 2, 2, 4, 5, 123456),
        "day": date(2026, 2, 28),
    },
    b'{"id":4,"name":"a","tags":["x",""],"codes":[1,null],"sizes":{"b":"c"}}': {
        "id": 4,
        "name": "a",
        "tags": ["x", ""],
        "codes": [1, None],
        "sizes": {"b": "c"},
    },
    NULLS: {
        "id": 5,
        "name": "a",
        "place": {"zip": "94016", "inner": '{"zip":"1","inner":null}'},
        "mixed": "5",
        "times": [{"at": None}],
    },
    b'{"id":6,"name":"a","free":{"z":[1,"2"],"a":12345678901234567890123},"mixed":"five"}': {
        "id": 6,
        "name": "a",
        "free": '{"z":[1,"2"],"a":12345678901234567890123}',
        "mixed": "five",
    },
    b'{"id":6,"name":"a","sizes":{"b":"c","b":"d"}}': {"id": 6, "name": "a", "sizes": {"b": "d"}},
    b'{"id":7,"name":"a","times":[{"at":"2026-01-02t03:04:05z"},{}]}': {
        "id": 7,
        "name": "a",
        "times": [{"at": datetime(2026, 1, 2, 3, 4, 5)}, {"at": None}],
    },
}
WRONG = {
    b"": "no JSON: Expecting value",
    b"null": "the value is null, no object",
    b"[]": "the value is [], no object",
    b'{"id":1,"name":"a"} junk': "no JSON: Extra data",
    b'{"id":1,"name":"a"': "no JSON: Expecting ',' delimiter",
    b'{"id":1,"name":"\xff"}': "byte 16 is no UTF-8",
    b"{}": "field id is missing or null",
    b'{"id":1}': "field name is missing or null",
    b'{"name":"a"}': "field id is missing or null",
    b'{"id":1,"name":"a"},"_topiclake_end":2} junk': "no JSON: Extra data",
    b'{"id":1,"name":"a"},"speed":7': "no JSON: Extra data",
    b'{"id":1,"name":"a"}],"x":[{"id":2}': "no JSON: Extra data",
    b'{"id":1,"name":null}': "field name is missing or null",
    b'{"id":"1","name":"a"}': 'field id is "1", no long',
    b'{"id":1.5,"name":"a"}': "field id is 1.5, no long",
    b'{"id":9223372036854775808,"name":"a"}': "field id is 9223372036854775808, no long",
    b'{"id":1,"name":5}': "field name is 5, no JSON string",
    b'{"id":1,"name":{"a":1}}': 'field name is {"a": 1}, no JSON string',
    b'{"id":1,"name":"a","speed":"7"}': 'field speed is "7", no double',
    b'{"id":1,"name":"a","speed":"NaN"}': 'field speed is "NaN", no double',
    b'{"id":1,"name":"a","active":1}': "field active is 1, no boolean",
    b'{"id":1,"name":"a","seen":"2026-01-02T03:04:05"}': 'field seen is "2026-01-02T03:04:05", no date-time',
    b'{"id":1,"name":"a","seen":1767323045}': "field seen is 1767323045, no date-time",
    b'{"id":1,"name":"a","seen":["2026-01-02T03:04:05Z"]}': "field seen is [",
    b'{"id":1,"name":"a","seen":"2026-01-02T03:04:05Z\\n"}': '05Z\\n", no date-time',
    b'{"id":1,"name":"a","seen":"2026-13-02T03:04:05Z"}': "a value does not fit the type of its field",
    b'{"id":1,"name":"a","day":"2026-02-29"}': "a value does not fit the type of its field",
    b'{"id":1,"name":"a","day":"2026"}': 'field day is "2026", no full-date',
    b'{"id":1,"name":"a","tags":["x",1]}': "field tags[1] is 1, no JSON string",
    b'{"id":1,"name":"a","tags":[null]}': "field tags[0] is null",
    b'{"id":1,"name":"a","tags":"x"}': 'field tags is "x", no array',
    b'{"id":1,"name":"a","codes":["1"]}': 'field codes[0] is "1", no long',
    b'{"id":1,"name":"a","place":{}}': "field place.zip is missing or null",
    b'{"id":1,"name":"a","place":{"zip":94016}}': "field place.zip is 94016, no JSON string",
    b'{"id":1,"name":"a","sizes":{"b":1}}': "field sizes.b is 1, no JSON string",
    b'{"id":1,"name":"a","sizes":{"b":null}}': "field sizes.b is null",
    b'{"id":1,"name":' + b"[" * 100_000 + b"]" * 100_000 + b"}": "it is nested too deeply",
    b'{"id":1,"name":"a","times":[{"at":"now"}]}': 'field times[0].at is "now", no date-time',
}


def registered(number, schema, references=(), schema_type="JSON"):
    return RegisteredSchema(number, schema_type, json.dumps(schema), None, tuple(references))


def codec_of(*schemas):
    return JsonSchemaCodec.of_shapes({each.schema_id: each for each in schemas})


def read(codec, records, unknown=()):
    """Return what the table gets of each record, or reason and detail, in their order."""
    decoded = registered_rows.decode(records, Codecs(codec), Layout())
    right = registered_rows.valid_rows(
        registered_rows.as_rows(decoded, Codecs(codec), Layout(kafka=("offset",)))
    )
    left = decoded.where(registered_rows.is_rejected(Codecs(codec), Layout()))
    bad = quarantine_rows.with_reasons(left, Codecs(codec), {"value": set(unknown)}, needs_python=True)
    found = {row["_kafka"]["offset"]: without_nulls(row) for row in right.collect()}
    found |= {row["offset"]: (row["reason"], row["detail"]) for row in bad.collect()}
    return [found[offset] for offset in range(len(found))]


def without_nulls(row):
    return {name: value for name, value in plain(row).items() if value is not None and name != "_kafka"}


def test_each_value_is_what_its_schema_says_or_the_reason_why_not(spark, kafka_records):
    codec = codec_of(registered(1, FIRST))
    given = [frame(1, value) for value in [*RIGHT, *WRONG]]
    found = read(codec, kafka_records([*given, None]))
    assert found[: len(RIGHT)] == list(RIGHT.values())
    for (reason, detail), (value, why) in zip(found[len(RIGHT) :], WRONG.items(), strict=False):
        assert (reason, why in detail) == ("undecodable", True), (value, detail)
    assert found[-1] == ("tombstone", "the value is null")
    assert json_codec.event_type(spark, codec.reader).simpleString() == columns_of(COLUMNS)


def columns_of(ddl):
    return StructType.fromDDL(ddl).simpleString()


def test_another_validator_agrees_with_what_is_right():
    """Except on lengths, which are not checked, and on what a validator sees in an explicit null."""
    properties = FIRST["properties"] | {"name": {"type": "string"}}
    validator = jsonschema.Draft7Validator(FIRST | {"properties": properties})
    assert [value for value in RIGHT if not validator.is_valid(json.loads(value))] == [NULLS]


def test_headers_and_ids_are_told_as_for_avro(kafka_records):
    avro, array = registered(2, "string", schema_type="AVRO"), registered(3, {"type": "array"})
    codec = codec_of(registered(1, FIRST), avro, array)
    value = b'{"id":1,"name":"a"}'
    given = [
        b"\0\0\0\0",
        b"\1\0\0\0\1" + value,
        frame(9, value),
        frame(2, value),
        frame(3, b"[]"),
        value,
        frame(1, value),
    ]
    found = read(codec, kafka_records(given), unknown=[9])
    assert [each[0] for each in found[:-1]] == [
        "too_short",
        "bad_magic",
        "unknown_schema_id",
        "wrong_schema_type",
        "incompatible_schema",
        "bad_magic",
    ]
    assert found[3][1] == "schema 2 is AVRO, not JSON"
    assert "its values are no objects with properties" in found[4][1]
    assert found[-1] == {"id": 1, "name": "a"}


@pytest.mark.parametrize("key", [1, "6f1e2ab5-4c3f-4f3e-9a7b-0a1b2c3d4e5f"])
def test_a_schema_may_be_named_in_a_header(kafka_records, key):
    codec = JsonSchemaCodec.of_shapes({key: registered(1, FIRST)})
    header = F.array(F.struct(F.lit("__value_schema_id").alias("key"), F.lit(identifier(key)).alias("value")))
    records = kafka_records([b'{"id":1,"name":"a"}', b'{"id":1}']).withColumn("headers", header)
    found = read(codec, records)
    assert found[0] == {"id": 1, "name": "a"}
    assert found[1][0] == "undecodable"
    assert found[1][1].endswith("field name is missing or null")


def test_versions_are_united_by_name_and_each_value_is_checked_by_its_own(spark, kafka_records):
    def version(number, required=(), **properties):
        return registered(number, {"type": "object", "properties": properties, "required": list(required)})

    long, double, text = {"type": "integer"}, {"type": "number"}, {"type": "string"}
    time = {"type": "string", "format": "date-time"}
    deep = {"type": "object", "properties": {"at": time, "n": long}}
    codec = codec_of(
        version(1, ["a"], a=long, b=long, c=time, d=deep, e={"type": "array", "items": long}),
        version(2, ["f"], a=double, b=text, c=text, d=text, e={"type": "array", "items": double}, f=text),
        version(3, A=long),
    )
    assert json_codec.event_type(spark, codec.reader).simpleString() == columns_of(
        "a DOUBLE, b STRING, c STRING, d STRING, e ARRAY<DOUBLE>, f STRING"
    )
    found = read(
        codec,
        kafka_records(
            [
                frame(
                    1,
                    b'{"a":1,"b":2,"c":"2026-01-01T00:00:00Z","d":{"at":"2026-01-01T00:00:00+02:00"},"e":[3]}',
                ),
                frame(2, b'{"a":1.5,"b":"x","c":"noon","d":"y","e":[0.5],"f":""}'),
                frame(1, b'{"a":1.5}'),
                frame(1, b'{"a":1,"c":"noon"}'),
                frame(2, b'{"a":1}'),
                frame(3, b'{"A":1}'),
            ]
        ),
    )
    assert found[0] == {
        "a": 1.0,
        "b": "2",
        "c": "2026-01-01T00:00:00Z",
        "d": '{"at":"2026-01-01T00:00:00+02:00","n":null}',
        "e": [3.0],
    }
    assert found[1] == {"a": 1.5, "b": "x", "c": "noon", "d": "y", "e": [0.5], "f": ""}
    for (reason, detail), why in zip(
        found[2:5], ["a is 1.5, no long", 'c is "noon", no date-time', "f is missing"], strict=True
    ):
        assert (reason, why in detail) == ("undecodable", True)
    assert found[5][0] == "incompatible_schema"


def test_a_filter_above_reads_each_value_once(kafka_records):
    codecs = Codecs(codec_of(registered(1, FIRST)))
    decoded = registered_rows.decode(kafka_records([frame(1, b'{"id":1,"name":"a"}')]), codecs, Layout())
    placed = registered_rows.valid_rows(registered_rows.as_rows(decoded, codecs, Layout())).where("id > 0")
    plan = placed._jdf.queryExecution().executedPlan().toString()
    assert plan.count("from_json") == 1


def test_the_jvm_compiles_the_code_of_a_plan_of_twelve_fields(spark, kafka_records):
    properties = {f"f{number}": {"type": ["integer", "number", "string"][number % 3]} for number in range(12)}
    codecs = Codecs(codec_of(registered(1, {"type": "object", "properties": properties, "required": ["f0"]})))
    rows = fixed_schemas.valid_rows(
        kafka_records([frame(1, b'{"f0":1}')]), FixedSchemas(codecs), Layout(), "PERMISSIVE"
    )
    debug = getattr(spark._jvm.org.apache.spark.sql.execution.debug, "package$")
    stages = getattr(debug, "MODULE$").codegenStringSeq(rows._jdf.queryExecution().executedPlan())
    sizes = [stages.apply(number)._3().maxMethodCodeSize() for number in range(stages.size())]
    # HotSpot only interprets a method with more bytes. Such a plan has a third of the rate.
    assert 0 < max(sizes) < 8_000


def test_a_fixed_plan_ends_at_a_schema_that_it_does_not_know(kafka_records):
    codecs = Codecs(codec_of(registered(1, FIRST)))
    right, bad, late = frame(1, b'{"id":1,"name":"a"}'), frame(1, b"{}"), frame(9, b"{}")

    def read_as(mode, *values):
        read = fixed_schemas.valid_rows(kafka_records(list(values)), FixedSchemas(codecs), Layout(), mode)
        return [row["id"] for row in read.select("id").collect()]

    assert read_as("PERMISSIVE", right, bad, b"\0", None) == [1]
    with pytest.raises(PySparkException, match="offset 1, schema 9: its schema was not in the"):
        read_as("PERMISSIVE", right, late)
    with pytest.raises(PySparkException, match="offset 1, schema id 1, reason undecodable"):
        read_as("FAILFAST", right, bad)
