"""Usual Protobuf messages, many at once, against a decoder of one value at a time."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tests.support.protobuf_oracle import any_message, expected, message_class, mutated, plain
from topiclake.formats.protobuf import schema, usual_messages, wire

PROTO3 = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
import "google/protobuf/duration.proto"; import "google/protobuf/empty.proto";
import "google/protobuf/struct.proto";
enum Color { option allow_alias = true; NONE = 0; RED = 1; ROT = 1; BACK = -2; }
message All {
  int32 i32 = 1; sint64 i64 = 2; fixed32 u32 = 3; uint64 u64 = 4; float f = 5; double d = 6; bool b = 7;
  string s = 8; bytes raw = 9; Color color = 10; google.protobuf.Timestamp at = 11;
  google.protobuf.UInt64Value wrapped = 12; google.protobuf.Duration took = 13;
  google.protobuf.Empty none = 15; optional uint32 maybe = 16; Place place = 17;
  oneof choice { string name = 22; Place other = 23; sfixed64 number = 2050; }
  google.protobuf.StringValue text = 300000; sint32 s32 = 2051; sfixed32 f32 = 2052; fixed64 f64 = 2053;
  repeated string words = 24; repeated sint64 numbers = 25; repeated Place places = 26;
  repeated double prices = 27; repeated Color colors = 28; repeated google.protobuf.Timestamp times = 29;
  map<string, int32> counts = 30; map<sint64, Place> by_number = 31; map<bool, Color> by_flag = 32;
  map<uint64, google.protobuf.Timestamp> by_unsigned = 33; map<sfixed32, bytes> by_fixed = 34;
  google.protobuf.Value unusual = 35; map<string, google.protobuf.Value> unusual_map = 36;
}
message Place { string zip = 1; repeated Room rooms = 2; optional int32 floor = 3;
  message Room { int64 size = 1; google.protobuf.Timestamp since = 2; google.protobuf.BoolValue free = 3; } }
"""
PROTO2 = """
syntax = "proto2"; package shop;
enum Closed { A = 0; B = 5; }
message Old {
  optional int32 seven = 2 [default = 7]; optional Closed closed = 3; optional string text = 4;
  optional bytes raw = 8; optional Old.Part part = 9; message Part { optional float f = 1; }
  repeated int32 unusual = 10; repeated bool flags = 11 [packed = true];
  extensions 100 to 199;
}
"""


UNUSUAL = {"unusual", "unusual_map"}


def described(text):
    """Return what reads messages of a schema, their class and their columns."""
    compiled = schema.compiled(text, ())
    (message,) = schema.messages(compiled, ())
    shape = schema.shape(message)
    return usual_messages.struct_of(message, shape), message_class(compiled, message.full_name), shape


def usual_bytes(rng, kind):
    """Return the bytes of a usual message."""
    message = any_message(rng, kind)
    for name in UNUSUAL & set(kind.DESCRIPTOR.fields_by_name):
        message.ClearField(name)
    return message.SerializeToString()


def read(reader, values, copies=usual_messages.FEWEST_LISTS):
    """Return the row of each usual message, and None for the others; lists are read in so many copies."""
    rows, after = reader(*wire.messages(pa.array(values * copies, pa.binary())))
    rows.validate(full=True)
    found = rows.slice(0, len(values)).to_pylist()
    return [plain(row) if end >= 0 else None for row, end in zip(found, after[: len(values)], strict=True)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("text", [PROTO3, PROTO2], ids=["proto3", "proto2"])
def test_a_usual_message_is_what_one_at_a_time_gives(seed, text):
    reader, kind, shape = described(text)
    rng = random.Random(seed)
    encoded = [usual_bytes(rng, kind) for _ in range(300)]
    assert read(reader, encoded) == [plain(expected(kind, each, shape)) for each in encoded]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("text", [PROTO3, PROTO2], ids=["proto3", "proto2"])
def test_changed_bytes_are_unusual_or_what_one_at_a_time_gives(seed, text):
    reader, kind, shape = described(text)
    rng = random.Random(seed)
    changed = [mutated(rng, usual_bytes(rng, kind)) for _ in range(1000)]
    found = read(reader, changed)
    for value, row in zip(changed, found, strict=True):
        assert row is None or row == plain(expected(kind, value, shape)), value
    assert 0.05 * len(found) < sum(row is None for row in found) < 0.95 * len(found)


def test_what_google_reads_in_another_way_is_unusual():
    reader, kind, _ = described(PROTO3)
    late, early = kind(), kind()
    late.at.seconds, late.at.nanos = 253_402_300_799, 1_000_000_000
    early.at.seconds, early.at.nanos = -62_135_596_800, -1
    unusual = [
        late.SerializeToString(),
        early.SerializeToString(),
        # Two members of a `oneof`: the last one counts.
        kind(name="a").SerializeToString() + kind(number=1).SerializeToString(),
        # An unknown field in a message without fields, and at the end.
        b"\x7a\x02\x08\x01",
        kind(i32=1).SerializeToString() + b"\x98\x06\x01",
        # A field twice, and fields in another order.
        kind(i32=1).SerializeToString() * 2,
        kind(s="a").SerializeToString() + kind(i32=1).SerializeToString(),
        # A list in two parts, and a map in two parts.
        kind(words=["a"]).SerializeToString() + kind(i32=1, words=["b"]).SerializeToString(),
        kind(counts={"a": 1}).SerializeToString() + kind(i32=1, counts={"b": 1}).SerializeToString(),
        # A key twice, and entries without a key, without a value, with both in another order, and with more.
        kind(counts={"a": 1}).SerializeToString() + kind(counts={"a": 2}).SerializeToString(),
        b"\xf2\x01\x02\x10\x01",
        b"\xf2\x01\x03\x0a\x01a",
        b"\xf2\x01\x05\x10\x01\x0a\x01a",
        b"\xf2\x01\x07\x0a\x01a\x10\x01\x18\x01",
        # A key that is no text, and values of any type.
        b"\xf2\x01\x05\x0a\x01\xff\x10\x01",
        kind(unusual={"bool_value": True}).SerializeToString(),
        kind(unusual_map={"a": {"bool_value": True}}).SerializeToString(),
        # A length of six bytes, one beyond the end, and a text that is none.
        b"\x42\x81\x80\x80\x80\x80\x00x",
        b"\x42\x02x",
        b"\x42\x01\xff",
        # A number of eleven bytes, and one that is cut off.
        b"\x10" + b"\x80" * 10 + b"\x00",
        b"\x30\x00",
    ]
    usual = kind(i32=1).SerializeToString()
    found = read(reader, [each for value in unusual for each in (value, usual)])
    assert found[::2] == [None] * len(unusual)
    assert [row["i32"] for row in found[1::2]] == [1] * len(unusual)


@pytest.mark.parametrize("last", [0, 1, 2, 0x7F])
def test_a_number_of_ten_bytes_is_that_of_google(last):
    reader, kind, shape = described(PROTO3)
    value = b"\x08" + b"\xff" * 9 + bytes([last])
    assert read(reader, [value]) == [plain(expected(kind, value, shape))]


def test_messages_within_messages_are_usual_down_to_a_depth():
    messages = [f"message M{depth} {{ M{depth + 1} m = 1; int32 n = 2; }}" for depth in range(36)]
    reader, kind, _ = described('syntax = "proto3"; ' + " ".join([*messages, "message M36 {}"]))
    usual = []
    for depth in (31, 32, 33):
        message = inner = kind()
        for _ in range(depth):
            inner = inner.m
        inner.n = 1
        usual.append(read(reader, [message.SerializeToString()]) != [None])
    assert usual == [True, True, False]


def test_a_field_without_a_column_is_unusual():
    _, kind, shape = described(PROTO3)
    columns = shape | {"fields": [each for each in shape["fields"] if each["name"] == "i32"]}
    reader = usual_messages.struct_of(kind.DESCRIPTOR, columns)
    assert read(reader, [kind(i32=1).SerializeToString(), kind(i32=1, s="a").SerializeToString()]) == [
        {"i32": 1},
        None,
    ]


def test_few_lists_that_are_longer_than_all_others_are_unusual():
    reader, kind, _ = described(PROTO3)
    short, long = (kind(words=["a"] * size).SerializeToString() for size in (2, 1000))
    # The tag of an item, without the item.
    cut_off = short + b"\xc2\x01"
    found = read(reader, [short] * 16 + [long, cut_off], copies=1)
    assert [len(row["words"]) for row in found[:16]] == [2] * 16
    assert found[16:] == [None, None]
    assert len(read(reader, [long])[0]["words"]) == 1000


def test_short_and_long_texts_are_read():
    reader, kind, shape = described(PROTO3)
    encoded = [kind(s=text, raw=text.encode()).SerializeToString() for text in ("", "é" * 1000, "a" * 300)]
    for values in (encoded, encoded[:1] * 30 + encoded[2:], [*encoded, b"\x42\x01\xff", b"\x42\x09a"]):
        wanted = [plain(expected(kind, each, shape)) for each in values]
        assert read(reader, values) == wanted


def test_no_values_nulls_and_a_slice_are_read():
    reader, _, _ = described(PROTO3)
    assert read(reader, []) == []
    values = pa.array([None, b"\x08\x07", b"\x08\x08", None], pa.large_binary())
    # A null may have bytes.
    content, offsets = pa.py_buffer(b"\x08\x07\x08\x08"), pa.array([0, 2, 4], pa.int32()).buffers()[1]
    second = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), offsets, content])
    for each, wanted in ((values[1:3], [7, 8]), (values[:2], [0, 7]), (second, [0, 8])):
        rows, _ = reader(*wire.messages(each))
        assert rows.field("i32").to_pylist() == wanted
