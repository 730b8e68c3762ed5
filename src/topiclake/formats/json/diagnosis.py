"""Why a value is no JSON of its schema, told by Python: another reader than the one that refused it."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def reason(value: Column, schema: Column) -> Column:
    """Say what is wrong with `value BINARY`; for the few rows that failed.

    Args:
        value: What the record holds.
        schema: The wanted type, as `StructType.json()` or `topiclake.formats.json.schema` has it, STRING.

    Returns:
        A STRING; runs Python, a row at a time.
    """

    # Everything inside: Spark ships it by value, so the library need not be on the workers.
    @F.udf(returnType="string", useArrow=False)
    def told(value: bytes | None, schema: str | None) -> str | None:
        import json
        import re
        from typing import Any

        bits = {"short": 15, "integer": 31, "long": 63}
        texts = {
            "JSON string": "",
            "date-time": r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$",
            "full-date": r"\d{4}-\d\d-\d\d$",
        }

        def shown(found: Any) -> str:  # noqa: ANN401 (JSON)
            text = json.dumps(found, ensure_ascii=False)
            return text if len(text) <= 60 else f"{text[:60]}…"

        def fits(found: Any, name: str) -> bool:  # noqa: ANN401
            if name in bits:
                return type(found) is int and -(2 ** bits[name]) <= found < 2 ** bits[name]
            if name in ("double", "float"):
                return type(found) in (int, float)
            if name in texts:
                return isinstance(found, str) and re.match(texts[name], found) is not None
            # Any JSON will do for a STRING; what is left, Spark alone can tell.
            return name != "boolean" or isinstance(found, bool)

        def problem(found: Any, wanted: Any, path: str) -> str | None:  # noqa: ANN401
            """Say what is wrong with a value; null is right, where a field may be."""
            name = wanted if isinstance(wanted, str) else wanted["type"]
            if found is None:
                return None
            if name == "struct":
                return inside(found, wanted, path)
            if name == "array" and isinstance(found, list):
                items = [(f"{path}[{number}]", one) for number, one in enumerate(found)]
                return among(items, wanted["elementType"], wanted["containsNull"])
            if name == "map" and isinstance(found, dict):
                items = [(f"{path}.{key}", one) for key, one in found.items()]
                return among(items, wanted["valueType"], wanted["valueContainsNull"])
            if name in ("array", "map"):
                return f"{path} is {shown(found)}, no {'array' if name == 'array' else 'object'}"
            return None if fits(found, name) else f"{path} is {shown(found)}, no {name}"

        def among(items: list[tuple[str, Any]], wanted: Any, may_be_null: bool) -> str | None:  # noqa: ANN401
            for path, one in items:
                if one is None and not may_be_null:
                    return f"{path} is null"
                if why := problem(one, wanted, path):
                    return why
            return None

        def inside(found: Any, wanted: Any, path: str) -> str | None:  # noqa: ANN401
            if not isinstance(found, dict):
                return f"{path} is {shown(found)}, no object"
            for field in wanted["fields"]:
                inner = f"{path}.{field['name']}" if path != "the value" else f"field {field['name']}"
                inner_value = found.get(field["name"])
                if inner_value is None and not field["nullable"]:
                    return f"{inner} is missing or null"
                if why := problem(inner_value, field["type"], inner):
                    return why
            return None

        def refused(constant: str) -> None:
            raise ValueError(f"{constant} is no JSON")

        if value is None or schema is None:
            return None
        try:
            text = bytes(value).decode("utf-8")
            if text.startswith("\ufeff"):
                return "a byte order mark stands before the JSON"
            found = json.loads(text, parse_constant=refused)
        except UnicodeDecodeError as error:
            return f"byte {error.start} is no UTF-8 ({error.reason})"
        except RecursionError:
            return "it is nested too deeply"
        except ValueError as error:
            return f"no JSON: {error}"
        try:
            why = inside(found, json.loads(schema), "the value")
        except RecursionError:
            why = None
        return why or "a value does not fit the type of its field"

    return told(value, schema)
