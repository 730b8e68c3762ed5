"""The columns of Protobuf messages in Arrow: their types, and what makes them. Workers import this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf import json_format

#: Makes a column of the values of a field.
Build = Callable[[Sequence[Any]], pa.Array]
JSON_TYPES = [f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")]
#: Microseconds of the first and the last time of Spark: years 1 to 9999.
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999

_LEAVES = {
    "integer": pa.int32(),
    "long": pa.int64(),
    "decimal(20,0)": pa.decimal128(20, 0),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def arrow_type(shape: Any) -> pa.DataType:  # noqa: ANN401 (JSON)
    """Return the type of a shape (`schema.shape`), as Spark wants it of an Arrow UDF."""
    if isinstance(shape, str):
        return _LEAVES[shape]
    if shape["type"] == "array":
        return pa.list_(pa.field("element", arrow_type(shape["elementType"])))
    if shape["type"] == "map":
        return pa.map_(pa.string(), pa.field("value", arrow_type(shape["valueType"])))
    return pa.struct([pa.field(each["name"], arrow_type(each["type"])) for each in shape["fields"]])


def scattered(array: pa.Array, positions: Sequence[int], length: int) -> pa.Array:
    """Return an array of `length` with the values of another at `positions`, and null elsewhere."""
    if list(positions) == list(range(length)):
        return array
    indexes: list[int | None] = [None] * length
    for index, position in enumerate(positions):
        indexes[position] = index
    return array.take(pa.array(indexes, pa.int64()))


def struct_of(message: Any, shape: Any) -> Build:  # noqa: ANN401
    """Return what makes structs of messages; columns that they do not have are null."""
    row_type = arrow_type(shape)
    columns = [
        partial(_nulls, arrow_type(each["type"]))
        if each["name"] not in message.fields_by_name
        else column_of(message.fields_by_name[each["name"]], each["type"])
        for each in shape["fields"]
    ]
    return lambda messages: pa.StructArray.from_arrays(
        [column(messages) for column in columns], fields=list(row_type)
    )


def _nulls(column_type: pa.DataType, messages: Sequence[Any]) -> pa.Array:
    return pa.nulls(len(messages), column_type)


def column_of(field: Any, shape: Any) -> Build:  # noqa: ANN401
    """Return what makes a column of a field of messages."""
    get, message = attrgetter(field.name), field.message_type
    if message is not None and message.GetOptions().map_entry:
        keys = _of_keys(message.fields_by_name["key"])
        return _of_map(get, keys, values_of(message.fields_by_name["value"], shape["valueType"]), shape)
    if field.is_repeated:
        return _of_repeated(get, values_of(field, shape["elementType"]), shape)
    of_value = values_of(field, shape)
    return (
        _of_optional(field.name, get, of_value)
        if field.has_presence
        else lambda messages: of_value(list(map(get, messages)))
    )


def _of_optional(name: str, get: Callable[[Any], Any], of_value: Build) -> Build:
    def build(messages: Sequence[Any]) -> pa.Array:
        rows = [row for row, message in enumerate(messages) if message.HasField(name)]
        return scattered(of_value([get(messages[row]) for row in rows]), rows, len(messages))

    return build


def _of_repeated(get: Callable[[Any], Any], of_value: Build, shape: Any) -> Build:  # noqa: ANN401
    list_type = arrow_type(shape)

    def build(messages: Sequence[Any]) -> pa.Array:
        lists = list(map(get, messages))
        items = of_value(list(chain.from_iterable(lists)))
        return pa.ListArray.from_arrays(_offsets(lists), items, type=list_type)

    return build


def _of_map(get: Callable[[Any], Any], of_key: Build, of_value: Build, shape: Any) -> Build:  # noqa: ANN401
    map_type = arrow_type(shape)

    def build(messages: Sequence[Any]) -> pa.Array:
        maps = list(map(get, messages))
        items = [item for each in maps for item in each.items()]
        keys, values = of_key([key for key, _ in items]), of_value([value for _, value in items])
        return pa.MapArray.from_arrays(_offsets(maps), keys, values, type=map_type)

    return build


def _offsets(lists: Iterable[Any]) -> pa.Array:
    return pa.array(accumulate(map(len, lists), initial=0), pa.int32())


def _of_keys(field: Any) -> Build:  # noqa: ANN401
    if field.type == field.TYPE_STRING:
        return partial(pa.array, type=pa.string())
    if field.type == field.TYPE_BOOL:
        return lambda keys: pa.array(["true" if key else "false" for key in keys], pa.string())
    return lambda keys: pa.array(list(map(str, keys)), pa.string())


def values_of(field: Any, shape: Any) -> Build:  # noqa: ANN401
    """Return what makes a column of values of a field, or of items of a repeated one."""
    message = field.message_type
    if field.type == field.TYPE_ENUM:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        # A number that the schema does not name is from a newer version.
        return lambda values: pa.array([names.get(value) or str(value) for value in values], pa.string())
    if message is None:
        return _unsigned if shape == "decimal(20,0)" else partial(pa.array, type=arrow_type(shape))
    if message.full_name == "google.protobuf.Timestamp":
        return _timestamps
    if message.full_name in JSON_TYPES:
        return lambda values: pa.array([_as_json(value) for value in values], pa.string())
    if message.file.name == "google/protobuf/wrappers.proto":
        of_inner = values_of(message.fields_by_name["value"], shape)
        return lambda values: of_inner([value.value for value in values])
    if not message.fields:
        return lambda values: pa.array([True] * len(values), pa.bool_())
    return struct_of(message, shape)


def _unsigned(values: Sequence[int]) -> pa.Array:
    return pa.array(values, pa.uint64()).cast(pa.decimal128(20, 0))


def _timestamps(values: Sequence[Any]) -> pa.Array:
    times = [value.seconds * 1_000_000 + value.nanos // 1000 for value in values]
    if times and not FIRST <= min(times) <= max(times) <= LAST:
        raise ValueError("a timestamp is out of range: years 1 to 9999")
    return pa.array(times, pa.timestamp("us", "UTC"))


def _as_json(value: Any) -> str:  # noqa: ANN401
    return str(json_format.MessageToJson(value, indent=None, ensure_ascii=False))
