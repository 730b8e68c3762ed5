"""The diagnosis of values that are no JSON of their schema, by Python's parser instead of Spark's.

Workers import this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from topiclake.formats.json.schema import PATTERNS, TEXT

_BITS = {"short": 15, "integer": 31, "long": 63}
#: Characters of a value in a reason.
_MOST_CHARACTERS = 60


def reason(value: Column, schema: Column) -> Column:
    """Say what is wrong with `value BINARY`; for the few rows that failed.

    Args:
        value: The value of the record.
        schema: The wanted type, as `StructType.json()` or `topiclake.formats.json.schema` has it, STRING.

    Returns:
        A STRING; runs Python, a row at a time.
    """
    return F.udf(reason_of, returnType="string", useArrow=False)(value, schema)


def reason_of(value: bytes | None, schema: str | None) -> str | None:
    """Say what is wrong with one value; None without a value or a schema."""
    if value is None or schema is None:
        return None
    try:
        text = bytes(value).decode("utf-8")
        if text.startswith("\ufeff"):
            return "a byte order mark precedes the JSON"
        parsed = json.loads(text, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        return f"byte {error.start} is no UTF-8 ({error.reason})"
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:
        return f"no JSON: {error}"
    try:
        problem = _of_object(parsed, json.loads(schema), "the value")
    except RecursionError:
        problem = None
    return problem or "a value does not fit the type of its field"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _of_value(actual: Any, expected: Any, path: str) -> str | None:  # noqa: ANN401 (JSON)
    """Say what is wrong with a value; null is right, where a field may be."""
    name = expected if isinstance(expected, str) else expected["type"]
    if actual is None:
        return None
    if name == "struct":
        return _of_object(actual, expected, path)
    if name == "array" and isinstance(actual, list):
        items = ((f"{path}[{number}]", item) for number, item in enumerate(actual))
        return _of_items(items, expected["elementType"], may_be_null=expected["containsNull"])
    if name == "map" and isinstance(actual, dict):
        items = ((f"{path}.{key}", item) for key, item in actual.items())
        return _of_items(items, expected["valueType"], may_be_null=expected["valueContainsNull"])
    if name in ("array", "map"):
        return f"{path} is {_shown(actual)}, no {'array' if name == 'array' else 'object'}"
    return None if _fits(actual, name) else f"{path} is {_shown(actual)}, no {name}"


def _of_items(items: Iterable[tuple[str, Any]], expected: Any, *, may_be_null: bool) -> str | None:  # noqa: ANN401
    for path, item in items:
        if item is None and not may_be_null:
            return f"{path} is null"
        if problem := _of_value(item, expected, path):
            return problem
    return None


def _of_object(actual: Any, expected: Any, path: str) -> str | None:  # noqa: ANN401
    if not isinstance(actual, dict):
        return f"{path} is {_shown(actual)}, no object"
    for field in expected["fields"]:
        field_path = f"{path}.{field['name']}" if path != "the value" else f"field {field['name']}"
        value = actual.get(field["name"])
        if value is None and not field["nullable"]:
            return f"{field_path} is missing or null"
        if problem := _of_value(value, field["type"], field_path):
            return problem
    return None


def _fits(actual: Any, name: str) -> bool:  # noqa: ANN401
    if name in _BITS:
        return type(actual) is int and -(2 ** _BITS[name]) <= actual < 2 ** _BITS[name]
    if name in ("double", "float"):
        return type(actual) in (int, float)
    if name == TEXT:
        return isinstance(actual, str)
    if name in PATTERNS:
        return isinstance(actual, str) and re.fullmatch(PATTERNS[name], actual) is not None
    # Any JSON is valid for a STRING; only Spark can check the remaining types.
    return name != "boolean" or isinstance(actual, bool)


def _shown(actual: Any) -> str:  # noqa: ANN401
    text = json.dumps(actual, ensure_ascii=False)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
