"""The types of a JSON Schema in Spark: how values are parsed, checked, and made columns.

`from_json` accepts any JSON for a STRING. So a JSON string is parsed as VARIANT, which keeps its type. A time
is parsed as STRING, since no other JSON has the text of a time. It stays text until it is known to have a
zone, since without one Spark would use the session's zone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
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

from topiclake.formats.json.schema import ANY, PATTERNS, TEXT, JsonType

_TIMES: dict[str, DataType] = {"date-time": TimestampType(), "full-date": DateType()}
_LEAVES: dict[str, DataType] = {
    "long": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    ANY: StringType(),
    TEXT: StringType(),
    **_TIMES,
}

_Check = Callable[[Column], Column]


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
    return TEXT if set(kinds) <= {TEXT, *_TIMES} else ANY


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
    return _type(shape, _LEAVES.__getitem__)


def parsed(shape: JsonType) -> DataType:
    """Return the type as which `from_json` reads a shape."""
    as_parsed = _LEAVES | dict.fromkeys(_TIMES, StringType()) | {TEXT: VariantType()}
    return _type(shape, as_parsed.__getitem__)


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
    """Return whether a parsed object that is not null is of its shape; never null."""
    check = _check_if_present(shape)
    return F.lit(True) if check is None else check(value)


def _check(shape: JsonType, *, may_be_null: bool) -> _Check | None:
    """Return a check of a parsed value, whose result is never null; None if `from_json` has checked it."""
    if shape == TEXT:
        return partial(_is_json_string, may_be_null=may_be_null)
    check = _check_if_present(shape)
    if check is None:
        return None if may_be_null else Column.isNotNull
    if may_be_null:
        return lambda value: value.isNull() | check(value)
    return lambda value: value.isNotNull() & check(value)


def _check_if_present(shape: JsonType) -> _Check | None:
    """Return a check of a parsed value that is not null."""
    if isinstance(shape, str):
        return partial(_has_text_of_time, shape) if shape in _TIMES else None
    if shape["type"] == "struct":
        of_fields = {
            each["name"]: check
            for each in shape["fields"]
            if (check := _check(each["type"], may_be_null=each["nullable"])) is not None
        }
        return partial(_all_fields, of_fields) if of_fields else None
    if shape["type"] == "array":
        of_item = _check(shape["elementType"], may_be_null=shape["containsNull"])
        return partial(_all, of_item) if of_item else None
    of_value = _check(shape["valueType"], may_be_null=shape["valueContainsNull"])
    return (lambda value: _all(of_value, F.map_values(value))) if of_value else None


def _all_fields(checks: dict[str, _Check], value: Column) -> Column:
    return reduce(and_, (check(value[name]) for name, check in checks.items()))


def _all(check: _Check, items: Column) -> Column:
    return F.forall(items, lambda item: check(item))


def _is_json_string(value: Column, *, may_be_null: bool) -> Column:
    kind = F.schema_of_variant(value)
    # VOID is JSON's null.
    return (
        F.coalesce(kind.isin("STRING", "VOID"), F.lit(True))
        if may_be_null
        else F.equal_null(kind, F.lit("STRING"))
    )


def _has_text_of_time(leaf: str, text: Column) -> Column:
    # A `$` would accept a line feed at the end.
    return text.rlike(rf"^{PATTERNS[leaf]}\z") & _time(leaf, text).isNotNull()


def _time(leaf: str, text: Column) -> Column:
    # Spark knows no small letters in times.
    return F.upper(text).try_cast(_TIMES[leaf])


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
    return F.when(value.isNotNull(), F.struct(*converted_fields(written, read, value)))


def converted_fields(written: JsonType, read: JsonType, value: Column) -> list[Column]:
    """Return the fields of `converted` for an object; nulls if `value` is null."""
    written_types: dict[str, Any] = {each["name"]: each["type"] for each in written["fields"]}
    return [_field(written_types.get(each["name"]), each, value) for each in read["fields"]]


def _field(written: JsonType | None, field: dict[str, Any], value: Column) -> Column:
    name, read = field["name"], field["type"]
    if written is None:
        return F.lit(None).cast(columns(read)).alias(name)
    return converted(written, read, value[name]).alias(name)


def _converted_leaf(written: JsonType, read: JsonType, value: Column) -> Column:
    if not isinstance(written, str):
        return F.to_json(converted(written, _as_texts(written), value), {"ignoreNullFields": "false"})
    if written == TEXT:
        return F.variant_get(value, "$", "string")
    if written in _TIMES:
        return _time(read, value) if read in _TIMES else value
    return value if written == read else value.cast(columns(read))


def _as_texts(shape: JsonType) -> JsonType:
    """Return a shape whose times are their texts in the JSON."""
    if isinstance(shape, str):
        return TEXT if shape in _TIMES else shape
    if shape["type"] == "array":
        return shape | {"elementType": _as_texts(shape["elementType"])}
    if shape["type"] == "map":
        return shape | {"valueType": _as_texts(shape["valueType"])}
    return shape | {"fields": [each | {"type": _as_texts(each["type"])} for each in shape["fields"]]}
