"""Versions of a subject united into one reader schema, against fastavro, which shares no code with it."""

import copy
import io
import json
import random
import sys
from dataclasses import dataclass, field, replace
from datetime import date

import fastavro
import pytest

from tests.support.avro_resolution import resolves
from topiclake.formats.avro import reader_schema
from topiclake.formats.avro.reader_schema import is_record, unite
from topiclake.formats.avro.schema_json import SchemaRefusedError, definitions
from topiclake.formats.avro.stored_reader import StoredReaderError


def record(*fields, name="io.test.Order", **rest):
    """A record of (name, type[, default[, aliases]])."""
    keys = ("name", "type", "default", "aliases")
    written = [{k: v for k, v in zip(keys, each, strict=False) if v != "none"} for each in fields]
    return {"type": "record", "name": name, "fields": written, **rest}


def enum(*symbols, name="io.test.Colour", **rest):
    return {"type": "enum", "name": name, "symbols": list(symbols), **rest}


def fixed(size, name="io.test.Hash", **rest):
    return {"type": "fixed", "name": name, "size": size, **rest}


def logical(kind, logical_type, **rest):
    return {"type": kind, "logicalType": logical_type, **rest}


def decimal(precision, scale, kind="bytes"):
    return logical(kind, "decimal", precision=precision, scale=scale)


def united(*schemas, **options):
    """Unite schemas (JSON as Python has it) under the keys 1, 2, …"""
    return unite({key: json.dumps(each) for key, each in enumerate(schemas, 1)}, **options)


def encoded(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, parsed(schema), value)
    return stream.getvalue()


def decoded(payload, writer, reader=None):
    stream = io.BytesIO(payload)
    value = fastavro.schemaless_reader(stream, parsed(writer), parsed(reader) if reader else None)
    assert stream.tell() == len(payload)
    return value


def parsed(schema):
    tree = json.loads(schema) if isinstance(schema, str) and schema[:1] in '{["' else schema
    return fastavro.parse_schema(copy.deepcopy(tree))


def read(union, key, schema, value):
    """What the reader makes of a value that was written with the registered schema of `key`."""
    return decoded(encoded(schema, value), union.writers[key], union.reader)


def reader_fields(union):
    """Name → type of the columns."""
    assert union.incompatible == {}
    return {each["name"]: each["type"] for each in json.loads(union.reader)["fields"]}


def one_field(kind):
    return record(("x", kind))


def field_of(*kinds):
    """The type of the one column after versions in which it had these types."""
    return reader_fields(united(*(one_field(kind) for kind in kinds)))["x"]


# What two types become


INT, LONG, FLOAT, DOUBLE = "int", "long", "float", "double"
MERGED = [
    *(
        (one, other, wider)
        for one, other, wider in [
            (INT, LONG, LONG),
            (INT, FLOAT, FLOAT),
            (INT, DOUBLE, DOUBLE),
            (LONG, FLOAT, FLOAT),
            (LONG, DOUBLE, DOUBLE),
            (FLOAT, DOUBLE, DOUBLE),
        ]
    ),
    *(
        (other, one, wider)
        for one, other, wider in [
            (INT, LONG, LONG),
            (INT, FLOAT, FLOAT),
            (LONG, DOUBLE, DOUBLE),
            (FLOAT, DOUBLE, DOUBLE),
        ]
    ),
    *((each, each, each) for each in ("null", "boolean", INT, LONG, FLOAT, DOUBLE, "string", "bytes")),
    ("string", "bytes", "string"),
    ("bytes", "string", "bytes"),
    ("string", logical("string", "uuid"), "string"),
    ("int", logical("int", "no-such-type"), "int"),
    ("string", logical("string", "date"), "string"),
    ("bytes", decimal(2, 3), "bytes"),
    (
        *(fixed(4, logicalType=each) for each in ("duration", "x")),
        {"type": "fixed", "name": "topiclake.event.x", "size": 4},
    ),
    ({"type": "string", "avro.java.string": "String"}, {"type": {"type": "string"}}, "string"),
    (decimal(5, 2), decimal(9, 2), decimal(9, 2)),
    (decimal(9, 2), decimal(5, 2), decimal(9, 2)),
    (logical(INT, "date"), logical(INT, "date"), logical(INT, "date")),
    ({"type": "array", "items": INT}, {"type": "array", "items": LONG}, {"type": "array", "items": LONG}),
    ({"type": "map", "values": FLOAT}, {"type": "map", "values": INT}, {"type": "map", "values": FLOAT}),
    (
        {"type": "array", "items": INT},
        {"type": "array", "items": ["null", INT]},
        {"type": "array", "items": ["null", INT]},
    ),
    (INT, [LONG, INT], LONG),
    ([INT, LONG], LONG, LONG),
    ([INT, "string"], ["string", INT], [INT, "string"]),
    ([INT, "string"], ["string", LONG], [INT, "string", LONG]),
    ([INT, LONG], [FLOAT, "string"], [INT, LONG, FLOAT, "string"]),
    ([INT], LONG, LONG),
]


@pytest.mark.parametrize(("one", "other", "expected"), MERGED)
def test_two_types_become_one_that_reads_both(one, other, expected):
    assert field_of(one, other) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["null", "int"], "int"),
        ("int", ["null", "int"]),
        ("int", ["int", "null"]),
        ("null", "int"),
        ("int", "null"),
        (["null"], "int"),
        (["null", "int"], ["int"]),
    ],
)
def test_a_type_that_may_be_null_once_may_be_null(one, other):
    assert field_of(one, other) == ["null", "int"]


def test_null_stands_beside_the_branches_of_a_union():
    assert field_of(["string", "int"], ["null", "int", "boolean"]) == ["null", "string", "int", "boolean"]


REFUSED = [
    ("int", "string", "string cannot be read as int"),
    ("string", "int", "int cannot be read as string"),
    ("boolean", "int", "int cannot be read as boolean"),
    ("bytes", "long", "long cannot be read as bytes"),
    (record(("a", "int"), name="R"), {"type": "map", "values": "int"}, "map cannot be read as record"),
    ({"type": "array", "items": "int"}, "int", "int cannot be read as array"),
    (enum("A"), "string", "string cannot be read as enum"),
    (logical("int", "date"), "int", "int cannot be read as date"),
    ("int", logical("int", "time-millis"), "time-millis cannot be read as int"),
    (logical("int", "date"), logical("int", "time-millis"), "time-millis cannot be read as date"),
    (logical("int", "date"), "long", "long cannot be read as date"),
    (
        logical("long", "timestamp-millis"),
        logical("long", "timestamp-micros"),
        "timestamp-micros cannot be read as timestamp-millis",
    ),
    (
        logical("long", "timestamp-micros"),
        logical("long", "local-timestamp-micros"),
        "local-timestamp-micros cannot be read as timestamp-micros",
    ),
    (logical("long", "timestamp-nanos"), "long", "long cannot be read as timestamp-nanos"),
    (decimal(9, 2), decimal(9, 3), "decimal(9,3) cannot be read as decimal(9,2)"),
    (decimal(9, 2), "bytes", "bytes cannot be read as decimal(9,2)"),
    (decimal(9, 2), "string", "string cannot be read as decimal(9,2)"),
    (fixed(4), fixed(8), "fixed(8) cannot be read as fixed(4)"),
    (fixed(12), fixed(12, logicalType="duration"), "duration cannot be read as fixed(12)"),
    (fixed(4), "bytes", "bytes cannot be read as fixed(4)"),
    (["int", "string"], "int", "int cannot be read as a union of int and string"),
    ("int", ["int", "string"], "a union of int and string cannot be read as int"),
    ([logical("int", "date"), "string"], ["int", "string"], "int cannot be read as date"),
    ([fixed(4), "string"], [fixed(8), "string"], "fixed(8) cannot be read as fixed(4)"),
]


@pytest.mark.parametrize(("one", "other", "reason"), REFUSED)
def test_what_would_be_a_guess_is_incompatible_and_the_others_go_on(one, other, reason):
    first, second, third = one_field(one), one_field(other), record(("x", one), ("y", "int"))
    union = united(first, second, third)
    assert union.incompatible == {2: f"field x: {reason}"}
    assert list(union.writers) == [1, 3]
    assert [each["name"] for each in json.loads(union.reader)["fields"]] == ["x", "y"]


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda kind: record(("total", record(("amount", kind), name="T"))), "field total.amount"),
        (lambda kind: record(("tags", {"type": "array", "items": kind})), "field tags[]"),
        (lambda kind: record(("tags", {"type": "map", "values": ["null", kind]})), "field tags{}"),
        (lambda kind: kind, "the value"),
    ],
)
def test_the_reason_names_the_path(wrap, path):
    assert united(wrap("int"), wrap("string")).incompatible == {2: f"{path}: string cannot be read as int"}


# Bad schemas


NODE = record(("next", ["null", "Node"]), name="Node")
BAD = [
    ("{", "the schema is not JSON: "),
    ("", "the schema is not JSON: "),
    ("string", "the schema is not JSON: "),
    ("5", "the value: 5 is no Avro type"),
    ("null", "the value: null is no Avro type"),
    ('"io.test.Other"', "the value: unknown type io.test.Other"),
    ("{}", "the value: {} is no Avro type"),
    ("[]", "the value: a union of nothing is no Avro type"),
    ('["int", "int"]', "the value: a union of int, int is no Avro type"),
    ('["int", ["null"]]', "the value: a union of int, union is no Avro type"),
    ('{"type": "array"}', "the value[]: null is no Avro type"),
    ('{"type": "record", "fields": []}', "a type of kind record has no name"),
    ('{"type": "record", "name": "R"}', "the value: R is a record without a list of fields"),
    ('{"type": "record", "name": "R", "fields": [{"type": "int"}]}', "the value: a field of R has no name"),
    ('{"type": "record", "name": "R", "fields": [5]}', "the value: a field of R has no name"),
    (
        json.dumps(record(("a", "int"), ("a", "int"), name="R")),
        "the value: two fields of R have the same name",
    ),
    (json.dumps(record(("a", fixed(1)), ("b", fixed(2)))), "io.test.Hash is defined twice"),
    ('{"type": "fixed", "name": "F"}', "the value: F is a fixed without a size"),
    ('{"type": "fixed", "name": "F", "size": -1}', "the value: F is a fixed without a size"),
    ('{"type": "enum", "name": "E"}', "the value: E is an enum without a list of different symbols"),
    (json.dumps(enum("A", "A", name="E")), "the value: E is an enum without a list of different symbols"),
    (json.dumps(enum("A", "B-C", name="E")), "the value: symbol 'B-C' of E is no Avro name"),
    (json.dumps(NODE), "Node contains itself (at next); Spark has no recursive types"),
    (json.dumps(record(("a", {"type": "array", "items": "R"}), name="R")), "R contains itself (at a[]); "),
    (json.dumps(decimal(39, 2)), "the value: a decimal of 39 digits; Spark's hold 38"),
    ("[" * 90_000, "the schema is nested too deep to read"),
    (
        '{"type":"array","items":' * 101 + '"int"' + "}" * 101,
        "the schema is nested more than 100 levels deep",
    ),
    (
        '{"type":"array","items":' * 800 + '"int"' + "}" * 800,
        "the schema is nested more than 100 levels deep",
    ),
]


@pytest.mark.parametrize(("schema", "reason"), BAD)
def test_a_bad_schema_is_incompatible_with_its_reason(schema, reason):
    good = json.dumps(one_field("int"))
    union = unite({"a": good, "b": schema, "c": good})
    assert list(union.incompatible) == ["b"]
    assert union.incompatible["b"].startswith(reason)
    assert list(union.writers) == ["a", "c"]


@pytest.mark.parametrize(("schema", "reason"), BAD)
def test_a_bad_schema_alone_leaves_no_reader(schema, reason):
    union = unite({"b": schema})
    assert (union.reader, union.writers) == (None, {})
    assert union.incompatible["b"].startswith(reason)
    referring = unite({"b": schema}, references={"b": [schema]})
    assert referring.incompatible["b"].startswith(reason)


def test_no_depth_raises():
    """JSON's parser and ours count levels differently; there must be no gap between the two."""
    for depth in [*range(90, 110), *range(110, 1100, 50), *range(850, 1000)]:
        (reason,) = unite(
            {1: '{"type":"array","items":' * depth + '"int"' + "}" * depth}
        ).incompatible.values() or [""]
        assert ("nested" in reason) is (depth > 100)


def test_what_a_more_patient_json_parser_lets_through_is_refused():
    """Python 3.12's reads far deeper than 3.11's."""
    tree = "int"
    for _ in range(5000):
        tree = [tree]
    with pytest.raises(SchemaRefusedError, match="more than 100 levels"):
        list(definitions(tree))


def test_any_garbage_is_told_and_never_raised():
    chance = random.Random(1)
    parts = [
        None,
        5,
        "",
        "record",
        "enum",
        "fixed",
        "array",
        "map",
        "decimal",
        "bytes",
        True,
        1e400,
        -1,
        10**30,
    ]
    keys = [
        "type",
        "name",
        "fields",
        "symbols",
        "items",
        "values",
        "size",
        "logicalType",
        "precision",
        "scale",
        "namespace",
        "aliases",
        "default",
    ]

    def garbage(depth):
        kind = chance.randrange(4 if depth else 1)
        if kind == 1:
            return [garbage(depth - 1) for _ in range(chance.randrange(3))]
        if kind >= 2:
            return {key: garbage(depth - 1) for key in ["type", "name", *chance.sample(keys, 4)]}
        return chance.choice(parts)

    good = one_field("int")
    for _ in range(1000):
        text = json.dumps(garbage(4))
        union = unite({1: text, 2: json.dumps(good), 3: text}, references={2: [text], 3: [text]})
        assert set(union.writers) | set(union.incompatible) == {1, 2, 3}


def test_no_versions_make_no_reader():
    assert united() == reader_schema.United(None, {}, {}, None)


# Fields


ORDER = record(("id", "int"), ("name", "string"), ("note", "string", "none"))


def test_columns_keep_the_order_in_which_they_were_seen_and_new_ones_follow():
    union = united(record(("b", "int"), ("a", "int")), record(("c", "int"), ("a", "int"), ("d", "int")))
    assert list(reader_fields(union)) == ["b", "a", "c", "d"]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        # (what the versions say of x), (x of a record that lacks it, the type of the column)
        ([None, ("x", "int")], (None, ["null", "int"])),
        ([None, ("x", "int", 7)], (7, ["int", "null"])),
        ([None, ("x", ["null", "int"])], (None, ["null", "int"])),
        ([None, ("x", ["null", "int"], None)], (None, ["null", "int"])),
        ([None, ("x", ["int", "null"], 7)], (7, ["int", "null"])),
        ([None, ("x", ["null", "int"], 7)], (7, ["int", "null"])),
        ([None, ("x", "int", 7), ("x", "int")], (None, ["null", "int"])),
        ([None, ("x", "int"), ("x", "int", 7)], (7, ["int", "null"])),
        ([None, ("x", "int", 7), ("x", "long", 8)], (8, ["long", "null"])),
        ([None, ("x", "int", 7), None], (None, ["null", "int"])),
        ([("x", "int"), None], (None, ["null", "int"])),
        ([("x", "int", 7), None, ("x", "int", 9)], (9, ["int", "null"])),
        ([None, ("x", ["string", "int"], "a")], ("a", ["string", "int", "null"])),
        ([None, ("x", ["null", "string", "int"], None)], (None, ["null", "string", "int"])),
        (
            [None, ("x", ["int", "string"], 5), ("x", ["string", "int"], "a")],
            (None, ["null", "int", "string"]),
        ),
        ([None, ("x", ["int", "string"], 5), ("x", ["string", "int"], 5)], (5, ["int", "string", "null"])),
        (
            [None, ("x", ["bytes", "string"]), ("x", ["string", "bytes"], "a")],
            (None, ["null", "bytes", "string"]),
        ),
        ([None, ("x", ["int", "string"], "wrong")], (None, ["null", "int", "string"])),
        ([None, ("x", "int", "wrong")], (None, ["null", "int"])),
        ([None, ("x", "int", 2**31)], (None, ["null", "int"])),
        ([None, ("x", "long", -(2**63))], (-(2**63), ["long", "null"])),
        ([None, ("x", "int", True)], (None, ["null", "int"])),
        ([None, ("x", "int", 1.5)], (None, ["null", "int"])),
        ([None, ("x", "double", 1)], (1, ["double", "null"])),
        ([None, ("x", "float", float("nan"))], (None, ["null", "float"])),
        ([None, ("x", "double", "NaN")], (None, ["null", "double"])),
        ([None, ("x", "boolean", False)], (False, ["boolean", "null"])),
        ([None, ("x", "string", "")], ("", ["string", "null"])),
        ([None, ("x", "int", None)], (None, ["null", "int"])),
        (
            [None, ("x", {"type": "array", "items": "int"}, [])],
            ([], [{"type": "array", "items": "int"}, "null"]),
        ),
        (
            [None, ("x", {"type": "array", "items": "int"}, ["a"])],
            (None, ["null", {"type": "array", "items": "int"}]),
        ),
        (
            [None, ("x", {"type": "map", "values": "int"}, {"a": 1})],
            ({"a": 1}, [{"type": "map", "values": "int"}, "null"]),
        ),
        ([None, ("x", "null", None)], (None, "null")),
    ],
)
def test_a_record_that_lacks_a_field_has_its_default_or_null(versions, expected):
    schemas = [record(("id", "int"), *([each] if each else [])) for each in versions]
    lacking = next(key for key, each in enumerate(versions, 1) if each is None)
    union = united(*schemas)
    value = read(union, lacking, schemas[lacking - 1], {"id": 3})
    assert (value["x"], reader_fields(union)["x"]) == expected


def test_the_default_of_a_text_keeps_its_bytes_when_it_is_promoted():
    def default_of(first, second, default):
        union = united(record(("x", first)), record(("x", second, default)))
        return json.loads(union.reader)["fields"][0].get("default", "none")

    assert default_of("bytes", "string", "ž") == "ž".encode().decode("latin-1")
    assert default_of("string", "bytes", "\u00c5\u00be") == "ž"
    assert default_of("string", "bytes", "\u00ff") == "none"
    assert default_of("bytes", "bytes", "\u00ff") == "\u00ff"
    assert default_of("bytes", "bytes", "ž") == "none"


def test_defaults_of_named_types_come_out_under_the_new_names():
    inner = record(("a.b", "int"), ("c", "string", "see"), ("old", "int", 4), name="I")
    schemas = [
        record(("id", "int")),
        record(
            ("id", "int"),
            ("p", inner, {"a.b": 1, "old": 2}),
            ("e", enum("A", "B"), "B"),
            ("f", fixed(2), "ab"),
        ),
        record(
            ("id", "int"),
            ("p", record(("a.b", "long"), ("c", "string", "see"), ("new", "int", 5), name="I"), {"a.b": 1}),
            ("e", enum("C", "B"), "C"),
            ("f", fixed(2), "abc"),
        ),
    ]
    union = united(*schemas)
    fields = {each["name"]: each for each in json.loads(union.reader)["fields"]}
    assert fields["p"]["default"] == {"a_b": 1, "c": "see", "new": 5}
    assert (fields["e"]["default"], fields["e"]["type"][0]["symbols"]) == ("C", ["A", "B", "C"])
    assert (fields["f"]["default"], fields["f"]["type"][0]) == (None, "null")


def test_the_default_of_another_branch_than_the_first_is_left_out():
    one, two = enum("A", "B", name="n.One"), enum("A", "B", name="n.Two")
    default = [("x", [one, two], "A"), ("x", [two, one], "A")]
    union = united(record(), record(default[0]), record(default[1]))
    assert read(union, 1, record(), {}) == {"x": None}
    assert read(united(record(), record(default[0])), 1, record(), {}) == {"x": "A"}


def test_a_default_that_nobody_needs_leaves_the_column_as_it_is():
    union = united(record(("x", "int", 7)))
    assert json.loads(union.reader)["fields"] == [{"name": "x", "type": "int", "default": 7}]


# Aliases


def test_a_field_whose_alias_names_a_column_is_that_column_under_its_first_name():
    one = record(("id", "int"), ("fare", "int"), ("tip", "int"))
    two = record(("tip", "int"), ("price", "long", "none", ["cost", "fare"]), ("id", "int"))
    union = united(one, two)
    assert list(reader_fields(union)) == ["id", "fare", "tip"]
    assert read(union, 1, one, {"id": 1, "fare": 2, "tip": 3}) == {"id": 1, "fare": 2, "tip": 3}
    assert read(union, 2, two, {"id": 1, "price": 2, "tip": 3}) == {"id": 1, "fare": 2, "tip": 3}


@pytest.mark.parametrize(
    ("versions", "columns"),
    [
        ([("a",), ("b", "a"), ("b",)], ["a"]),  # the alias was dropped
        ([("a",), ("b", "a"), ("a",)], ["a"]),  # back to the old name
        ([("a",), ("b", "a"), ("c", "b")], ["a"]),
        ([("a",), ("b",), ("b", "a")], ["a", "b"]),  # b is there already
        ([("a",), ("b", "x")], ["a", "b"]),
        ([("A",), ("a", "A")], ["A"]),
    ],
)
def test_a_renamed_field_stays_one_column(versions, columns):
    schemas = [record((name, "int", "none", aliases)) for name, *aliases in versions]
    union = united(*schemas)
    assert list(reader_fields(union)) == columns
    for key, (name, *_) in enumerate(versions, 1):
        values = read(union, key, schemas[key - 1], {name: 5}).values()
        assert sorted(values, key=str) == sorted([5] + [None] * (len(columns) - 1), key=str)


def test_an_old_name_that_comes_back_beside_the_new_one_is_another_column():
    one, two = record(("a", "int")), record(("b", "int", "none", ["a"]))
    three = record(("a", "int"), ("b", "int", "none", ["a"]))
    union = united(one, two, three)
    assert read(union, 1, one, {"a": 1}) == {"a": 1, "b": None}
    assert read(union, 3, three, {"a": 1, "b": 2}) == {"a": 1, "b": 2}


def test_two_fields_with_one_alias_are_two_columns():
    union = united(record(("a", "int")), record(("b", "int", "none", ["a"]), ("c", "int", "none", ["a"])))
    assert list(reader_fields(union)) == ["a", "c"]


# Names


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (["a.b", "a b", "a-b"], ["a_b", "a_b_2", "a_b_3"]),
        (["Id", "id", "ID"], ["Id", "id_2", "ID_3"]),
        (["id_2", "id", "ID"], ["id_2", "id", "ID_3"]),
        (["1st", "_1st"], ["_1st", "_1st_2"]),
        (["čaršija", "", "."], ["_ar_ija", "_", "__2"]),
    ],
)
def test_names_become_column_names_that_differ_in_more_than_case(names, columns):
    schemas = [record(*((name, "int") for name in names)), record(*((name, "int") for name in names[::-1]))]
    union = united(*schemas)
    assert list(reader_fields(union)) == columns
    for writer in union.writers.values():
        assert sorted(each["name"] for each in json.loads(writer)["fields"]) == sorted(columns)
    payload = bytes(2 * each for each in range(len(names)))
    assert decoded(payload, union.writers[1], union.reader) == {each: n for n, each in enumerate(columns)}
    assert decoded(payload, union.writers[2], union.reader) == {
        each: n for n, each in enumerate(columns[::-1])
    }


def test_names_that_differ_in_case_across_versions_are_two_columns():
    one, two = record(("Id", "int")), record(("id", "int"))
    union = united(one, two)
    assert read(union, 2, two, {"id": 1}) == {"Id": None, "id_2": 1}


def test_a_record_may_move_be_renamed_and_stand_at_several_places():
    point = record(("x", "int"), name="geo.Point")
    moved = record(("x", "int"), ("y", "int"), name="maps.v2.Position")
    one = record(("from", point), ("to", "geo.Point"), ("c", enum("A", name="geo.C")), name="a.Trip")
    two = record(("to", moved), ("from", point), ("c", enum("B", name="maps.C")), name="b.Journey")
    union = united(one, two)
    assert read(union, 1, one, {"from": {"x": 1}, "to": {"x": 2}, "c": "A"}) == {
        "from": {"x": 1},
        "to": {"x": 2, "y": None},
        "c": "A",
    }
    assert read(union, 2, two, {"from": {"x": 1}, "to": {"x": 2, "y": 3}, "c": "B"}) == {
        "from": {"x": 1},
        "to": {"x": 2, "y": 3},
        "c": "B",
    }


def test_names_inside_a_namespace_mean_what_avro_says():
    one = {
        "type": "record",
        "name": "R",
        "namespace": "a.b",
        "fields": [
            {"name": "x", "type": {"type": "fixed", "name": "F", "size": 1}},
            {"name": "y", "type": {"type": "fixed", "name": "F", "namespace": "c", "size": 2}},
            {"name": "z", "type": "F"},
            {"name": "w", "type": "c.F"},
        ],
    }
    assert [each["size"] for each in reader_fields(united(one)).values()] == [1, 2, 1, 2]


def test_a_name_that_its_namespace_lacks_is_one_without_namespace():
    inner = record(("y", "F"), name="n.S")
    fields = reader_fields(united(record(("x", fixed(3, name="F")), ("s", inner), name="R")))
    assert fields["s"]["fields"][0]["type"]["size"] == 3


def test_a_type_may_be_used_before_it_is_defined():
    union = united(record(("x", "io.test.Hash"), ("y", fixed(3))))
    assert [each["size"] for each in reader_fields(union).values()] == [3, 3]


# Unions of named types


def a_or_b(*branches):
    return record(("x", ["null", *branches]))


A, B = record(("p", "int"), name="n.A"), record(("q", "int"), name="n.B")


@pytest.mark.parametrize(
    ("second", "value", "expected"),
    [
        ([B, A], ("n.A", {"p": 1}), {"p": 1}),  # another order
        ([record(("p", "int"), ("r", "int"), name="n.A"), B], ("n.A", {"p": 1, "r": 2}), {"p": 1, "r": 2}),
        ([record(("p", "int"), name="m.A"), B], ("m.A", {"p": 1}), {"p": 1, "r": None}),  # by its short name
        ([record(("p", "int"), name="o.C", aliases=["n.A"]), B], ("o.C", {"p": 1}), {"p": 1, "r": None}),
        ([B, enum("S", name="n.A")], ("n.A", "S"), "S"),  # an enum is no record
    ],
)
def test_the_branches_of_a_union_are_matched_by_name(second, value, expected):
    third = a_or_b(record(("p", "int"), ("r", "int"), name="n.A"), B)
    one, two = a_or_b(A, B), a_or_b(*second)
    union = united(one, two, third)
    assert union.incompatible == {}
    found = read(union, 2, two, {"x": value})["x"]
    assert found == (expected if isinstance(expected, str) or "r" in expected else expected | {"r": None})
    assert read(union, 1, one, {"x": ("n.B", {"q": 1})}) == {"x": {"q": 1}}


def test_a_branch_of_another_name_is_a_new_branch():
    twins = [record(("p", "int"), name="m.A"), record(("p", "int"), name="o.A")]
    for second, count in [([A, record(("p", "int"), name="n.C")], 3), (twins, 4)]:
        (_, *branches) = reader_fields(united(a_or_b(A, B), a_or_b(*second)))["x"]
        assert [each["name"].rpartition(".")[2] for each in branches] == [f"member{n}" for n in range(count)]


def test_the_enum_in_a_union_takes_new_symbols():
    one, two = a_or_b(enum("X", "Y"), "int"), a_or_b("int", enum("Z", "Y"))
    union = united(one, two)
    assert reader_fields(union)["x"][1]["symbols"] == ["X", "Y", "Z"]
    assert read(union, 1, one, {"x": "Y"}) == read(union, 2, two, {"x": "Y"}) == {"x": "Y"}
    assert read(union, 2, two, {"x": "Z"}) == {"x": "Z"}


# The top


@pytest.mark.parametrize(
    ("one", "other", "reader"),
    [
        ("int", "long", "long"),
        ("string", ["null", "string"], ["null", "string"]),
        (["null", "string"], "string", ["null", "string"]),
        (["int", "string"], ["string", "boolean"], ["int", "string", "boolean"]),
        (
            {"type": "array", "items": "int"},
            {"type": "array", "items": "int"},
            {"type": "array", "items": "int"},
        ),
    ],
)
def test_the_top_may_be_any_type(one, other, reader):
    union = united(one, other)
    assert (json.loads(union.reader), union.incompatible) == (reader, {})
    assert not is_record(union.reader)


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ("int", ORDER, "the value: record cannot be read as int"),
        (ORDER, "int", "the value: int cannot be read as record"),
        (ORDER, ["null", ORDER], "the value: a record's fields are columns, so it cannot become nullable"),
        (ORDER, "null", "the value: a record's fields are columns, so it cannot become nullable"),
        ("null", ORDER, None),
        (["null", ORDER], ORDER, None),
    ],
)
def test_a_record_stays_a_record(one, other, reason):
    union = united(one, other)
    assert union.incompatible == ({2: reason} if reason else {})
    assert is_record(union.reader) is (one == ORDER)


def test_is_record_tells_records_from_the_rest():
    assert is_record(json.dumps(ORDER))
    for each in ("int", ["null", ORDER], {"type": "array", "items": ORDER}, enum("A"), {"type": "string"}):
        assert not is_record(json.dumps(each))


# accepts


def test_accepts_refuses_a_version_and_the_next_ones_go_on():
    asked = []

    def accepts(reader):
        asked.append([each["name"] for each in json.loads(reader)["fields"]])
        return "the table cannot follow: b" if "b" in asked[-1] else None

    schemas = [record(*((name, "int") for name in names)) for names in ("a", "ab", "a", "ac", "bc", "c")]
    union = united(*schemas, accepts=accepts)
    assert union.incompatible == {2: "the table cannot follow: b", 5: "the table cannot follow: b"}
    # The third changes nothing, and the first made the same reader without b; b and c are null where absent.
    assert asked == [["a"], ["a", "b"], ["a", "c"], ["a", "c", "b"], ["a", "c"]][: len(asked)]
    assert list(union.writers) == [1, 3, 4, 6]
    assert read(union, 6, schemas[5], {"c": 1}) == {"a": None, "c": 1}


def test_a_refused_version_leaves_no_trace():
    one, two, three = (
        record(("a", "int")),
        record(("b", "long", "none", ["a"]), ("z", "int")),
        record(("a", "int")),
    )
    with_refused = united(one, two, three, accepts=lambda reader: "no" if '"z"' in reader else None)
    without = united(one, three)
    assert with_refused.reader == without.reader
    assert list(with_refused.writers.values()) == list(without.writers.values())


def test_the_same_versions_make_the_same_texts():
    schemas = [record(("a", "int")), record(("b", enum("A")), ("a", ["null", A, B])), record(("c", fixed(2)))]
    assert united(*schemas) == united(*copy.deepcopy(schemas))


# References


ADDRESS = json.dumps(record(("city", "string"), ("kind", "geo.Kind"), name="geo.Address"))
KIND = json.dumps(enum("HOME", "WORK", name="Kind", namespace="geo"))
INLINED = {"type": "enum", "name": "Kind", "namespace": "geo", "symbols": ["HOME", "WORK"]}


def referring(schema, references):
    return unite({1: schema}, references={1: references})


def test_types_of_references_are_known_wherever_they_are_used():
    schema = json.dumps(record(("from", "geo.Address"), ("to", ["null", "geo.Address"]), ("k", "geo.Kind")))
    named = {}
    for text in (KIND, ADDRESS):
        fastavro.parse_schema(json.loads(text), named)
    stream = io.BytesIO()
    value = {"from": {"city": "c", "kind": "WORK"}, "to": {"city": "d", "kind": "HOME"}, "k": "HOME"}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(schema), named), value)
    union = referring(schema, [KIND, ADDRESS])
    assert union.incompatible == {}
    assert decoded(stream.getvalue(), union.writers[1], union.reader) == value


@pytest.mark.parametrize(
    ("schema", "references", "inlined"),
    [
        ('"geo.Kind"', [KIND], INLINED),
        ('["null", "geo.Kind"]', [KIND], ["null", INLINED]),
        ('{"type": "map", "values": {"type": "geo.Kind"}}', [KIND], {"type": "map", "values": INLINED}),
        ('{"type": "long", "logicalType": "x"}', [], {"type": "long", "logicalType": "x"}),
        (
            json.dumps(record(("k", "Kind"), name="R", namespace="geo")),
            [KIND],
            record(("k", INLINED), name="R", namespace="geo"),
        ),
    ],
)
def test_a_reference_may_stand_anywhere(schema, references, inlined):
    union = referring(schema, references)
    assert union.incompatible == {}
    assert union == unite({1: json.dumps(inlined)})


def test_a_type_that_two_references_define_is_defined_once():
    two = [json.dumps(record(("k", enum("A", name="n.K")), name=name)) for name in ("n.P", "n.Q")]
    assert referring(json.dumps(record(("p", "n.P"), ("q", "n.Q"))), two).incompatible == {}


@pytest.mark.parametrize(
    ("schema", "references", "reason"),
    [
        ('"unknown.Name"', [KIND], "the value: unknown type unknown.Name"),
        (
            json.dumps(record(("n", "Node"))),
            [json.dumps(NODE)],
            "Node contains itself (at n.next); Spark has no recursive types",
        ),
        ("{", [KIND], "the schema is not JSON"),
        (KIND, ["{"], "the schema is not JSON"),
    ],
)
def test_a_reference_that_cannot_be_used_is_a_reason(schema, references, reason):
    assert referring(schema, references).incompatible[1].startswith(reason)


# Size


def calls(function):
    """Count the calls that a function makes: the same number on each machine, however busy it is."""
    number = 0

    def count(_frame, event, _argument):
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return number


def wide(fields, versions):
    return [
        record(*((f"f{n}", ["null", "string"], None) for n in range(fields + extra)))
        for extra in range(versions)
    ]


def test_twice_the_fields_or_twice_the_versions_are_twice_the_work():
    few, more_fields, more_versions = (
        calls(lambda versions=versions: united(*versions))
        for versions in (wide(100, 5), wide(200, 5), wide(100, 10))
    )
    assert few < more_fields < 2.1 * few
    assert few < more_versions < 2.2 * few


def test_a_type_that_doubles_at_each_level_is_refused_at_once():
    schema = record(("x", "int"), name="L0")
    for level in range(1, 40):
        schema = record(("a", schema), ("b", f"L{level - 1}"), name=f"L{level}")
    union = united(schema)
    assert union.incompatible == {1: "the schema has more than 20000 fields, expanded as Spark does"}
    assert calls(lambda: united(schema)) < 2_000_000


def test_sixty_levels_are_fine():
    schema = "int"
    for level in range(60):
        schema = record(("x", schema), name=f"L{level}")
    assert united(schema, schema).incompatible == {}


# Random versions of random records, with random values


@dataclass
class Thing:
    """A field that lives through versions: `kind` is its type, `column` its name, `first` the first one."""

    column: str
    kind: object
    default: object = "none"
    parts: list = field(default_factory=list)  # of a record: the fields in it, ever
    aliases: tuple = ()
    first: str = ""

    def __post_init__(self):
        self.first = self.first or self.column

    def schema(self):
        kind = self.kind
        if kind == "record":
            kind = record(*(each.schema() for each in self.parts if each.is_there), name=f"T.{self.column}")
        elif kind == "records":
            inner = record(*(each.schema() for each in self.parts if each.is_there), name=f"T.{self.column}")
            kind = {"type": "array", "items": inner}
        return self.column, kind, self.default, list(self.aliases)

    is_there: bool = True


SIMPLE = {
    "int": [INT, LONG, FLOAT, DOUBLE],
    "string": ["string", ["null", "string"], ["string", "null"]],
    "boolean": ["boolean", ["null", "boolean"]],
    "date": [logical(INT, "date"), ["null", logical(INT, "date")]],
    "longs": [{"type": "array", "items": INT}, {"type": "array", "items": ["null", LONG]}],
    "map": [{"type": "map", "values": INT}, {"type": "map", "values": DOUBLE}],
    "union": [["string", INT], [INT, "null", "string"], ["boolean", "string", INT]],
}


class World:
    """Random versions of a record, and what each value must come out as."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.named = 0
        self.top = Thing("Top", "record", parts=[self.thing(2) for _ in range(3)])

    def thing(self, depth):
        self.named += 1
        column = f"{self.chance.choice('abcXYZ')}{self.named}"
        if depth and self.chance.random() < 0.3:
            parts = [self.thing(depth - 1) for _ in range(self.chance.randrange(1, 4))]
            return Thing(column, self.chance.choice(["record", "records"]), parts=parts)
        family = self.chance.choice([*SIMPLE, "enum", "fixed"])
        if family == "enum":
            return Thing(column, enum("A", "B", name=f"E.{column}"))
        if family == "fixed":
            return Thing(column, fixed(2, name=f"F.{column}"))
        thing = Thing(column, self.chance.choice(SIMPLE[family]))
        if family in ("int", "string") and not isinstance(thing.kind, list) and self.chance.random() < 0.5:
            thing.default = 7 if family == "int" else "d"
        return thing

    def evolve(self, thing):
        """Change a record for its next version."""
        chance = self.chance
        for part in thing.parts:
            part.aliases = ()
            if chance.random() < 0.15:
                part.is_there = not part.is_there
            elif part.is_there:
                self.change(part)
        if chance.random() < 0.4:
            thing.parts.append(self.thing(1))

    def change(self, part):
        chance = self.chance
        if part.parts:
            self.evolve(part)
        family = next((each for each in SIMPLE.values() if part.kind in each), None)
        if family and part.default == "none" and chance.random() < 0.3:
            part.kind = chance.choice(family)
        self.named += 1
        if isinstance(part.kind, dict) and part.kind["type"] == "enum" and chance.random() < 0.5:
            symbols = part.kind["symbols"] + [f"S{self.named}"]
            part.kind = enum(*chance.sample(symbols, len(symbols)), name=f"moved{self.named}.E")
        if chance.random() < 0.15:
            part.column, part.aliases = f"r{self.named}", (part.column,)

    def value(self, kind, thing=None):
        """A value of a type of this version."""
        chance = self.chance
        if kind == "record":
            return {each.column: self.value(each.kind, each) for each in thing.parts if each.is_there}
        if kind == "records":
            return [self.value("record", thing) for _ in range(chance.randrange(3))]
        if isinstance(kind, list):
            return self.value(chance.choice(kind))
        if isinstance(kind, dict):
            return {
                "array": lambda: [self.value(kind["items"]) for _ in range(chance.randrange(3))],
                "map": lambda: {key: self.value(kind["values"]) for key in "ab"[: chance.randrange(3)]},
                "enum": lambda: chance.choice(kind["symbols"]),
                "fixed": lambda: chance.randbytes(2),
                "int": lambda: date(1960, 1, 1 + chance.randrange(28)),
            }[kind["type"]]()
        number = chance.randrange(-1000, 1000)  # exact as a float, too
        return {"null": None, "boolean": number > 0, "string": str(number)}.get(kind, number)


def frozen(thing):
    return copy.deepcopy(thing)


def expected(then, now, value):
    """What a record of the version `then` comes out as, when the versions have grown until `now`."""
    if now.kind == "records":
        if value is None:
            return None
        return [expected(replace(then, kind="record"), replace(now, kind="record"), each) for each in value]
    if now.kind != "record" or value is None:
        return value
    out = {}
    for number, part in enumerate(now.parts):
        old = then.parts[number] if number < len(then.parts) else None
        if old is not None and old.is_there:
            out[part.first] = expected(old, part, value[old.column])
        else:
            out[part.first] = part.default if part.is_there and part.default != "none" else None
    return out


@pytest.mark.parametrize("seed", range(60))
def test_random_values_of_random_versions_come_out_as_they_must(seed):
    world = World(seed)
    versions = []
    for _ in range(world.chance.randrange(2, 7)):
        values = [world.value("record", world.top) for _ in range(3)]
        versions.append(
            (record(*(each.schema() for each in world.top.parts if each.is_there)), values, frozen(world.top))
        )
        newest = frozen(world.top)
        world.evolve(world.top)
    union = united(*(schema for schema, _, _ in versions))
    assert union.incompatible == {}
    for key, (schema, values, then) in enumerate(versions, 1):
        assert resolves(union.writers[key], union.reader) is None
        for value in values:
            payload = encoded(schema, value)
            as_written = decoded(payload, union.writers[key])
            assert encoded(union.writers[key], as_written) == payload
            assert list(as_written) == expected_names(then, schema)
            assert decoded(payload, union.writers[key], union.reader) == expected(then, newest, value)


def without_defaults(tree):
    """A reader's types as Spark sees them: defaults, and the place of null in a union, do not count."""
    if isinstance(tree, list):
        return [
            *(["null"] if "null" in tree else []),
            *(without_defaults(each) for each in tree if each != "null"),
        ]
    if isinstance(tree, dict):
        return {name: without_defaults(value) for name, value in tree.items() if name != "default"}
    return tree


@pytest.mark.parametrize("seed", range(40))
def test_a_restart_reads_as_before_whichever_versions_are_listed_by_then(seed):
    world = World(seed)
    versions = {}
    for number in range(1, 6):
        versions[number] = json.dumps(record(*(each.schema() for each in world.top.parts if each.is_there)))
        world.evolve(world.top)
    before = unite(versions)
    listed = world.chance.sample(sorted(versions), world.chance.randrange(6))
    after = unite({number: versions[number] for number in listed}, refuse_all, before.reader_text)
    assert after.reader_text == before.reader_text
    assert after.writers == {number: before.writers[number] for number in listed}
    assert without_defaults(json.loads(after.reader)) == without_defaults(json.loads(before.reader))


def refuse_all(reader):
    return "nothing is new to a table that has all versions"


OTHER_ORDER = [
    (one_field(["string", "int"]), one_field(["int", "string"])),  # members are numbered
    (record(("id", "int")), record(("ID", "string"))),  # names that differ by case
    (record(("a", "int")), record(("b", "int", "none", ["a"]))),
    (one_field("bytes"), one_field("string")),
]


@pytest.mark.parametrize("versions", OTHER_ORDER)
def test_versions_that_come_in_another_order_read_as_the_table_has_them(versions):
    before = united(*versions)
    one, two = (json.dumps(each) for each in versions)
    after = unite({2: two, 1: one}, refuse_all, before.reader_text)
    assert (after.reader and after.writers) == before.writers
    assert without_defaults(json.loads(after.reader)) == without_defaults(json.loads(before.reader))
    # Without what the table keeps, they would not.
    assert without_defaults(json.loads(unite({2: two, 1: one}).reader)) != json.loads(before.reader)


def test_a_name_that_an_alias_gave_is_known_when_that_version_is_gone():
    versions = [record(("a", "int")), record(("b", "int", "none", ["a"])), record(("b", "int"))]
    reader_text = united(*versions[:2]).reader_text
    union = unite({3: json.dumps(versions[2])}, refuse_all, reader_text)
    assert read(union, 3, versions[2], {"b": 5}) == {"a": 5}
    types = [
        one_field([record(("p", "int"), name=name, aliases=aliases), "int"])
        for name, aliases in (("n.A", []), ("n.B", ["n.A"]), ("n.B", []))
    ]
    reader_text = united(*types[:2]).reader_text
    assert unite({3: json.dumps(types[2])}, refuse_all, reader_text).incompatible == {}


@pytest.mark.parametrize("text", ["", "[]]", "{}", '{"type": "record", "name": "n.A"}', '"strange"', "7"])
def test_what_is_no_kept_reader_is_refused(text):
    with pytest.raises(StoredReaderError):
        unite({}, reader_text=text)


def expected_names(then, schema):
    """The columns of a version's own fields, in its order."""
    first = {part.column: part.first for part in then.parts}
    return [first[each["name"]] for each in schema["fields"]]


# resolves (tests/spark/formats/test_avro_types.py has the matrix against Java)


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        ("int", "long", None),
        ("long", "int", "the value: long cannot be read as int"),
        ("string", "bytes", None),
        (["int", "string"], "long", "the value: string cannot be read as long"),
        ("boolean", ["null", "int"], "the value: boolean is none of a union of null and int"),
        (record(("a", "int")), record(("b", "int", "none", ["a"])), None),
        (record(("a", "int")), record(("b", "int")), "field b: the writer lacks it, and it has no default"),
        (record(("a", "int")), record(("b", "int", 1)), None),
        (enum("A", "B"), enum("A"), "the value: io.test.Colour lacks the symbol B"),
        (enum("A", "B"), enum("A", default="A"), None),
        (enum("A", name="n.E"), enum("A", name="m.F"), "the value: n.E is another type than m.F"),
        (enum("A", name="n.E"), enum("A", name="m.F", aliases=["n.E"]), None),
        (fixed(1), fixed(2), "the value: fixed(1) cannot be read as fixed(2)"),
        (
            {"type": "array", "items": "long"},
            {"type": "array", "items": "int"},
            "the value[]: long cannot be read as int",
        ),
        (NODE, NODE, "Node contains itself (at next); Spark has no recursive types"),
    ],
)
def test_one_writer_and_one_reader_resolve_by_avros_rules(writer, reader, reason):
    assert resolves(json.dumps(writer), json.dumps(reader)) == reason
