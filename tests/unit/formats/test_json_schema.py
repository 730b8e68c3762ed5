"""What JSON Schemas say of a value's columns, without Spark."""

from __future__ import annotations

import json

import pytest

from topiclake.formats.json.schema import shape


def kinds(properties, references=None, **more):
    """Return the type and nullability of each property, in words."""
    schema = {"type": "object", "properties": properties} | more
    texts = {name: json.dumps(text) for name, text in (references or {}).items()}
    found = shape(json.dumps(schema), texts)
    return {field["name"]: (plain_type(field["type"]), field["nullable"]) for field in found["fields"]}


def plain_type(tree):
    if isinstance(tree, str):
        return tree
    if tree["type"] == "struct":
        return {field["name"]: plain_type(field["type"]) for field in tree["fields"]}
    inner = tree.get("elementType", tree.get("valueType"))
    return tree["type"], plain_type(inner)


TEXT = {"type": "string"}
OBJECT = {"type": "object", "properties": {"a": TEXT}}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string", "format": "uuid"}, "JSON string"),
        ({"enum": ["a", "b"]}, "JSON string"),
        ({"const": "a"}, "JSON string"),
        ({"enum": ["a", 1]}, "string"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": ["integer", "string"]}, "string"),
        ({"type": "null"}, "string"),
        (True, "string"),
        ({}, "string"),
        ({"properties": {"a": TEXT}}, {"a": "JSON string"}),
        ({"type": "object"}, "string"),
        ({"type": "object", "additionalProperties": False}, "string"),
        ({"type": "object", "additionalProperties": OBJECT}, ("map", {"a": "JSON string"})),
        ({"type": "object", "properties": {"a": TEXT, "A": TEXT}}, "string"),
        ({"type": "object", "properties": {"a b": TEXT}}, "string"),
        ({"type": "array"}, "string"),
        ({"type": "array", "items": [TEXT]}, "string"),
        ({"type": "array", "prefixItems": [TEXT], "items": TEXT}, "string"),
        ({"type": "array", "items": {"type": "array", "items": TEXT}}, ("array", ("array", "JSON string"))),
        ({"anyOf": [TEXT, {"type": "null"}]}, "JSON string"),
        ({"oneOf": [TEXT, OBJECT]}, "string"),
        ({"allOf": [{"$ref": "#/$defs/Of"}], "description": "d"}, {"a": "JSON string"}),
        ({"allOf": [OBJECT, OBJECT]}, "string"),
        ({"type": "object", "properties": {"a": TEXT}, "oneOf": [{"required": ["a"]}]}, {"a": "JSON string"}),
        ({"$ref": "#/$defs/Of"}, {"a": "JSON string"}),
        ({"$ref": "#/$defs/a~1b%25"}, "long"),
        ({"$ref": "#/$defs/None"}, "string"),
        ({"$ref": "#anchor"}, "string"),
        ({"$ref": "#"}, "string"),
        ({"$ref": "of.json"}, {"b": "JSON string", "own": "long"}),
        ({"$ref": "of.json#/definitions/Own"}, "long"),
        ({"$ref": "https://example.org/of.json"}, {"b": "JSON string", "own": "long"}),
        ({"$ref": "other.json"}, "string"),
    ],
)
def test_each_schema_has_a_column_or_is_kept_as_its_json(schema, kind):
    of = {
        "$id": "https://example.org/of.json",
        "type": "object",
        "properties": {"b": TEXT, "own": {"$ref": "#/definitions/Own"}},
        "definitions": {"Own": {"type": "integer"}},
    }
    defined = {"Of": OBJECT, "a/b%": {"type": "integer"}}
    found = kinds({"x": schema}, {"of.json": of}, **{"$defs": defined})
    assert found["x"] == (kind, True)


def test_what_is_required_and_cannot_be_null_is_not_nullable():
    found = kinds(
        {"a": TEXT, "b": {"type": ["string", "null"]}, "c": TEXT, "d": {"anyOf": [TEXT, {"type": "null"}]}},
        required=["a", "b", "d"],
    )
    assert [nullable for _, nullable in found.values()] == [False, True, True, True]


@pytest.mark.parametrize(
    "schema",
    ['{"type": "array", "items": {}}', "{}", "true", '{"type": "object", "properties": {"a,b": {}}}', "{"],
)
def test_values_without_columns_are_refused(schema):
    with pytest.raises(ValueError, match=r"its values are no objects|Expecting"):
        shape(schema, {})
