"""What JSON values mean, against what Python's own reader says of the same bytes."""

import json
from dataclasses import replace
from datetime import datetime

import pytest
from pyspark.sql import functions as F

from topiclake.errors import ConfigError
from topiclake.formats.declared import DeclaredFormat, columns_of

DDL = (
    "id INT NOT NULL, name STRING, speed DOUBLE, seen TIMESTAMP, tags ARRAY<INT>, active BOOLEAN, "
    "place STRUCT<zip: INT NOT NULL, city: STRING>, price DECIMAL(8,2), "
    "rooms MAP<STRING, STRUCT<size: INT NOT NULL>>, parts ARRAY<STRUCT<no: BIGINT NOT NULL>>"
)
RIGHT = {
    b'{"id":1}': {"id": 1},
    b' \n{"id":1,"name":"\xc3\xa9\\u0000"}\t': {"id": 1, "name": "é\x00"},
    b'{"id":2,"other":[{"x":{}}]}': {"id": 2},
    b'{"id":-2147483648,"speed":1e2,"active":false}': {"id": -(2**31), "speed": 100.0, "active": False},
    b'{"id":3,"speed":7,"tags":[1,2,null],"price":1.25}': {"id": 3, "speed": 7.0, "tags": [1, 2, None]},
    b'{"id":4,"seen":"2026-01-02T03:04:05+01:00"}': {
        "id": 4,
        "seen": datetime(2026, 1, 2, 2, 4, 5),
    },
    b'{"id":5,"place":null,"rooms":{},"parts":[]}': {"id": 5},
    b'{"id":6,"place":{"zip":94016},"parts":[null,{"no":1}]}': {"id": 6},
}
WRONG = {
    b"": "no JSON: Expecting value: line 1 column 1",
    b"  ": "no JSON: Expecting value",
    b"null": "the value is null, no object",
    b"7": "the value is 7, no object",
    b'"text"': 'the value is "text", no object',
    b'[{"id":1}]': "no object",
    b'{"id":1} junk': "no JSON: Extra data: line 1 column 10",
    b'{"id":1}{"id":2}': "no JSON: Extra data",
    b'{"id":1},{"id":2}': "no JSON: Extra data",
    b'{"id":1},"end":2} junk': "no JSON: Extra data",
    b'{"id":1},"name":"b"': "no JSON: Extra data",
    b'{"id":1},"_topiclake_end":1} x': "no JSON: Extra data",
    b'{"id":1}] x': "no JSON: Extra data",
    b'{"id":1}]} x': "no JSON: Extra data",
    b'{"id":1}],"x":[{"id":2}': "no JSON: Extra data",
    b'{"id":1},{}],"x":[{"id":2}': "no JSON: Extra data",
    b'{"id":1},{"_topiclake_end":1}],"x":[{"id":2}': "no JSON: Extra data",
    b'{"id":1}],"event":[{"id":2},{"id":3}': "no JSON: Extra data",
    b'{"id":1': "no JSON: Expecting ',' delimiter",
    b'{"id":1,}': "no JSON",
    b"{'id':1}": "no JSON: Expecting property name",
    b'{"id":01}': "no JSON",
    b'{"id":1,"speed":NaN}': "no JSON: NaN is no JSON",
    b'{"id":1,"name":"a\nb"}': "no JSON: Invalid control character",
    b'{"id":1,"name":"\xff"}': "byte 16 is no UTF-8",
    b'\xef\xbb\xbf{"id":1}': "a byte order mark",
    '{"id":1}'.encode("utf-16-le"): "no JSON",
    b"{}": "field id is missing or null",
    b'{"id":null}': "field id is missing or null",
    b'{"ID":1}': "field id is missing or null",
    b'{"id":"1"}': 'field id is "1", no integer',
    b'{"id":1.5}': "field id is 1.5, no integer",
    b'{"id":2147483648}': "field id is 2147483648, no integer",
    b'{"id":true}': "field id is true, no integer",
    b'{"id":1,"active":"true"}': 'field active is "true", no boolean',
    b'{"id":1,"speed":"fast"}': 'field speed is "fast", no double',
    b'{"id":1,"tags":5}': "field tags is 5, no array",
    b'{"id":1,"tags":[1,"x"]}': 'field tags[1] is "x", no integer',
    b'{"id":1,"place":{"city":"Ulm"}}': "field place.zip is missing or null",
    b'{"id":1,"place":{"zip":"x"}}': 'field place.zip is "x", no integer',
    b'{"id":1,"rooms":{"bath":{}}}': "field rooms.bath.size is missing or null",
    b'{"id":1,"parts":[{"no":1},{"no":null}]}': "field parts[1].no is missing or null",
    b'{"id":1,"seen":"yesterday"}': "a value does not fit the type of its field",
    b'{"id":1,"price":123456789.12}': "a value does not fit",
    b'{"id":1,"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}": "it is nested too deeply",
}


@pytest.fixture(scope="module")
def values(spark):
    return DeclaredFormat("json", columns_of(DDL))


def decoded(values, records):
    rows = values.decode(records).withColumn("detail", values.detail()).orderBy("offset").collect()
    return [(row["reason"], row["detail"], row["event"]) for row in rows]


def test_each_value_is_what_python_reads_or_says_why_not(values, kafka_records):
    found = decoded(values, kafka_records([*RIGHT, *WRONG, None]))
    for (reason, _, event), expected in zip(found, RIGHT.values(), strict=False):
        assert reason == "ok"
        assert {name: event[name] for name in expected} == expected
    for (reason, detail, _), (value, why) in zip(found[len(RIGHT) :], WRONG.items(), strict=False):
        assert (reason, why in str(detail)) == ("undecodable", True), (value[:60], detail)
    assert found[-1][:2] == ("tombstone", "the value is null")
    assert len(found) == len(RIGHT) + len(WRONG) + 1
    for value in RIGHT:
        json.loads(value)


def test_times_with_a_pattern_are_read_by_it_alone(values, kafka_records):
    patterned = replace(values, timestamp_format="yyyy-MM-dd'T'HH:mm:ss[.SSS]X")
    records = kafka_records(
        [
            b'{"id":1,"seen":"2026-01-02T03:04:05Z"}',
            b'{"id":1,"seen":"2026-01-02T03:04:05.250Z"}',
            b'{"id":1,"seen":"2026"}',
        ]
    )
    found = decoded(patterned, records)
    assert [reason for reason, *_ in found] == ["ok", "ok", "undecodable"]
    assert found[1][2]["seen"] == datetime(2026, 1, 2, 3, 4, 5, 250_000)


def test_text_is_one_column_and_must_be_utf_8(spark, kafka_records):
    text = DeclaredFormat("text", columns_of("value STRING"))
    found = decoded(text, kafka_records([b"", "Zürich".encode(), b"\xff", None]))
    assert [reason for reason, *_ in found] == ["ok", "ok", "undecodable", "tombstone"]
    assert [event["value"] for _, _, event in found[:2]] == ["", "Zürich"]


def test_a_filter_above_reads_each_value_once(values, kafka_records):
    rows = (
        values.decode(kafka_records([b'{"id":1}'])).where("reason = 'ok'").select("event.*").where("id > 0")
    )
    plan = rows._jdf.queryExecution().executedPlan().toString()
    assert plan.count("from_json") == 1


@pytest.mark.parametrize(
    ("ddl", "fields"),
    [
        ("id INTEGR", {"found": "id INTEGR", "reason": "no_columns"}),
        ("INT", {"found": "INT", "reason": "empty"}),
        ("", {"found": "", "reason": "empty"}),
        ("a INT, A STRING", {"column": "a", "reason": "twice"}),
        ("a STRUCT<b: TINYINT>", {"reason": "tinyint"}),
        ("_kafka INT", {"column": "_kafka", "reason": "reserved"}),
    ],
)
def test_a_schema_that_cannot_be_used_is_named(spark, ddl, fields):
    with pytest.raises(ConfigError) as raised:
        columns_of(ddl)
    assert raised.value.fields == {"parameter": "value_schema", **fields}


def test_what_spark_reads_is_the_same_with_a_frame_and_without(spark, values, kafka_records):
    records = kafka_records(list(RIGHT))
    plain = records.select(
        "offset", F.from_json(F.col("value").cast("string"), values.columns).alias("event")
    )
    framed = values.decode(records).select("offset", "event")
    assert framed.orderBy("offset").collect() == plain.orderBy("offset").collect()
