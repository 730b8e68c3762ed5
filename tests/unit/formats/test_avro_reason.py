"""Which schemas fastavro may be asked about: not those where a few bytes can claim items without end."""

import json

import pytest

from topiclake.formats.avro.diagnosis import has_free_items

EMPTY = {"type": "record", "name": "Empty", "fields": []}
NOTHING = {
    "type": "record",
    "name": "N",
    "fields": [{"name": "a", "type": "null"}, {"name": "b", "type": EMPTY}],
}


def items(schema):
    return {"type": "array", "items": schema}


def record(schema):
    return {
        "type": "record",
        "name": "E",
        "fields": [{"name": "id", "type": "int"}, {"name": "x", "type": schema}],
    }


FREE = [
    items("null"),
    items({"type": "null"}),
    items(EMPTY),
    items(NOTHING),
    items({"type": "fixed", "name": "F", "size": 0}),
    # A name stands for what may be a record without bytes.
    record(items("n.Named")),
]
COSTLY = [
    items("int"),
    items({"type": "string"}),
    items(["null", "int"]),
    items(["null"]),
    items(items("int")),
    items({"type": "map", "values": "null"}),
    items({"type": "enum", "name": "E", "symbols": ["A"]}),
    items({"type": "fixed", "name": "F", "size": 1}),
    items(
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": "a", "type": "null"}, {"name": "b", "type": "int"}],
        }
    ),
    {"type": "map", "values": "null"},
    EMPTY,
    NOTHING,
    "null",
    ["null", "string"],
]
PLACES = [
    lambda schema: schema,
    record,
    lambda schema: record(record(schema) | {"name": "Inner"}),
    lambda schema: record(["null", schema]),
    lambda schema: {"type": "map", "values": schema},
    items,
    lambda schema: record({"type": schema}) if isinstance(schema, (dict, list)) else record(schema),
    lambda schema: ["null", schema],
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("schema", FREE, ids=json.dumps)
def test_an_array_whose_items_take_no_bytes_is_found_wherever_it_stands(schema, place):
    assert has_free_items(place(schema))


@pytest.mark.parametrize("place", [place for place in PLACES if place is not items])
@pytest.mark.parametrize("schema", COSTLY, ids=json.dumps)
def test_other_types_are_not(schema, place):
    assert not has_free_items(place(schema))
