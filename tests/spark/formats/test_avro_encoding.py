"""Rows as Avro, read back by fastavro, which shares no code with Spark's encoder."""

from __future__ import annotations

import io
import json
import re
from datetime import date, datetime, timezone
from decimal import Decimal
from uuid import UUID

import fastavro
import pytest
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

from tests.support.local_rows import local_rows
from topiclake.errors import ConfigError
from topiclake.formats.avro.encoding import encoder_for
from topiclake.formats.avro.schema_of_columns import derived_schema
from topiclake.formats.codec import Codecs
from topiclake.formats.registered import AVRO
from topiclake.schema_registry.answers import RegisteredSchema
from topiclake.schema_registry.wire_format import identifier
from topiclake.sinks.avro_records import AvroRecords
from topiclake.sources import fixed_schemas
from topiclake.sources.fixed_schemas import FixedSchemas
from topiclake.sources.layout import Layout

AT = datetime(2026, 1, 2, 3, 4, 5, 678901)
UTC = AT.replace(tzinfo=timezone.utc)
#: Column, its value, its schema, what fastavro reads.
VALUES = [
    ("BOOLEAN", True, "boolean", True),
    ("TINYINT", 7, "int", 7),
    ("SMALLINT", 7, "int", 7),
    ("INT", -(2**31), "int", -(2**31)),
    ("BIGINT", 2**63 - 1, "long", 2**63 - 1),
    ("FLOAT", 1.5, "float", 1.5),
    ("DOUBLE", 0.1, "double", 0.1),
    ("STRING", "ü", "string", "ü"),
    ("BINARY", bytearray(b"\0\xff"), "bytes", b"\0\xff"),
    ("DATE", date(2026, 1, 2), {"type": "int", "logicalType": "date"}, date(2026, 1, 2)),
    ("TIMESTAMP", UTC, {"type": "long", "logicalType": "timestamp-micros"}, UTC),
    ("TIMESTAMP_NTZ", AT, {"type": "long", "logicalType": "local-timestamp-micros"}, AT),
    (
        "DECIMAL(9, 2)",
        Decimal("-12.34"),
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        Decimal("-12.34"),
    ),
    ("ARRAY<INT>", [1, None], {"type": "array", "items": ["null", "int"]}, [1, None]),
    ("MAP<STRING, DOUBLE>", {"a": 0.5}, {"type": "map", "values": ["null", "double"]}, {"a": 0.5}),
]


@pytest.fixture
def frame(spark):
    """Make rows of values."""
    return lambda ddl, *rows: local_rows(spark, list(rows), ddl)


def row_of(rows):
    return F.struct(*rows.columns)


def read(rows, schema):
    """Encode each row, and return what fastavro reads; all of each."""
    fit = encoder_for(rows.select(row_of(rows).alias("row")).schema[0].dataType, schema)
    payloads = rows.select(to_avro(fit.value(row_of(rows)), json.dumps(schema)).alias("value")).collect()
    parsed, found = fastavro.parse_schema(json.loads(json.dumps(schema))), []
    for (payload,) in payloads:
        stream = io.BytesIO(bytes(payload))
        found.append(fastavro.schemaless_reader(stream, parsed))
        assert stream.read() == b""
    return found


def problems(rows, schema):
    fit = encoder_for(rows.select(row_of(rows).alias("row")).schema[0].dataType, schema)
    return [problem for (problem,) in rows.select(fit.problem(row_of(rows))).collect()]


def record(*fields):
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def test_each_type_has_its_schema_and_is_read_back_by_another_library(frame):
    ddl = ", ".join(f"c{number} {kind}" for number, (kind, *_) in enumerate(VALUES))
    rows = frame(ddl, tuple(value for _, value, *_ in VALUES), (None,) * len(VALUES))
    schema = derived_schema(rows.schema, "R") | {"namespace": "a.b"}
    assert [field["type"] for field in schema["fields"]] == [["null", kind] for _, _, kind, _ in VALUES]
    first, nulls = read(rows, schema)
    assert list(first.values()) == [found for *_, found in VALUES]
    assert set(nulls.values()) == {None}
    assert problems(rows, schema) == [None, None]


def test_structs_within_structs_arrays_and_maps_are_records_of_names_of_their_own(frame):
    ddl = (
        "window STRUCT<start: TIMESTAMP, end: TIMESTAMP> NOT NULL, "
        "places ARRAY<STRUCT<name: STRING, at: STRUCT<x: INT>>>, m MAP<STRING, ARRAY<STRUCT<y: BIGINT>>>"
    )
    value = ((UTC, None), [("a", (1,)), (None, None), None], {"k": [(2,)], "n": None})
    rows = frame(ddl, value)
    schema = derived_schema(rows.schema, "Counts")
    (found,) = read(rows, schema)
    assert found == {
        "window": {"start": UTC, "end": None},
        "places": [{"name": "a", "at": {"x": 1}}, {"name": None, "at": None}, None],
        "m": {"k": [{"y": 2}], "n": None},
    }
    assert problems(rows, schema) == [None]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu"])
def test_times_as_text_are_iso_8601_whatever_the_time_zone_of_the_session(spark, frame, zone):
    rows = frame("at TIMESTAMP NOT NULL, local TIMESTAMP_NTZ, day DATE", (UTC, AT, date(2026, 1, 2)))
    schema = derived_schema(rows.schema, "R", timestamps="string")
    kept = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        (found,) = read(rows, schema)
    finally:
        spark.conf.set("spark.sql.session.timeZone", kept)
    assert found == {
        "at": "2026-01-02T03:04:05.678901Z",
        "local": "2026-01-02T03:04:05.678901",
        "day": date(2026, 1, 2),
    }


@pytest.mark.parametrize(
    ("ddl", "column", "fields"),
    [
        ("`a b` INT", "column a b ", {"name": "a b", "reason": "name"}),
        ("s STRUCT<`1`: INT>", "column s.1 ", {"name": "1", "reason": "name"}),
        ("m MAP<INT, INT>", "column m ", {"column": "m", "found": "map<int,int>", "reason": "type"}),
        (
            "a ARRAY<INTERVAL DAY>",
            "column a[] ",
            {"column": "a[]", "found": "interval day", "reason": "type"},
        ),
    ],
)
def test_columns_that_avro_has_no_form_for_are_named(frame, ddl, column, fields):
    with pytest.raises(ConfigError, match=re.escape(column)) as raised:
        derived_schema(frame(ddl).schema, "R")
    assert raised.value.fields == fields


def test_a_schema_of_ones_own_may_be_wider_and_have_defaults(frame):
    color = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}
    schema = record(
        ("i", "long"),
        ("f", "double"),
        ("c", color),
        ("d", ["null", "Color"]),
        ("x", {"type": "fixed", "name": "X", "size": 2}),
    )
    late = [("n", ["null", "string"], None), ("a", {"type": "array", "items": "int"}, []), ("v", "long", 7)]
    schema["fields"] += [{"name": name, "type": kind, "default": default} for name, kind, default in late]
    rows = frame("f FLOAT, i INT, d STRING, c STRING, x BINARY", (0.5, 1, None, "RED", bytearray(b"ab")))
    assert read(rows, schema) == [
        {"i": 1, "f": 0.5, "c": "RED", "d": None, "x": b"ab", "n": None, "a": [], "v": 7}
    ]


@pytest.mark.parametrize(
    ("ddl", "value", "kind", "message"),
    [
        ("INT", None, "int", "column c is null, and the schema wants a value"),
        ("BIGINT", 2**31, "int", "column c is 2147483648, no int of 32 bits"),
        (
            "STRING",
            "GREEN",
            {"type": "enum", "name": "E", "symbols": ["RED", "BLUE"]},
            "column c is GREEN, none of RED, BLUE",
        ),
        (
            "BINARY",
            bytearray(b"abc"),
            {"type": "fixed", "name": "F", "size": 2},
            "column c is 616263, not 2 bytes",
        ),
        (
            "DECIMAL(9, 3)",
            Decimal("1.125"),
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            "column c is 1.125, no decimal(9,2)",
        ),
        (
            "DECIMAL(9, 2)",
            Decimal("1234567.25"),
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "column c is 1234567.25, no decimal(4,2)",
        ),
        (
            "ARRAY<INT>",
            [1, None],
            {"type": "array", "items": "int"},
            "column c[] is null, and the schema wants a value",
        ),
        (
            "MAP<STRING, BIGINT>",
            {"a": 1, "b": 2**40},
            {"type": "map", "values": "int"},
            "column c{} is 1099511627776, no int of 32 bits",
        ),
        (
            "STRUCT<x: ARRAY<STRUCT<y: INT>>>",
            ([(1,), (None,)],),
            record(("x", {"type": "array", "items": record(("y", "int")) | {"name": "Y"}})) | {"name": "S"},
            "column c.x[].y is null, and the schema wants a value",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_told_with_its_column(frame, ddl, value, kind, message):
    rows = frame(f"ok INT, c {ddl}", (1, value))
    assert problems(rows, record(("ok", ["null", "int"]), ("c", kind))) == [message]


@pytest.mark.parametrize(
    ("ddl", "schema", "fields"),
    [
        (
            "a STRING",
            record(("a", "long")),
            {"column": "a", "found": "string", "expected": "long", "reason": "type"},
        ),
        (
            "a BIGINT",
            record(("a", {"type": "long", "logicalType": "timestamp-millis"})),
            {"column": "a", "found": "bigint", "expected": "timestamp-millis", "reason": "type"},
        ),
        (
            "a DOUBLE",
            record(("a", "float")),
            {"column": "a", "found": "double", "expected": "float", "reason": "type"},
        ),
        (
            "a INT, b INT",
            record(("a", "int")),
            {"column": "b", "allowed": ("a",), "reason": "unknown"},
        ),
        ("a INT", record(("a", "int"), ("b", "int")), {"column": "b", "reason": "missing"}),
        ("a INT", record(("a", ["int", "string"])), {"column": "a", "reason": "union"}),
        (
            "s STRUCT<x: INT>",
            record(("s", record(("y", "int")) | {"name": "S"})),
            {"column": "s.x", "allowed": ("y",), "reason": "unknown"},
        ),
    ],
)
def test_columns_that_no_row_would_make_fit_are_refused_at_once(frame, ddl, schema, fields):
    with pytest.raises(ConfigError) as raised:
        problems(frame(ddl), schema)
    assert raised.value.fields == fields
    assert f"column {fields['column']} " in raised.value.cause


def test_schemas_may_be_named_by_guid_in_headers_and_our_own_decoder_reads_them(spark, frame):
    guid = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
    rows = frame("k STRING, n INT, headers ARRAY<STRUCT<key STRING, value BINARY>>", ("a", 1, [("x", b"y")]))
    schemas = {
        part: derived_schema(rows.select(*names).schema, "R")
        for part, names in (("value", "kn"), ("key", "k"))
    }
    names = {part: {"out": identifier(guid)} for part in schemas}
    sent = AvroRecords(schemas, names, rows.schema, ("k",), in_header=True)(rows)
    (row,) = sent.collect()
    named = {header["key"]: bytes(header["value"]) for header in row["headers"]}
    wanted = b"\1" + UUID(guid).bytes
    assert named == {"x": b"y", "__value_schema_id": wanted, "__key_schema_id": wanted}
    parsed = fastavro.parse_schema(schemas["value"])
    assert fastavro.schemaless_reader(io.BytesIO(bytes(row["value"])), parsed) == {"k": "a", "n": 1}

    codec = AVRO.codec(
        {guid: RegisteredSchema(1, "AVRO", json.dumps(schemas["value"]))}, lambda _: None, None
    )
    place = {"topic": F.lit("out"), "partition": F.lit(0), "offset": F.lit(7).cast("bigint")}
    records = sent.withColumns(place | {"timestamp": F.current_timestamp()})
    read = fixed_schemas.valid_rows(records, FixedSchemas(Codecs(codec)), Layout(), "FAILFAST").collect()
    assert [(each["k"], each["n"], each["_kafka"]["offset"]) for each in read] == [("a", 1, 7)]
