"""The diagnosis of records that do not decode, by fastavro instead of Spark's decoder.

Workers import this.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import fastavro
from pyspark.sql import Column
from pyspark.sql import functions as F


def reason(payload: Column, schema: Column, writers: Mapping[bytes, str]) -> Column:
    """Say why `payload BINARY` is not one record of its schema; for the few rows that failed.

    Args:
        payload: Avro's binary form, without a header.
        schema: The key in `writers` of the schema that it claims to have.
        writers: Avro schemas by the bytes that name them.

    Returns:
        A STRING; runs Python, a row at a time.
    """
    schemas = {key.hex(): text for key, text in writers.items() if not has_free_items(json.loads(text))}

    return F.udf(partial(reason_of, schemas), returnType="string", useArrow=False)(payload, schema)


def reason_of(schemas: Mapping[str, str], payload: bytes | None, schema: bytes | None) -> str | None:
    """Say why one payload is not one record of its schema; None without a payload or a schema.

    Args:
        schemas: Avro schemas by the hexadecimal form of the bytes that name them.
        payload: Avro's binary form, without a header.
        schema: The bytes that name its schema.
    """
    text = schemas.get(bytes(schema or b"").hex())
    if payload is None or text is None:
        return None
    stream = io.BytesIO(bytes(payload))
    try:
        fastavro.schemaless_reader(stream, fastavro.parse_schema(json.loads(text)), None)
    except EOFError as error:
        return f"the record is cut off or claims more than there is: {str(error) or 'end of input'}"
    except Exception as error:  # noqa: BLE001 (whatever fastavro raises is the reason)
        return f"{type(error).__name__}: {str(error)[:300]}"
    remaining = len(payload) - stream.tell()
    if remaining:
        return f"{remaining} bytes remain after the record, which has {stream.tell()}"
    return "a value does not fit the table's reader schema"


def has_free_items(schema: Any) -> bool:  # noqa: ANN401 (Avro's JSON)
    """Return whether an array's items may take no bytes: then a few bytes can claim 2⁶³ of them."""
    nodes = list(_nodes(schema))
    named = {str(node["name"]).rpartition(".")[2]: node for node in nodes if node.get("type") in _NAMED}
    return any(_is_free(node["items"], named) for node in nodes if node.get("type") == "array")


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    """Yield each object of a schema, fields among them."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _nodes(branch)
    if isinstance(schema, dict):
        yield schema
        for inner in (schema.get("items"), schema.get("values"), schema.get("type"), schema.get("fields")):
            yield from _nodes(inner)


def _is_free(schema: Any, named: Mapping[str, Any], inside: frozenset[str] = frozenset()) -> bool:  # noqa: ANN401
    if isinstance(schema, str):
        name = schema.rpartition(".")[2]
        if schema in _PRIMITIVE or name in inside:
            return schema == "null"
        return name not in named or _is_free(named[name], named, inside | {name})
    if not isinstance(schema, dict) or schema["type"] in ("array", "map", "enum"):
        return False
    if schema["type"] in ("record", "error"):
        return all(_is_free(field["type"], named, inside) for field in schema["fields"])
    if schema["type"] == "fixed":
        return bool(schema["size"] == 0)
    return _is_free(schema["type"], named, inside)


_NAMED = ("record", "error", "fixed", "enum")
_PRIMITIVE = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
