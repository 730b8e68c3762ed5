"""A field's default in a version, as the reader schema's type writes it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from topiclake.formats.avro.schema_json import Json
from topiclake.formats.avro.schema_tree import MISSING, Node, split

RANGES = {"int": 2**31, "long": 2**63}
JSON_TYPES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    **dict.fromkeys(("int", "long", "float", "double"), (int, float)),
    **dict.fromkeys(("string", "bytes", "fixed", "enum"), (str,)),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
}


def reader_default(
    default: Json, declared: Node, reader: Node, names: Mapping[int, str], links: Mapping[int, int]
) -> Json:
    """Return a default in terms of the reader's first type that is not null, or MISSING if it does not fit.

    Args:
        default: The default in the version's schema, or MISSING.
        declared: The type of the field in that version.
        reader: The type of the field in the reader.
        names: Column names by key.
        links: The reader's keys by the version's.
    """
    if default is MISSING:
        return MISSING
    declared_null, branches = split(declared)
    reader_null, readers = split(reader)
    if default is None:
        return None if declared_null and reader_null else MISSING
    # In older Avro, a union's default is of its first type; in newer Avro, of the first type that it fits.
    for each in branches:
        if isinstance(default, JSON_TYPES[each.kind]):
            is_first = len(readers) == 1 or links.get(each.key, each.key) == readers[0].key
            is_same = len(readers) == 1 or each.kind == readers[0].kind
            return _value(default, each, readers[0], names, links) if is_first and is_same else MISSING
    return MISSING


def _value(
    default: Json, declared: Node, reader: Node, names: Mapping[int, str], links: Mapping[int, int]
) -> Json:
    kind = reader.kind
    if kind == "array" and isinstance(default, list):
        items = [reader_default(each, declared.items[0], reader.items[0], names, links) for each in default]
        return MISSING if MISSING in items else items
    if kind == "map" and isinstance(default, dict):
        values = {
            key: reader_default(each, declared.items[0], reader.items[0], names, links)
            for key, each in default.items()
        }
        return MISSING if MISSING in values.values() else values
    if kind == "record" and isinstance(default, dict):
        return _record(default, declared, reader, names, links)
    if kind in ("string", "bytes", "fixed", "enum") and isinstance(default, str):
        return _text(default, declared, reader)
    if kind == "boolean":
        return default if isinstance(default, bool) else MISSING
    return default if _is_number(default, kind) else MISSING


def _record(
    default: dict[str, Json], declared: Node, reader: Node, names: Mapping[int, str], links: Mapping[int, int]
) -> Json:
    """Return a record's default; a field that the version lacks has the reader's own default."""
    columns = {each.key: each for each in reader.fields}
    values = {}
    for each in declared.fields:
        column = columns[links.get(each.key, each.key)]
        value = default.get(each.name, each.default)
        values[names[column.key]] = reader_default(value, each.type, column.type, names, links)
    return MISSING if MISSING in values.values() else values


def _text(default: str, declared: Node, reader: Node) -> Json:
    """Return the default of a string, enum, bytes or fixed; JSON writes each byte as one character."""
    if reader.kind == "enum":
        return default if default in declared.symbols else MISSING
    try:
        data = default.encode("utf-8" if declared.kind == "string" else "latin-1")
        text = data.decode("utf-8" if reader.kind == "string" else "latin-1")
    except UnicodeError:
        return MISSING
    return MISSING if reader.kind == "fixed" and len(data) != reader.size else text


def _is_number(default: Json, kind: str) -> bool:
    if isinstance(default, bool) or not isinstance(default, (int, float)):
        return False
    if kind in RANGES:
        return isinstance(default, int) and -RANGES[kind] <= default < RANGES[kind]
    return kind in ("float", "double") and math.isfinite(default)
