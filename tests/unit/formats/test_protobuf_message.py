"""Protobuf's messages as columns, against a decoder of one value at a time."""

from __future__ import annotations

import json
import random
from functools import reduce

import pyarrow as pa
import pytest

from tests.support.protobuf_oracle import any_message, expected, message_class, mutated, plain
from topiclake.formats.protobuf import message, schema

PROTO3 = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
import "google/protobuf/duration.proto"; import "google/protobuf/struct.proto";
import "google/protobuf/empty.proto";
enum Color { option allow_alias = true; NONE = 0; RED = 1; ROT = 1; BACK = -2; }
message All {
  int32 i32 = 1; sint64 i64 = 2; fixed32 u32 = 3; uint64 u64 = 4; float f = 5; double d = 6; bool b = 7;
  string s = 8; bytes raw = 9; Color color = 10; google.protobuf.Timestamp at = 11;
  google.protobuf.UInt64Value wrapped = 12; google.protobuf.Duration took = 13;
  google.protobuf.Struct free = 14; google.protobuf.Empty none = 15; repeated sint32 numbers = 16;
  repeated Place places = 17; map<string, Place> by_name = 18; map<int64, bytes> by_number = 19;
  map<bool, Color> by_flag = 20; optional uint32 maybe = 21;
  oneof choice { string name = 22; Place other = 23; }
  repeated google.protobuf.Timestamp times = 24; repeated Color colors = 25; repeated string words = 26;
  google.protobuf.StringValue text = 27; int32 class = 28; string Clear = 29;
  map<uint64, google.protobuf.Value> free_by = 30;
}
message Place { string zip = 1; repeated Room rooms = 2; optional int32 floor = 3;
  message Room { int32 size = 1; google.protobuf.Timestamp since = 2; map<string, double> prices = 3; } }
"""
#: A later version: a wider type, a further field, one field fewer.
LATER = PROTO3.replace("int32 i32 = 1; ", "int64 i32 = 1; int64 more = 31; ").replace("string s = 8; ", "")
PROTO2 = """
syntax = "proto2"; package shop;
enum Closed { A = 0; B = 5; }
message Old {
  required int32 id = 1; optional int32 seven = 2 [default = 7]; optional Closed closed = 3;
  optional string text = 4; optional group Part = 5 { optional int32 n = 1; required string of = 2; }
  repeated Closed many = 6; optional bytes raw = 8; map<string, string> names = 9; repeated float f = 10;
  extensions 100 to 199;
}
"""


def compiled(text):
    return schema.compiled(text, ())


def shape_of(*texts):
    return reduce(schema.united, (schema.shape(schema.messages(compiled(text), ())[0]) for text in texts))


def first_of(text):
    return message_class(compiled(text), schema.messages(compiled(text), ())[0].full_name)


def described(text):
    return compiled(text), [schema.messages(compiled(text), ())[0].full_name]


def read(schemas, shape, values):
    """Decode pairs of a schema's name and a value, all in one batch."""
    names = pa.array([name for name, _ in values], pa.binary())
    found = message.decoded(
        pa.array([value for _, value in values], pa.binary()), names, schemas, json.dumps(shape)
    )
    found.validate(full=True)
    return [(plain(each["row"]), each["error"]) for each in found.to_pylist()]


def changed_messages(seed, kind, count):
    rng = random.Random(seed)
    for _ in range(count):
        encoded = any_message(rng, kind).SerializePartialToString()
        yield encoded
        for _ in range(3):
            yield mutated(rng, encoded)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("versions", [(PROTO3,), (PROTO3, LATER), (PROTO2,)], ids=["one", "two", "proto2"])
def test_random_and_changed_messages_are_what_one_at_a_time_gives(seed, versions):
    shape = shape_of(*versions)
    schemas = {bytes([number]): described(text) for number, text in enumerate(versions)}
    kinds = {bytes([number]): first_of(text) for number, text in enumerate(versions)}
    values = [
        (name, encoded) for name, kind in kinds.items() for encoded in changed_messages(seed, kind, 100)
    ]
    random.Random(seed).shuffle(values)
    wanted = [plain(expected(kinds[name], encoded, shape)) for name, encoded in values]
    found = read(schemas, shape, [(name, b"\0" + encoded) for name, encoded in values])
    for (row, error), wished, value in zip(found, wanted, values, strict=True):
        assert (row, error is not None) == (wished, wished is None), value
    right = sum(row is not None for row, _ in found)
    assert 0.2 * len(found) < right < 0.95 * len(found)


def test_a_bad_value_takes_no_other_with_it():
    kind = first_of(PROTO2)
    good = kind(id=1, text="x").SerializePartialToString()
    # Such text gets as far as the column: a parser of proto2 accepts it.
    bad = {
        b"\0" + good + b"\x22\x01\xff": "utf",
        b"\0" + good + b"\x4a\x03\x0a\x01\xff": "utf",
        b"\0" + kind(text="x").SerializePartialToString(): "lacks what is required: id",
        b"\0\x08": "cut off",
        b"": "message indexes are cut off",
        b"\x02\x08": "no message of index [4]",
    }
    values = [(b"k", b"\0" + good)] * 1500 + [(b"k", value) for value in bad]
    values += [(b"unknown", b"\0" + good), (None, b"\0" + good), (b"k", None), (b"k", b"\x02\0" + good)]
    found = read({b"k": described(PROTO2)}, shape_of(PROTO2), values)
    assert [row["id"] for row, _ in found[:1500]] == [1] * 1500
    for (row, error), why in zip(found[1500:], bad.values(), strict=False):
        assert row is None
        assert why in error
    assert found[-4:-1] == [(None, None)] * 3
    assert found[-1][0]["text"] == "x"


def test_times_are_those_of_the_years_1_to_9999():
    text = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
    text += "message A { google.protobuf.Timestamp t = 1; }"
    kind, values = first_of(text), []
    for seconds, nanos in [
        (-62_135_596_800, 0),
        (-62_135_596_800, -1),
        (253_402_300_799, 999_999_999),
        (253_402_300_800, 0),
        (2**62, 0),
        (0, -1),
    ]:
        each = kind()
        each.t.seconds, each.t.nanos = seconds, nanos
        values.append((b"k", b"\0" + each.SerializeToString()))
    shape = shape_of(text)
    names = pa.array([name for name, _ in values], pa.binary())
    found = message.decoded(
        pa.array([value for _, value in values], pa.binary()),
        names,
        {b"k": described(text)},
        json.dumps(shape),
    )
    micros = [each.as_py() for each in found.field("row").flatten()[0].cast(pa.int64())]
    assert micros == [-62_135_596_800_000_000, None, 253_402_300_799_999_999, None, None, -1]
    assert ["out of range" in (error or "") for error in found.field("error").to_pylist()] == [
        each is None for each in micros
    ]


@pytest.mark.parametrize("count", [1, 1000])
def test_few_and_many_messages_with_others_between_them_are_rows_in_their_order(count):
    text = 'syntax = "proto3"; message A { int32 n = 1; map<string, int32> by_name = 2; }'
    usual, unusual = (b"k", b"\0\x08\x01"), (b"k", b"\0\x12\x05\x0a\x01a\x10\x07")
    # The index of its message would be a field.
    other, null, unknown = (b"k", b"\x02\x08\x05"), (b"k", None), (b"u", b"\0\x08\x01")
    found = read({b"k": described(text)}, shape_of(text), [usual, unusual, other, null, unknown] * count)
    rows = [({"n": 1, "by_name": []}, None), ({"n": 0, "by_name": [("a", 7)]}, None)]
    assert found == [*rows, (None, "the schema has no message of index [4]"), *[(None, None)] * 2] * count


def test_messages_of_two_versions_in_turn_are_rows_in_their_order():
    first = 'syntax = "proto3"; message A { int32 n = 1; }'
    second = first.replace("}", "string s = 2; }")
    schemas = {b"1": described(first), b"2": described(second)}
    values = [(b"2", b"\0\x08\x01\x12\x01a"), (b"1", b"\0\x08\x02")] * 200
    wanted = [({"n": 1, "s": "a"}, None), ({"n": 2, "s": None}, None)] * 200
    assert read(schemas, shape_of(first, second), values) == wanted


def test_no_values_are_no_rows():
    assert read({}, shape_of(PROTO2), []) == []
