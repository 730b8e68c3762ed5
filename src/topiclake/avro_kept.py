"""The reader schema of a table, as text that is kept with the table.

A restart unites the versions that it knows with what the table was made of: so columns keep their names and
unions their members, whatever the registry lists by then. Defaults are not kept: they are those of the newest
version that is known.
"""

from __future__ import annotations

import json
from dataclasses import replace

from topiclake.avro_names import PRIMITIVES, Json
from topiclake.avro_tree import Node, Parser
from topiclake.avro_union import Column


class KeptReaderError(Exception):
    """What was kept is no reader schema of this form; says why."""


def dumps(reader: Node) -> str:
    """Write a reader tree.

    Returns:
        JSON like that of an Avro schema, with types and fields under their first names. `aliases` are the
        other names that versions gave them, `column` is a field's name in the table, where that differs, and
        `optional` says that a version lacks it.
    """
    return json.dumps(_written(reader), separators=(",", ":"))


def loads(text: str, parser: Parser) -> Node:
    """Read what `dumps` wrote.

    Args:
        text: The JSON.
        parser: Gives the keys of fields and types.

    Raises:
        KeptReaderError: It is something else.
    """
    try:
        return _read(json.loads(text), parser)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise KeptReaderError(f"{type(error).__name__}: {error}") from None


def _written(node: Node) -> Json:
    if node.kind == "union":
        return [_written(each) for each in node.branches]
    told: dict[str, Json] = {"type": node.kind}
    if node.name:
        told["name"] = node.name
    if node.aliases:
        told["aliases"] = list(node.aliases)
    if node.logical:
        told["logicalType"] = node.logical
    numbers = {"precision": node.precision, "scale": node.scale, "size": node.size}
    told |= {name: number for name, number in numbers.items() if number}
    if node.kind == "enum":
        told |= {"symbols": list(node.symbols)} | ({"default": node.default} if node.default else {})
    if node.items:
        told["items"] = _written(node.items[0])
    if node.kind == "record":
        told["fields"] = [_written_field(each) for each in node.fields if isinstance(each, Column)]
    return told if len(told) > 1 else node.kind


def _written_field(column: Column) -> Json:
    told: dict[str, Json] = {"name": column.name, "type": _written(column.type)}
    if column.column != column.name:
        told["column"] = column.column
    if column.former:
        told["aliases"] = list(column.former)
    if column.is_optional:
        told["optional"] = True
    return told


def _read(told: Json, parser: Parser) -> Node:
    if isinstance(told, list):
        return Node("union", branches=tuple(_read(each, parser) for each in told))
    if isinstance(told, str):
        if told not in PRIMITIVES:
            raise ValueError(f"{told} is no type")
        return Node(told)
    node = Node(
        told["type"],
        name=told.get("name", ""),
        logical=told.get("logicalType", ""),
        symbols=tuple(told.get("symbols", ())),
        default=told.get("default", ""),
        aliases=tuple(told.get("aliases", ())),
        items=(_read(told["items"], parser),) if "items" in told else (),
        precision=int(told.get("precision", 0)),
        scale=int(told.get("scale", 0)),
        size=int(told.get("size", 0)),
    )
    if node.name:
        node = replace(node, key=parser.new_key())
    if node.kind == "record":
        node = replace(node, fields=tuple(_read_field(each, parser) for each in told["fields"]))
    return node


def _read_field(told: Json, parser: Parser) -> Column:
    name = told["name"]
    return Column(
        parser.new_key(),
        name,
        _read(told["type"], parser),
        column=told.get("column", name),
        former=tuple(told.get("aliases", ())),
        is_optional=told.get("optional", False),
    )
