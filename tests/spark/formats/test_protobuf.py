"""Protobuf with a schema of the registry: which columns it has, what is right, and why something is not."""

from __future__ import annotations

import base64
import json
import math
from datetime import datetime
from decimal import Decimal

import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tests.spark.formats.plain_values import plain
from topiclake.formats.codec import Codecs
from topiclake.formats.protobuf import codec as protobuf_codec
from topiclake.formats.protobuf import schema as protobuf_schema
from topiclake.formats.protobuf.codec import ProtobufCodec
from topiclake.ingest import quarantine_rows
from topiclake.schema_registry.answers import RegisteredSchema
from topiclake.schema_registry.wire_format import frame, identifier
from topiclake.sources import registered_rows
from topiclake.sources.layout import Layout

PLACE = 'syntax = "proto3"; package shop; message Place { string zip = 1; repeated Place.Room rooms = 2;'
PLACE += " message Room { int32 size = 1; } }"
ALL = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/empty.proto";
import "shop/place.proto";
enum Color { NONE = 0; RED = 1; }
message All {
  int32 i32 = 1; sint64 i64 = 2; fixed32 u32 = 3; uint64 u64 = 4;
  float f = 5; double d = 6; bool b = 7; string s = 8; bytes raw = 9; Color color = 10;
  google.protobuf.Timestamp at = 11; google.protobuf.Int64Value wrapped = 12;
  google.protobuf.Duration took = 13; google.protobuf.Struct free = 14; google.protobuf.Empty none = 15;
  repeated double doubles = 16; repeated Place places = 17; map<string, Place> by_name = 18;
  map<int64, bytes> by_number = 19; map<bool, Color> by_flag = 20; optional int32 maybe = 21;
  oneof choice { string name = 22; uint64 number = 23; }
  Place place = 24; repeated google.protobuf.Timestamp times = 25;
}
message Other { string id = 1; message Inner { int32 n = 1; } }
"""
COLUMNS = (
    "i32 INT, i64 BIGINT, u32 BIGINT, u64 DECIMAL(20,0), f FLOAT, d DOUBLE, b BOOLEAN, s STRING, raw BINARY, "
    "color STRING, at TIMESTAMP, wrapped BIGINT, took STRUCT<seconds: BIGINT, nanos: INT>, free STRING, "
    "none BOOLEAN, doubles ARRAY<DOUBLE>, "
    "places ARRAY<STRUCT<zip: STRING, rooms: ARRAY<STRUCT<size: INT>>>>, "
    "by_name MAP<STRING, STRUCT<zip: STRING, rooms: ARRAY<STRUCT<size: INT>>>>, "
    "by_number MAP<STRING, BINARY>, "
    "by_flag MAP<STRING, STRING>, maybe INT, name STRING, number DECIMAL(20,0), "
    "place STRUCT<zip: STRING, rooms: ARRAY<STRUCT<size: INT>>>, times ARRAY<TIMESTAMP>"
)
REFERENCES = (("shop/place.proto", PLACE),)
#: What a message has where nothing was set.
EMPTY = {
    "i32": 0,
    "i64": 0,
    "u32": 0,
    "u64": Decimal(0),
    "f": 0.0,
    "d": 0.0,
    "b": False,
    "s": "",
    "raw": b"",
    "color": "NONE",
    "doubles": [],
    "places": [],
    "by_name": {},
    "by_number": {},
    "by_flag": {},
    "times": [],
}


def registered(number, schema, references=(), schema_type="PROTOBUF"):
    return RegisteredSchema(number, schema_type, schema, None, tuple(references))


def codec_of(*schemas, names=()):
    return ProtobufCodec.of_messages(names, {each.schema_id: each for each in schemas})


def message(name, schema=ALL, references=REFERENCES):
    pool = DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(protobuf_schema.compiled(schema, references))
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


def read(codec, records, unknown=()):
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


def full():
    one = message("shop.All")
    one.i32, one.i64, one.u32, one.u64 = -(2**31), 2**53 + 1, 2**32 - 1, 2**64 - 1
    one.f, one.d, one.b, one.s, one.raw, one.color = 0.1, -math.inf, True, 'é\x00"\n', b"\x00\xff", 1
    one.at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, 678901))
    one.wrapped.value, one.took.seconds, one.took.nanos = -1, 5, 7
    one.free.update({"a": [1, "x", None]})
    one.none.SetInParent()
    one.doubles.extend([math.inf, -0.0, 1e-320])
    one.places.add(zip="94016").rooms.add(size=3)
    one.by_name["home"].zip = "1"
    one.by_number[-5] = b"\x01"
    one.by_flag[True] = 7
    one.maybe, one.number = 0, 2**63
    one.place.SetInParent()
    one.times.add().FromDatetime(datetime(2, 1, 1))
    return one


FULL = {
    "i32": -(2**31),
    "i64": 2**53 + 1,
    "u32": 2**32 - 1,
    "u64": Decimal(2**64 - 1),
    "f": 0.10000000149011612,
    "d": -math.inf,
    "b": True,
    "s": 'é\x00"\n',
    "raw": b"\x00\xff",
    "color": "RED",
    "at": datetime(2026, 1, 2, 3, 4, 5, 678901),
    "wrapped": -1,
    "took": {"seconds": 5, "nanos": 7},
    "none": True,
    "doubles": [math.inf, -0.0, 1e-320],
    "places": [{"zip": "94016", "rooms": [{"size": 3}]}],
    "by_name": {"home": {"zip": "1", "rooms": []}},
    "by_number": {"-5": b"\x01"},
    "by_flag": {"true": "7"},
    "maybe": 0,
    "number": Decimal(2**63),
    "place": {"zip": "", "rooms": []},
    "times": [datetime(2, 1, 1)],
}


def test_each_field_is_its_column_exactly(spark, kafka_records):
    codec = codec_of(registered(1, ALL, REFERENCES))
    assert codec.refused == {}
    columns = protobuf_codec.event_type(spark, codec.reader)
    assert columns.simpleString() == StructType.fromDDL(COLUMNS).simpleString()
    nan = message("shop.All")
    nan.d, nan.f = math.nan, math.nan
    given = [full(), message("shop.All"), nan]
    found = read(codec, kafka_records([frame(1, b"\0" + each.SerializeToString()) for each in given]))
    assert json.loads(found[0].pop("free")) == {"a": [1.0, "x", None]}
    assert found[0] == FULL
    assert math.copysign(1, found[0]["doubles"][1]) == -1
    assert found[1] == EMPTY
    assert math.isnan(found[2]["d"])
    assert math.isnan(found[2]["f"])


def test_what_is_no_message_of_the_table_says_why_not(kafka_records):
    codec = codec_of(registered(1, ALL, REFERENCES), registered(2, "{}", schema_type="JSON"))
    whole = full().SerializeToString()
    late = message("shop.All")
    late.at.seconds = 10**12
    other = message("shop.Other", ALL).SerializeToString()
    cases = {
        frame(1, b"\0" + whole[:-1]): ("undecodable", "cut off, or no message of its schema"),
        frame(1, b"\0\x42\x01\xff"): ("undecodable", "cut off, or no message"),
        frame(1, b""): ("undecodable", "the message indexes are cut off"),
        frame(1, b"\x04\x02"): ("undecodable", "the message indexes are cut off"),
        frame(1, b"\x02\x02" + other): ("undecodable", "it is a shop.Other, and the table accepts shop.All"),
        frame(1, b"\x04\x02\x00"): ("undecodable", "it is a shop.Other.Inner, and the table accepts"),
        frame(1, b"\x02\x08"): ("undecodable", "no message of index [4]"),
        frame(1, b"\x01"): ("undecodable", "there are -1 message indexes"),
        frame(1, b"\0" + late.SerializeToString()): ("undecodable", "out of range"),
        b"\0\0\0": ("too_short", "3 bytes"),
        b"\1\0\0\0\1\0": ("bad_magic", "byte 0 is 0x01"),
        frame(9, b"\0"): ("unknown_schema_id", "the registry does not know schema id 9"),
        frame(2, b"{}"): ("wrong_schema_type", "schema 2 is JSON, not PROTOBUF"),
    }
    found = read(codec, kafka_records([*cases, None, frame(1, b"\x02\0" + whole)]), unknown=[9])
    for (reason, detail), (wanted, why), value in zip(found, cases.values(), cases, strict=False):
        assert (reason, why in detail) == (wanted, True), (value, reason, detail)
    assert found[-2][0] == "tombstone"
    assert found[-1]["u64"] == Decimal(2**64 - 1)


def test_versions_are_united_and_one_message_of_several_may_be_chosen(spark, kafka_records):
    first = registered(1, 'syntax = "proto2"; message A { required int32 n = 1; optional float f = 2; }')
    newer = 'syntax = "proto2"; message B {} message A { required int64 n = 1; optional double f = 2; '
    newer += "optional A.C c = 3; optional bytes more = 4; message C { optional string x = 1; } }"
    second = registered(2, newer)
    refused = {
        3: "syntax = 'proto3'; message A { string n = 1; }",
        4: "syntax = 'proto3'; message A { int32 n = 1; A a = 2; }",
        5: "syntax = 'proto3'; message A { int32 n = 1; int32 N = 2; }",
        6: "syntax = 'proto3'; message A {",
        7: "syntax = 'proto3'; import 'no.proto'; message A { int32 n = 1; }",
        8: "syntax = 'proto3'; message X { int32 n = 1; }",
    }
    codec = codec_of(first, second, *(registered(*each) for each in refused.items()), names=("A",))
    assert protobuf_codec.event_type(spark, codec.reader).simpleString() == (
        "struct<n:bigint,f:double,c:struct<x:string>,more:binary>"
    )
    whys = ["n is bigint", "message A holds itself", "differ in the case", "does not compile", "no.proto"]
    whys[0] = "n is long in earlier versions and would become string"
    for (reason, detail), why in zip(
        codec.refused.values(), [*whys, "its messages are X, and not A"], strict=True
    ):
        assert (reason, why in detail) == ("incompatible_schema", True), detail
    assert "differ in the case" in codec_of(registered(5, refused[5])).refused[5][1]
    old, new = message("A", first.schema, ()), message("A", newer, ())
    old.n, old.f, new.n, new.more = 1, 0.5, 2**40, b"x"
    given = [
        frame(1, b"\0" + old.SerializeToString()),
        frame(2, b"\x02\x02" + new.SerializeToString()),
        # A newer version's fields are unknown to the older one.
        frame(1, b"\0" + new.SerializeToString()[:6] + b"\x22\x01x"),
        frame(1, b"\0\x15\0\0\0\0"),
    ]
    found = read(codec, kafka_records(given))
    assert found[:2] == [{"n": 1, "f": 0.5}, {"n": 2**40, "more": b"x"}]
    assert found[3][0] == "undecodable"
    assert "it lacks what is required: n" in found[3][1]


@pytest.mark.parametrize("key", [1, "6f1e2ab5-4c3f-4f3e-9a7b-0a1b2c3d4e5f"])
def test_a_header_names_schema_and_message(kafka_records, key):
    described = descriptor_pb2.FileDescriptorSet.FromString(protobuf_schema.compiled(ALL, REFERENCES))
    # As Confluent's client for Python registers it.
    texts = {each.name: base64.b64encode(each.SerializeToString()).decode() for each in described.file}
    references = (("shop/place.proto", texts["shop/place.proto"]),)
    schema = registered(1, texts[protobuf_schema.MAIN], references)
    codec = ProtobufCodec.of_messages((), {key: schema})
    assert codec.refused == {}
    header = F.array(
        F.struct(F.lit("__value_schema_id").alias("key"), F.lit(identifier(key) + b"\0").alias("value"))
    )
    records = kafka_records([full().SerializeToString(), b"\xff"]).withColumn("headers", header)
    found = read(codec, records)
    assert found[0]["u64"] == Decimal(2**64 - 1)
    assert found[1][0] == "undecodable"
    assert "cut off, or no message" in found[1][1]
