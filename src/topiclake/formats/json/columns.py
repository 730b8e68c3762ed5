"""The types of a JSON Schema in Spark: how values are parsed, checked, and made columns.

`from_json` accepts any JSON for a STRING. So a JSON string is parsed as VARIANT, which keeps its type. A time
stays text until it is known to have a zone, since without one Spark would use the session's zone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from topiclake.formats.json.schema import ANY, TEXT, JsonType

#: Leaves that are JSON strings.
_TEXTS: dict[str, DataType] = {TEXT: StringType(), "date-time": TimestampType(), "full-date": DateType()}
_OTHERS: dict[str, DataType] = {
    "long": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    ANY: StringType(),
}
#: Times and dates as RFC 3339 has them.
PATTERNS = {
    "date-time": r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$",
    "full-date": r"^\d{4}-\d\d-\d\d$",
}


def united(first: JsonType, second: JsonType) -> JsonType:
    """Return the shape that holds values of both: numbers as DOUBLE, other types that differ as JSON text."""
    if first == second:
        return first
    kinds = [shape if isinstance(shape, str) else shape["type"] for shape in (first, second)]
    if kinds == ["struct", "struct"]:
        return _united_structs(first, second)
    if kinds[0] == kinds[1] == "array":
        return first | {"elementType": united(first["elementType"], second["elementType"])}
    if kinds[0] == kinds[1] == "map":
        return first | {"valueType": united(first["valueType"], second["valueType"])}
    if set(kinds) == {"long", "double"}:
        return "double"
    return TEXT if set(kinds) <= set(_TEXTS) else ANY


def _united_structs(first: JsonType, second: JsonType) -> JsonType:
    fields = {field["name"]: field for field in first["fields"]}
    for field in second["fields"]:
        earlier = fields.get(field["name"])
        fields[field["name"]] = field | {"type": united(earlier["type"], field["type"])} if earlier else field
    if len({name.lower() for name in fields}) < len(fields):
        # Names that differ in case alone cannot be two columns.
        return ANY
    return {"type": "struct", "fields": list(fields.values())}


def columns(shape: JsonType) -> DataType:
    """Return the type of a shape in a table."""
    return _type(shape, lambda leaf: _TEXTS.get(leaf) or _OTHERS[leaf])


def parsed(shape: JsonType) -> DataType:
    """Return the type as which `from_json` reads a shape."""
    return _type(shape, lambda leaf: VariantType() if leaf in _TEXTS else _OTHERS[leaf])


def _type(shape: JsonType, of_leaf: Callable[[str], DataType]) -> DataType:
    if isinstance(shape, str):
        return of_leaf(shape)
    if shape["type"] == "struct":
        return StructType(
            [StructField(each["name"], _type(each["type"], of_leaf)) for each in shape["fields"]]
        )
    if shape["type"] == "array":
        return ArrayType(_type(shape["elementType"], of_leaf))
    return MapType(StringType(), _type(shape["valueType"], of_leaf))


def has_shape(shape: JsonType, value: Column) -> Column:
    """Return whether a parsed `value` that is not null is of its shape; never null."""
    checks: list[Column] = []
    if isinstance(shape, str):
        checks = _leaf_checks(shape, value)
    elif shape["type"] == "array":
        if _is_checked(shape["elementType"]) or not shape["containsNull"]:
            checks = [F.forall(value, _item_check(shape["elementType"], may_be_null=shape["containsNull"]))]
    elif shape["type"] == "map":
        if _is_checked(shape["valueType"]) or not shape["valueContainsNull"]:
            check = _item_check(shape["valueType"], may_be_null=shape["valueContainsNull"])
            checks = [F.forall(F.map_values(value), check)]
    else:
        for each in shape["fields"]:
            if _is_checked(each["type"]) or not each["nullable"]:
                checks.append(_item_check(each["type"], may_be_null=each["nullable"])(value[each["name"]]))
    return reduce(and_, checks, F.lit(True))


def _item_check(shape: JsonType, *, may_be_null: bool) -> Callable[[Column], Column]:
    def check(item: Column) -> Column:
        # JSON's null is no null of VARIANT's.
        is_null = text_of(item).isNull() if _is_text(shape) else item.isNull()
        if not _is_checked(shape):
            return ~is_null
        is_valid = F.when(item.isNull(), True).otherwise(has_shape(shape, item))
        return is_valid if may_be_null else is_valid & ~is_null

    return check


def _leaf_checks(leaf: str, value: Column) -> list[Column]:
    if leaf not in _TEXTS:
        return []
    # VOID is JSON's null.
    kinds = F.schema_of_variant(value).isin("STRING", "VOID")
    if leaf == TEXT:
        return [kinds]
    text = text_of(value)
    is_time = text.rlike(PATTERNS[leaf]) & _time(leaf, text).isNotNull()
    return [kinds & F.coalesce(is_time | text.isNull(), F.lit(True))]


def _is_text(shape: JsonType) -> bool:
    return isinstance(shape, str) and shape in _TEXTS


def _is_checked(shape: JsonType) -> bool:
    """Return whether a shape has conditions that `from_json` alone does not check."""
    if isinstance(shape, str):
        return shape in _TEXTS
    if shape["type"] == "array":
        return not shape["containsNull"] or _is_checked(shape["elementType"])
    if shape["type"] == "map":
        return not shape["valueContainsNull"] or _is_checked(shape["valueType"])
    return any(not each["nullable"] or _is_checked(each["type"]) for each in shape["fields"])


def text_of(value: Column) -> Column:
    """Return the text of a VARIANT that holds a JSON string; null for JSON's null."""
    return F.variant_get(value, "$", "string")


def _time(leaf: str, text: Column) -> Column:
    # Spark knows no small letters in times.
    return F.upper(text).try_cast(_TEXTS[leaf])


def converted(written: JsonType, read: JsonType, value: Column) -> Column:
    """Make a parsed `value` of the shape `written` a column of the shape `read`, which holds it."""
    if isinstance(written, str) or isinstance(read, str):
        return _converted_leaf(written, read, value)
    if columns(read) == parsed(written):
        return value
    if read["type"] == "array":
        return F.transform(value, lambda item: converted(written["elementType"], read["elementType"], item))
    if read["type"] == "map":
        return F.transform_values(
            value, lambda _, item: converted(written["valueType"], read["valueType"], item)
        )
    written_types: dict[str, Any] = {each["name"]: each["type"] for each in written["fields"]}
    fields = [_field(written_types.get(each["name"]), each, value) for each in read["fields"]]
    return F.when(value.isNotNull(), F.struct(*fields))


def _field(written: JsonType | None, field: dict[str, Any], value: Column) -> Column:
    name, read = field["name"], field["type"]
    if written is None:
        return F.lit(None).cast(columns(read)).alias(name)
    return converted(written, read, value[name]).alias(name)


def _converted_leaf(written: JsonType, read: JsonType, value: Column) -> Column:
    if not isinstance(written, str):
        return F.to_json(converted(written, _as_texts(written), value), {"ignoreNullFields": "false"})
    if written in _TEXTS:
        text = text_of(value)
        return _time(read, text) if read in PATTERNS else text
    return value if written == read else value.cast(columns(read))


def _as_texts(shape: JsonType) -> JsonType:
    """Return a shape whose times are their texts in the JSON."""
    if isinstance(shape, str):
        return TEXT if shape in _TEXTS else shape
    if shape["type"] == "array":
        return shape | {"elementType": _as_texts(shape["elementType"])}
    if shape["type"] == "map":
        return shape | {"valueType": _as_texts(shape["valueType"])}
    return shape | {"fields": [each | {"type": _as_texts(each["type"])} for each in shape["fields"]]}
