"""The reader schema of a table, as text in a property of the table.

A restart unites the versions that it knows with the reader schema that the table was made of. So columns keep
their names and unions their members, whatever the registry lists by then. Defaults are not kept: they are
those of the newest version that is known.
"""

from __future__ import annotations

import json
from dataclasses import replace

from topiclake.formats.avro.schema_json import PRIMITIVES, Json
from topiclake.formats.avro.schema_tree import Node, Parser
from topiclake.formats.avro.union import Column


class StoredReaderError(Exception):
    """The stored text is no reader schema of this form; says why."""


def dumps(reader: Node) -> str:
    """Write a reader tree.

    Returns:
        JSON like that of an Avro schema, with types and fields under their first names. The key `aliases`
        holds the other names that versions gave them. The key `column` holds a field's name in the table, if
        it differs. The key `optional` says that a version lacks the field.
    """
    return json.dumps(_written(reader), separators=(",", ":"))


def loads(text: str, parser: Parser) -> Node:
    """Read what `dumps` wrote.

    Args:
        text: The JSON.
        parser: Makes the keys of fields and types.

    Raises:
        StoredReaderError: It is something else.
    """
    try:
        return _read(json.loads(text), parser)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoredReaderError(f"{type(error).__name__}: {error}") from None


def _written(node: Node) -> Json:
    if node.kind == "union":
        return [_written(each) for each in node.branches]
    schema: dict[str, Json] = {"type": node.kind}
    if node.name:
        schema["name"] = node.name
    if node.aliases:
        schema["aliases"] = list(node.aliases)
    if node.logical:
        schema["logicalType"] = node.logical
    numbers = {"precision": node.precision, "scale": node.scale, "size": node.size}
    schema |= {name: number for name, number in numbers.items() if number}
    if node.kind == "enum":
        schema |= {"symbols": list(node.symbols)} | ({"default": node.default} if node.default else {})
    if node.items:
        schema["items"] = _written(node.items[0])
    if node.kind == "record":
        schema["fields"] = [_written_field(each) for each in node.fields if isinstance(each, Column)]
    return schema if len(schema) > 1 else node.kind


def _written_field(column: Column) -> Json:
    schema: dict[str, Json] = {"name": column.name, "type": _written(column.type)}
    if column.column != column.name:
        schema["column"] = column.column
    if column.former:
        schema["aliases"] = list(column.former)
    if column.is_optional:
        schema["optional"] = True
    return schema


def _read(schema: Json, parser: Parser) -> Node:
    if isinstance(schema, list):
        return Node("union", branches=tuple(_read(each, parser) for each in schema))
    if isinstance(schema, str):
        if schema not in PRIMITIVES:
            raise ValueError(f"{schema} is no type")
        return Node(schema)
    node = Node(
        schema["type"],
        name=schema.get("name", ""),
        logical=schema.get("logicalType", ""),
        symbols=tuple(schema.get("symbols", ())),
        default=schema.get("default", ""),
        aliases=tuple(schema.get("aliases", ())),
        items=(_read(schema["items"], parser),) if "items" in schema else (),
        precision=int(schema.get("precision", 0)),
        scale=int(schema.get("scale", 0)),
        size=int(schema.get("size", 0)),
    )
    if node.name:
        node = replace(node, key=parser.new_key())
    if node.kind == "record":
        node = replace(node, fields=tuple(_read_field(each, parser) for each in schema["fields"]))
    return node


def _read_field(schema: Json, parser: Parser) -> Column:
    name = schema["name"]
    return Column(
        parser.new_key(),
        name,
        _read(schema["type"], parser),
        column=schema.get("column", name),
        former=tuple(schema.get("aliases", ())),
        is_optional=schema.get("optional", False),
    )
