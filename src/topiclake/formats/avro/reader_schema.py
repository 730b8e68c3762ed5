"""Avro schemas of a subject: all versions united into one reader schema.

This module does not need Spark. No text of a schema makes it raise: for a schema that cannot be used, it
returns a sentence that says why. The rules are in docs/avro.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from topiclake.formats.avro import stored_reader
from topiclake.formats.avro.defaults import reader_default
from topiclake.formats.avro.schema_json import Json, SchemaRefusedError
from topiclake.formats.avro.schema_tree import MISSING, Node, Parser, split
from topiclake.formats.avro.union import Column, Union

K = TypeVar("K")

#: The namespace in which the names of all types in the generated schemas begin.
ROOT = "topiclake.event"


@dataclass(frozen=True)
class United(Generic[K]):
    """The versions of a subject under one reader schema.

    Args:
        reader: Avro JSON, self-contained; None if no version is usable and no reader is stored.
        writers: For each usable key, Avro JSON of the same binary form as the registered schema, renamed so
            that Avro resolves it to `reader`.
        incompatible: For each other key, one sentence that says why, with the path.
        reader_text: The reader as `stored_reader` writes it; None without a reader.
    """

    reader: str | None
    writers: dict[K, str]
    incompatible: dict[K, str]
    reader_text: str | None


def unite(
    schemas: Mapping[K, str],
    accepts: Callable[[str], str | None] = lambda reader: None,
    reader_text: str | None = None,
    references: Mapping[K, Iterable[str]] = MappingProxyType({}),
) -> United[K]:
    """Unite schemas, oldest first.

    A schema that does not fit is incompatible, and the others are united.

    Args:
        schemas: Avro JSON by any key, such as the schema id.
        accepts: Says of a reader schema why it cannot be used (the table cannot follow), or None. Asked
            whenever a version adds something to it.
        reader_text: The stored reader of an earlier union; the versions are added to it.
        references: By key, Avro JSON of the schemas that a schema refers to, directly or not.

    Raises:
        StoredReaderError: `reader_text` was not made here.
    """
    parser, union = Parser(), Union()
    tree = None if reader_text is None else stored_reader.loads(reader_text, parser)
    versions: dict[K, Node] = {}
    incompatible: dict[K, str] = {}
    for key, schema in schemas.items():
        try:
            version = parser.parse(schema, references.get(key, ()))
            candidate = union.adopted(version) if tree is None else _grown(union, tree, version)
            if candidate != tree and (refusal := accepts(_reader(candidate, {}, union))):
                raise SchemaRefusedError(refusal)
        except SchemaRefusedError as refused:
            incompatible[key] = str(refused)
            continue
        tree, versions[key] = candidate, version
    if tree is None:
        return United(None, {}, incompatible, None)
    names: dict[int, str] = {}
    reader = _reader(tree, names, union)
    writers = {key: json.dumps(_writer_type(each, names, union.links)) for key, each in versions.items()}
    return United(reader, writers, incompatible, stored_reader.dumps(tree))


def is_record(reader: str) -> bool:
    """Return whether an Avro schema is a record, whose fields become columns."""
    tree = json.loads(reader)
    return isinstance(tree, dict) and tree.get("type") == "record"


def _reader(tree: Node, names: dict[int, str], union: Union) -> str:
    return json.dumps(_reader_type(tree, ROOT, names, union.links))


def _grown(union: Union, tree: Node, version: Node) -> Node:
    candidate = union.merged(tree, version)
    if (candidate.kind == "record") != (tree.kind == "record"):
        raise SchemaRefusedError("the value: a record's fields are columns, so it cannot become nullable")
    return candidate


def _plain(node: Node, name: str) -> Json:
    """Write the common part of readers and writers, for a type that is no union and holds no other type."""
    written: dict[str, Json] = {"type": node.kind}
    if node.name:
        written["name"] = name
    if node.kind == "enum":
        written["symbols"] = list(node.symbols)
    if node.kind == "fixed":
        written["size"] = node.size
    if node.logical:
        written["logicalType"] = node.logical
    if node.logical == "decimal":
        written |= {"precision": node.precision, "scale": node.scale}
    return written if len(written) > 1 else node.kind


def _writer_type(node: Node, names: Mapping[int, str], links: Mapping[int, int]) -> Json:
    """Write a version's type in its own binary form, with the reader's names."""
    if node.kind == "union":
        return [_writer_type(each, names, links) for each in node.branches]
    if node.items:
        inner = "items" if node.kind == "array" else "values"
        return {"type": node.kind, inner: _writer_type(node.items[0], names, links)}
    name = names.get(links.get(node.key, node.key), "")
    if node.kind != "record":
        return _plain(node, name)
    fields = [
        {"name": names[links.get(each.key, each.key)], "type": _writer_type(each.type, names, links)}
        for each in node.fields
    ]
    return {"type": "record", "name": name, "fields": fields}


def _reader_type(node: Node, path: str, names: dict[int, str], links: Mapping[int, int]) -> Json:
    """Write a reader's type, null first; put the names of its columns and types into `names`, by key.

    A type's name is its path, so that one type at two places is two types, which may grow apart.
    """
    has_null, branches = split(node)
    several = len(branches) > 1
    written = [
        _reader_branch(each, f"{path}.member{number}" if several else path, names, links)
        for number, each in enumerate(branches)
    ]
    if not branches:
        return "null"
    return ["null", *written] if has_null else written if several else written[0]


def _reader_branch(node: Node, path: str, names: dict[int, str], links: Mapping[int, int]) -> Json:
    if node.items:
        inner = "items" if node.kind == "array" else "values"
        return {"type": node.kind, inner: _reader_type(node.items[0], f"{path}.{inner}", names, links)}
    if node.name:
        names[node.key] = path
    if node.kind != "record":
        return _plain(node, path)
    fields = []
    for each in node.fields:
        if isinstance(each, Column):
            names[each.key] = each.column
            fields.append(_reader_field(each, path, names, links))
    return {"type": "record", "name": path, "fields": fields}


def _reader_field(column: Column, path: str, names: dict[int, str], links: Mapping[int, int]) -> Json:
    written = _reader_type(column.type, f"{path}.{column.column}", names, links)
    default = reader_default(column.default, column.declared, column.type, names, links)
    has_null, branches = split(column.type)
    if (has_null or column.is_optional) and branches:
        types = [each for each in written if each != "null"] if isinstance(written, list) else [written]
        # Avro before 1.12 wants a default to be of the union's first type.
        written = ["null", *types] if default in (MISSING, None) else [*types, "null"]
        default = None if default is MISSING else default
    elif not branches:
        default = None
    field = {"name": column.column, "type": written}
    return field if default is MISSING else {**field, "default": default}
