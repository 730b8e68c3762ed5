"""JSON Schema (draft-07 to 2020-12) → the columns of its values, as a shape.

A shape is a tree like that of `StructType.json()`. A field of it is nullable if it may be missing or null.
Its leaves are `long`, `double`, `boolean`, `JSON string`, `date-time`, `full-date` (names of RFC 3339), and
`string`: any JSON, as its text. A value without another column type is a `string`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urljoin

#: A leaf's name, or a tree as `StructType.json()` has it.
JsonType = Any

ANY = "string"
TEXT = "JSON string"
#: Times and dates as RFC 3339 has them, for the whole text.
PATTERNS = {
    "date-time": r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)",
    "full-date": r"\d{4}-\d\d-\d\d",
}
_LEAVES = {"integer": "long", "number": "double", "boolean": "boolean"}
_FORMATS = {"date-time": "date-time", "date": "full-date"}
#: Keywords that define the type of a value; all others only narrow it, or inform people.
_SHAPING = ("$ref", "type", "properties", "items", "prefixItems", "additionalProperties")
_COMBINING = ("oneOf", "anyOf", "allOf")
#: Characters that Delta accepts in no name, and the one that would end a quoted name.
_FORBIDDEN = set(" ,;{}()\n\t=`")


def shape(schema: str, references: Mapping[str, str]) -> JsonType:
    """Return the shape of the values of a schema, whose fields become columns.

    Args:
        schema: The text of the schema.
        references: The schemas that it refers to by their names.

    Raises:
        ValueError: Its values are no objects with named properties; says why.
    """
    reader = _Reader({name: json.loads(text) for name, text in references.items()})
    document = json.loads(schema)
    json_type, _ = reader.read(document, document, (id(document),))
    if not isinstance(json_type, dict) or json_type["type"] != "struct":
        raise ValueError("its values are no objects with properties whose names a table can have")
    return json_type


@dataclass(frozen=True)
class _Reader:
    references: Mapping[str, Any]

    def read(self, tree: Any, document: Any, ancestors: tuple[int, ...]) -> tuple[JsonType, bool]:  # noqa: ANN401
        """Return the shape of `tree`, and whether it may be null.

        Args:
            tree: A part of a schema.
            document: The schema that it is a part of.
            ancestors: The schemas that lead to `tree`: a schema that holds itself has no columns.
        """
        if not isinstance(tree, dict):
            return ANY, True
        if any(_shapes(member) for keyword in _COMBINING for member in _members(tree, keyword)):
            return self._combined(tree, document, ancestors)
        if "$ref" in tree:
            if _shapes({key: value for key, value in tree.items() if key != "$ref"}):
                return ANY, True
            target, source = self._resolved(str(tree["$ref"]), document)
            if target is None or id(target) in ancestors:
                return ANY, True
            return self.read(target, source, (*ancestors, id(target)))
        kinds = _kinds(tree)
        may_be_null = "null" in kinds or not kinds
        kinds -= {"null"}
        if kinds == {"integer", "number"}:
            kinds = {"number"}
        return (self._typed(kinds.pop(), tree, document, ancestors) if len(kinds) == 1 else ANY), may_be_null

    def _combined(self, tree: Any, document: Any, ancestors: tuple[int, ...]) -> tuple[JsonType, bool]:  # noqa: ANN401
        """Read `T or null`, and a single member; other combinations have no column type."""
        keywords = [keyword for keyword in _COMBINING if _members(tree, keyword)]
        if _shapes(tree, of_members=False) or len(keywords) > 1:
            return ANY, True
        members = _members(tree, keywords[0])
        not_null = [member for member in members if not _is_null(member)]
        if len(not_null) != 1 or (keywords == ["allOf"] and len(members) > 1):
            return ANY, True
        json_type, may_be_null = self.read(not_null[0], document, ancestors)
        return json_type, may_be_null or len(members) > 1

    def _typed(self, kind: str, tree: Any, document: Any, ancestors: tuple[int, ...]) -> JsonType:  # noqa: ANN401
        if kind == "string":
            return _FORMATS.get(str(tree.get("format")), TEXT)
        if kind == "array":
            return self._array(tree, document, ancestors)
        if kind == "object":
            return self._object(tree, document, ancestors)
        return _LEAVES.get(kind, ANY)

    def _array(self, tree: Any, document: Any, ancestors: tuple[int, ...]) -> JsonType:  # noqa: ANN401
        if not isinstance(tree.get("items"), dict) or "prefixItems" in tree:
            return ANY
        items, may_be_null = self.read(tree["items"], document, ancestors)
        return {"type": "array", "elementType": items, "containsNull": may_be_null}

    def _object(self, tree: Any, document: Any, ancestors: tuple[int, ...]) -> JsonType:  # noqa: ANN401
        properties, more = tree.get("properties"), tree.get("additionalProperties")
        if not properties and isinstance(more, dict) and _shapes(more) and "patternProperties" not in tree:
            values, may_be_null = self.read(more, document, ancestors)
            return {
                "type": "map",
                "keyType": "string",
                "valueType": values,
                "valueContainsNull": may_be_null,
            }
        if not isinstance(properties, dict) or not _are_names(list(properties)):
            return ANY
        required = tree.get("required") or []
        fields = []
        for name, inner in properties.items():
            json_type, may_be_null = self.read(inner, document, ancestors)
            fields.append(
                {
                    "name": name,
                    "type": json_type,
                    "nullable": may_be_null or name not in required,
                    "metadata": {},
                }
            )
        return {"type": "struct", "fields": fields}

    def _resolved(self, reference: str, document: Any) -> tuple[Any, Any]:  # noqa: ANN401
        """Return what `$ref` names, and the document that it is in; None if it does not exist."""
        name, _, pointer = reference.partition("#")
        source = self._named(name, document) if name else document
        target = source
        for step in filter(None, pointer.split("/")):
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                target = target.get(key) if isinstance(target, dict) else None
        # A fragment that does not begin with a slash is the name of an anchor.
        return (target, source) if not pointer or pointer.startswith("/") else (None, source)

    def _named(self, name: str, document: Any) -> Any:  # noqa: ANN401
        base = str(document.get("$id", "")) if isinstance(document, dict) else ""
        uri = urljoin(base, name)
        for each, text in self.references.items():
            ids = {each, urljoin(base, each), str(text.get("$id")) if isinstance(text, dict) else each}
            if ids & {name, uri}:
                return text
        return document if uri == base else None


def _members(tree: dict[str, Any], keyword: str) -> list[Any]:
    members = tree.get(keyword)
    return members if isinstance(members, list) else []


def _shapes(tree: Any, *, of_members: bool = True) -> bool:  # noqa: ANN401
    """Return whether a part of a schema says what a value is."""
    if not isinstance(tree, dict):
        return False
    if any(keyword in tree for keyword in _SHAPING):
        return True
    members = [member for keyword in _COMBINING for member in _members(tree, keyword)] if of_members else []
    return any(map(_shapes, members))


def _is_null(tree: Any) -> bool:  # noqa: ANN401
    return isinstance(tree, dict) and tree.get("type") in ("null", ["null"])


def _kinds(tree: dict[str, Any]) -> set[str]:
    """Return the types that a value may have; empty: any."""
    kind = tree.get("type")
    if isinstance(kind, (str, list)):
        return {kind} if isinstance(kind, str) else set(map(str, kind))
    if "properties" in tree:
        return {"object"}
    allowed = (
        tree["enum"] if isinstance(tree.get("enum"), list) else [tree["const"]] if "const" in tree else []
    )
    if allowed and all(value is None or isinstance(value, str) for value in allowed):
        return {"null" if value is None else "string" for value in allowed}
    return set()


def _are_names(names: list[str]) -> bool:
    """Return whether a struct can have fields of these names: Spark's differ in more than their case."""
    distinct = {name.lower() for name in names}
    are_legal = all(name and not _FORBIDDEN & set(name) for name in names)
    return bool(names) and len(distinct) == len(names) and are_legal
