"""Usual Protobuf messages as columns of Arrow: a field of all messages is read at once. Workers import this.

Serializers write fields in the order of their numbers. A message is unusual if it has another order, a group,
an unknown field, a field or a map's key twice, or damaged bytes. Google's library decodes it (`message`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from numpy.typing import NDArray

from topiclake.formats.protobuf import wire
from topiclake.formats.protobuf.columns import FIRST, JSON_TYPES, LAST, arrow_type, column_of, values_of
from topiclake.formats.protobuf.wire import Bytes, Positions, Read

#: Messages within messages are usual down to this depth; Google's library decodes them down to 100.
_DEPTH = 32
#: A step reads the next item of all lists. Fewer lists that are longer than the others are unusual. Their
#: steps would cost more than Google's library needs, and lists within lists multiply them.
FEWEST_LISTS = 16


class _Field(NamedTuple):
    """A field of a message.

    Attributes:
        tag: The bytes in front of its values.
        oneof: The name of the fields of which a message has one at most, or None.
        read: Reads its values, or its lists of values, as a column.
    """

    tag: bytes
    oneof: str | None
    read: Read


def struct_of(message: Any, shape: Any, depth: int = 0) -> Read:  # noqa: ANN401 (the library has no types)
    """Return what reads messages as rows of a type (`schema.shape`); other columns are null."""
    row_type, empty = arrow_type(shape), message_factory.GetMessageClass(message)()
    types = {each["name"]: each["type"] for each in shape["fields"]}
    defaults = {
        name: column_of(message.fields_by_name[name], column)([empty])
        if name in message.fields_by_name
        else pa.nulls(1, arrow_type(column))
        for name, column in types.items()
    }
    fields = dict(_fields(message, types, depth))

    def read(data: Bytes, begins: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        found, after = _read(fields.values(), data, begins, ends)
        values = dict(zip(fields, found, strict=True))
        columns = [
            _completed(default, *values.get(name, (begins[:0], default[:0])), len(begins))
            for name, default in defaults.items()
        ]
        return pa.StructArray.from_arrays(columns, fields=list(row_type)), after

    return read


def _completed(default: pa.Array, rows: Positions, values: pa.Array, count: int) -> pa.Array:
    """Return a column of `count` rows: `values` in `rows`, and the default in the others."""
    if len(rows) == count:
        return values
    indexes = np.zeros(count, np.int64)
    indexes[rows] = np.arange(1, len(rows) + 1)
    return pa.concat_arrays([default, values]).take(pa.array(indexes))


def _read(
    fields: Iterable[_Field], data: Bytes, begins: Positions, ends: Positions
) -> tuple[list[tuple[Positions, pa.Array]], Positions]:
    """Read fields of messages; return rows and values of each field, and where usual messages end."""
    at, found = begins.copy(), []
    has_one: dict[str, NDArray[np.bool_]] = {}
    for field in fields:
        has_field = wire.has_tag(field.tag, data, at, ends)
        if field.oneof is not None:
            has_field &= ~has_one.setdefault(field.oneof, np.zeros(len(at), bool))
            has_one[field.oneof] |= has_field
        rows = np.flatnonzero(has_field)
        values, after = field.read(data, at[rows] + len(field.tag), ends[rows])
        is_usual = after >= 0
        if not is_usual.all():
            rows, after, values = rows[is_usual], after[is_usual], values.filter(pa.array(is_usual))
        at[rows] = after
        found.append((rows, values))
    return found, np.where(at == ends, at, -1)


def _fields(message: Any, types: Any, depth: int) -> Iterator[tuple[str, _Field]]:  # noqa: ANN401
    """Yield names and fields of usual messages, in the order of their numbers."""
    for field in sorted(message.fields, key=lambda field: field.number):
        if field.name not in types:
            continue
        column = types[field.name]
        known = _lists(field, column, depth) if field.is_repeated else _values(field, column, depth)
        if known is not None:
            wire_type, read = known
            oneof = field.containing_oneof and field.containing_oneof.name
            yield field.name, _Field(wire.tag(field.number, wire_type), oneof, read)


def _lists(field: Any, column: Any, depth: int) -> tuple[int, Read] | None:  # noqa: ANN401
    """Return the wire type of a repeated field, and what reads its lists; None: they are unusual."""
    if column["type"] == "map":
        return _maps(field, column, depth)
    known = _values(field, column["elementType"], depth)
    if known is None:
        return None
    wire_type, read = known
    if wire_type == wire.LENGTH:
        return wire_type, _items(read, wire.tag(field.number, wire_type), arrow_type(column))
    # Numbers follow a common tag and length.
    return wire.LENGTH, _within(_items(read, b"", arrow_type(column)))


def _maps(field: Any, column: Any, depth: int) -> tuple[int, Read] | None:  # noqa: ANN401
    """Return the wire type of a map, and what reads maps: lists of entries. None: they are unusual."""
    fields, map_type = field.message_type.fields_by_name, arrow_type(column)
    key, value = _keys(fields["key"]), _values(fields["value"], column["valueType"], depth)
    if value is None:
        return None
    # A serializer writes both fields of each entry, in this order.
    known = [
        _Field(wire.tag(number, wire_type), None, read)
        for number, (wire_type, read) in enumerate([key, value], start=1)
    ]
    # The keys of Arrow's maps are not null, also those of unusual maps.
    absent = [pa.array([""]), pa.nulls(1, map_type.item_type)]

    def read_entries(data: Bytes, begins: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        found, after = _read(known, data, begins, ends)
        fields_of_entries = np.bincount(np.concatenate([rows for rows, _ in found]), minlength=len(after))
        columns = [_completed(each, *values, len(after)) for each, values in zip(absent, found, strict=True)]
        entries = pa.StructArray.from_arrays(columns, names=["key", "value"])
        return entries, np.where(fields_of_entries == len(known), after, -1)

    entry_type = pa.struct([("key", pa.string()), ("value", map_type.item_type)])
    tag = wire.tag(field.number, wire.LENGTH)
    read_lists = _items(_within(read_entries), tag, pa.list_(entry_type))

    def read_maps(data: Bytes, begins: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        lists, after = read_lists(data, begins, ends)
        keys, values = lists.values.flatten()
        rows = np.repeat(np.arange(len(after)), lists.value_lengths().fill_null(0).to_numpy())
        encoded = keys.dictionary_encode()
        rows_and_keys = rows * len(encoded.dictionary) + encoded.indices.to_numpy()
        _, first = np.unique(rows_and_keys, return_index=True)
        # Of entries with one key, Google's library keeps the last.
        after[np.delete(rows, first)] = -1
        return pa.MapArray.from_arrays(lists.offsets, keys, values, type=map_type), after

    return wire.LENGTH, read_maps


def _keys(field: Any) -> tuple[int, Read]:  # noqa: ANN401
    """Return the wire type of the keys of maps, and what reads them as texts."""
    number = wire.number(field.type)
    if number is None:
        return wire.LENGTH, wire.texts(pa.string())
    wire_type, read = number

    def read_keys(data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        numbers, after = read(data, at, ends)
        return pa.array(numbers).cast(pa.string()), after

    return wire_type, read_keys


def _items(read: Read, tag: bytes, list_type: pa.DataType) -> Read:
    """Return what reads lists of values, with a tag between two of them."""

    def read_lists(data: Bytes, begins: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        at, found = begins.copy(), []
        rows: Positions = np.arange(len(begins))
        while len(rows) >= FEWEST_LISTS:
            values, after = read(data, at[rows], ends[rows])
            found.append((rows, values))
            at[rows] = after
            rows = rows[(after >= 0) & wire.has_tag(tag, data, after, ends[rows])]
            at[rows] += len(tag)
        at[rows] = -1
        if not found:
            return pa.nulls(len(at), list_type), at
        rows_of_items = np.concatenate([rows for rows, _ in found])
        items = pa.concat_arrays([values for _, values in found])
        in_turn = pa.array(np.argsort(rows_of_items, kind="stable"))
        counts = np.bincount(rows_of_items, minlength=len(begins))
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, items.take(in_turn), type=list_type), at

    return read_lists


def _within(read: Read) -> Read:
    """Return what reads values with lengths, which end where their bytes end."""

    def read_within(data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        begins, inner_ends = wire.lengths(data, at, ends)
        values, after = read(data, begins, inner_ends)
        return values, np.where(after == inner_ends, after, -1)

    return read_within


def _values(field: Any, column: Any, depth: int) -> tuple[int, Read] | None:  # noqa: ANN401
    """Return the wire type of a field's values, and what reads them as a column; None: they are unusual."""
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        read = _message(field.message_type, column, depth + 1) if depth < _DEPTH else None
        return read and (wire.LENGTH, _within(read))
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        return wire.LENGTH, wire.texts(arrow_type(column))
    number = wire.number(field.type)
    return number and (number[0], _numbers(number[1], field, column))


def _numbers(read: Read, field: Any, column: Any) -> Read:  # noqa: ANN401
    build = values_of(field, column)
    names = field.enum_type and list(field.enum_type.values_by_number)

    def read_numbers(data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        numbers, after = read(data, at, ends)
        return build(numbers), after

    def read_names(data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        numbers, after = read(data, at, ends)
        if field.enum_type.is_closed:
            # A message with a number that such an enum does not name has no value there.
            after = np.where(np.isin(numbers, names), after, -1)
        different, indexes = np.unique(numbers, return_inverse=True)
        return build(different.tolist()).take(pa.array(indexes)), after

    return read_names if names else read_numbers


def _message(message: Any, column: Any, depth: int) -> Read | None:  # noqa: ANN401
    if message.full_name in JSON_TYPES:
        return None
    if message.full_name == "google.protobuf.Timestamp":
        return _times(message)
    if message.file.name == "google/protobuf/wrappers.proto":
        return _wrapped(struct_of(message, _row(value=column), depth))
    return struct_of(message, column, depth) if message.fields else _nothing


def _row(**types: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"type": "struct", "fields": [{"name": name, "type": each} for name, each in types.items()]}


def _times(message: Any) -> Read:  # noqa: ANN401
    read = struct_of(message, _row(seconds="long", nanos="integer"))

    def read_times(data: Bytes, begins: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        parts, after = read(data, begins, ends)
        seconds, nanos = (part.to_numpy() for part in parts.flatten())
        # The product of other seconds may be too large for 64 bits.
        is_time = (seconds >= FIRST // 1_000_000) & (seconds <= LAST // 1_000_000)
        micros = np.where(is_time, seconds, 0) * 1_000_000 + nanos // 1000
        is_time &= (micros >= FIRST) & (micros <= LAST)
        return pa.array(micros, pa.timestamp("us", "UTC")), np.where(is_time, after, -1)

    return read_times


def _wrapped(read: Read) -> Read:
    def read_values(data: Bytes, begins: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        rows, after = read(data, begins, ends)
        return rows.field("value"), after

    return read_values


def _nothing(_: Bytes, begins: Positions, __: Positions) -> tuple[pa.Array, Positions]:
    """Read messages without fields: true, and no bytes."""
    return pa.array(np.ones(len(begins), bool)), begins
