"""The JSON of Avro schemas: the types that it names, and their definitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
#: The kinds of types that have a name; `error` is the record of Avro's protocols.
NAMED = ("record", "error", "enum", "fixed")
#: Levels below the top. Spark's own readers of nested types recurse.
MAX_DEPTH = 100

Json = Any


class SchemaRefusedError(Exception):
    """One sentence that says why a schema cannot be used; it becomes the version's `incompatible` reason."""


def loads(schema: str) -> Json:
    """Parse the JSON of a schema.

    Raises:
        SchemaRefusedError: It is not JSON, or nested too deep to read.
    """
    try:
        return json.loads(schema)
    except RecursionError:
        raise SchemaRefusedError("the schema is nested too deep to read") from None
    except ValueError as error:
        raise SchemaRefusedError(f"the schema is not JSON: {error}") from None


def full_name(name: str, namespace: str) -> str:
    """Return the full name of a type, in a schema part whose namespace is `namespace`."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


def own_name(tree: Json, namespace: str) -> tuple[str, str]:
    """Return the full name of a named type's definition, and the namespace of the types inside it.

    Raises:
        SchemaRefusedError: It has no name.
    """
    name, space = tree.get("name"), tree.get("namespace")
    if not isinstance(name, str) or not name:
        raise SchemaRefusedError(f"a type of kind {tree['type']} has no name")
    full = full_name(name, space if isinstance(space, str) else namespace)
    return full, full.rpartition(".")[0]


def inside(tree: Json) -> Iterator[Json]:
    """Yield the schemas right inside a schema."""
    if isinstance(tree, list):
        yield from tree
    elif isinstance(tree, dict):
        if tree.get("type") in ("record", "error"):
            fields = tree.get("fields")
            yield from (each.get("type") for each in listed(fields) if isinstance(each, dict))
        else:
            yield from (tree[key] for key in ("items", "values") if key in tree)
            if not isinstance(tree.get("type"), str):
                yield tree.get("type")


def definitions(tree: Json, namespace: str = "", depth: int = 0) -> Iterator[tuple[str, tuple[Json, str]]]:
    """Yield each named type that is defined in a schema: full name, its JSON, the namespace around it.

    Raises:
        SchemaRefusedError: A type has no name, or the schema is nested too deep.
    """
    if depth > 4 * MAX_DEPTH:  # a level of the tree takes up to four of the JSON
        raise SchemaRefusedError(f"the schema is nested more than {MAX_DEPTH} levels deep")
    if isinstance(tree, dict) and tree.get("type") in NAMED:
        full, inner = own_name(tree, namespace)
        yield full, (tree, namespace)
        namespace = inner
    for each in inside(tree):
        yield from definitions(each, namespace, depth + 1)


def listed(value: Json) -> list[Json]:
    """Return `value` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def texts(value: Json) -> tuple[str, ...]:
    """Return the strings of a JSON list; none if it is something else."""
    return tuple(each for each in listed(value) if isinstance(each, str))
