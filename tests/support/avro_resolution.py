"""Avro's own rules for one writer schema and one reader schema, to check what the library unites.

https://avro.apache.org/docs/1.12.0/specification/#schema-resolution, as Java's SchemaCompatibility reads it.
"""

from __future__ import annotations

from topiclake.formats.avro.schema_json import SchemaRefusedError
from topiclake.formats.avro.schema_tree import MISSING, Field, Node, Parser, child, shown_path

PROMOTIONS = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"),
    ("float", "double"), ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip


def resolves(writer: str, reader: str) -> str | None:
    """Tell why data written with `writer` cannot be read as `reader`; None when it can.

    Logical types play no part in Avro's rules, nor here.
    """
    try:
        return _refusal(Parser().parse(writer), Parser().parse(reader), "")
    except SchemaRefusedError as refused:
        return str(refused)


def _refusal(writer: Node, reader: Node, path: str) -> str | None:
    if writer.kind == "union":
        return next(filter(None, (_refusal(each, reader, path) for each in writer.branches)), None)
    if reader.kind == "union":
        fits = any(_refusal(writer, each, path) is None for each in reader.branches)
        return None if fits else f"{shown_path(path)}: {writer} is none of {reader}"
    if writer.kind != reader.kind:
        is_promoted = (writer.kind, reader.kind) in PROMOTIONS
        return None if is_promoted else f"{shown_path(path)}: {writer} cannot be read as {reader}"
    if writer.items:
        return _refusal(writer.items[0], reader.items[0], path + ("[]" if writer.kind == "array" else "{}"))
    return _named_refusal(writer, reader, path) if writer.name else None


def _named_refusal(writer: Node, reader: Node, path: str) -> str | None:
    if writer.short_name != reader.short_name and writer.name not in reader.aliases:
        return f"{shown_path(path)}: {writer.name} is another type than {reader.name}"
    if writer.size != reader.size:
        return f"{shown_path(path)}: {writer} cannot be read as {reader}"
    unknown = set(writer.symbols) - set(reader.symbols)
    if unknown and not reader.default:
        return f"{shown_path(path)}: {reader.name} lacks the symbol {min(unknown)}"
    for each in reader.fields:
        inner = child(path, each.name)
        written = _written(writer, each)
        if written is None and each.default is MISSING:
            return f"{shown_path(inner)}: the writer lacks it, and it has no default"
        if written and (refusal := _refusal(written.type, each.type, inner)):
            return refusal
    return None


def _written(writer: Node, field: Field) -> Field | None:
    """Return the writer's field for a reader's: of its name, or of one of its aliases."""
    by_name = {each.name: each for each in writer.fields}
    return next((by_name[name] for name in (field.name, *field.aliases) if name in by_name), None)
