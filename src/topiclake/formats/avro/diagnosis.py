"""The diagnosis of records that do not decode, by fastavro instead of Spark's decoder.

Workers import this.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
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
    if isinstance(schema, list):
        return any(map(has_free_items, schema))
    if not isinstance(schema, dict):
        return False
    if schema.get("type") == "array" and _is_free(schema["items"]):
        return True
    inner = [schema.get("items"), schema.get("values")]
    inner += [each["type"] for each in schema.get("fields", [])]
    inner += [schema["type"]] if isinstance(schema.get("type"), (dict, list)) else []
    return any(map(has_free_items, inner))


def _is_free(schema: Any) -> bool:  # noqa: ANN401
    if schema == "null":
        return True
    if not isinstance(schema, dict):
        return isinstance(schema, str) and schema not in _PRIMITIVE
    if schema["type"] == "record":
        return all(_is_free(each["type"]) for each in schema["fields"])
    return bool(schema["type"] == "null" or (schema["type"] == "fixed" and schema["size"] == 0))


#: Anything else in the place of a type is a name, which may stand for a record without bytes.
_PRIMITIVE = {"boolean", "int", "long", "float", "double", "bytes", "string"}
