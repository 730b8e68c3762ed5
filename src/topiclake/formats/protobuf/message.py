"""One Protobuf message as JSON that Spark reads exactly; Google's own library decodes it.

Workers import this.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_JSON_TYPES = [f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")]
#: Makes JSON of one value of a field.
_Convert = Callable[[Any], Any]


class _Field(NamedTuple):
    """How one field becomes JSON.

    Attributes:
        name: Its name.
        kind: `optional` (omitted if it is not set), `always`, `repeated` or `map`.
        convert: Makes JSON of a value; None if the value is JSON already.
    """

    name: str
    kind: str
    convert: _Convert | None


def to_json(value: bytes, descriptors: bytes, names: Sequence[str]) -> tuple[str | None, str | None]:
    """Decode message indexes, as Confluent has them, and a message.

    Args:
        value: Both, without the bytes that name the schema.
        descriptors: A `FileDescriptorSet`, its main file last.
        names: Full names of the messages that values may be.

    Returns:
        The message as JSON, and None; or None, and why it is no message.
    """
    try:
        return _reader(descriptors, tuple(names)).read(value), None
    except DecodeError:
        return None, "it is cut off, or no message of its schema"
    except (ValueError, OverflowError, RecursionError, json_format.SerializeToJsonError) as error:
        return None, f"{error}"[:1000]


@lru_cache(maxsize=256)
def _reader(descriptors: bytes, names: tuple[str, ...]) -> _Reader:
    """Return the reader of a schema's messages; each process makes it once."""
    return _Reader(descriptors, names)


class _Reader:
    """Reads the messages of one schema."""

    def __init__(self, descriptors: bytes, names: tuple[str, ...]) -> None:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
        self._pool = descriptor_pool.DescriptorPool()
        for file in files:
            self._pool.Add(file)
        self._main = files[-1]
        self._names = names
        self._classes: dict[tuple[int, ...], tuple[Any, list[_Field]]] = {}
        self._fields: dict[str, list[_Field]] = {}

    def read(self, value: bytes) -> str:
        """Return a message as JSON; raises DecodeError or ValueError if it is no message."""
        path, begin = _indexes(value)
        message_class, fields = self._class_of(tuple(path))
        message = message_class.FromString(value[begin:])
        if not message.IsInitialized():
            lacking = ", ".join(message.FindInitializationErrors())
            raise ValueError(f"it lacks what is required: {lacking}")
        return json.dumps(_as_json(message, fields), ensure_ascii=False)

    def _class_of(self, path: tuple[int, ...]) -> tuple[Any, list[_Field]]:
        if path not in self._classes:
            name = _full_name(self._main, path)
            if name not in self._names:
                raise ValueError(f"it is a {name}, and the table accepts {', '.join(self._names)}")
            descriptor = self._pool.FindMessageTypeByName(name)
            message_class = message_factory.GetMessageClass(descriptor)
            self._classes[path] = message_class, self._fields_of(descriptor)
        return self._classes[path]

    def _fields_of(self, descriptor: Any) -> list[_Field]:  # noqa: ANN401 (the library has no types)
        if descriptor.full_name not in self._fields:
            # Before its fields are known: one of them may be of the same message.
            fields = self._fields[descriptor.full_name] = []
            for field in descriptor.fields:
                value_field, kind = field, "optional"
                if field.message_type is not None and field.message_type.GetOptions().map_entry:
                    value_field, kind = field.message_type.fields_by_name["value"], "map"
                elif field.is_repeated:
                    kind = "repeated"
                elif not field.has_presence:
                    kind = "always"
                fields.append(_Field(field.name, kind, self._conversion(value_field)))
        return self._fields[descriptor.full_name]

    def _conversion(self, field: Any) -> _Convert | None:  # noqa: ANN401
        message = field.message_type
        if field.type == field.TYPE_ENUM:
            names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
            # A number that the schema does not name is from a newer version.
            return lambda value: names.get(value) or str(value)
        if field.type == field.TYPE_BYTES:
            return lambda value: b64encode(value).decode("ascii")
        if message is None:
            return None
        if message.full_name == "google.protobuf.Timestamp":
            return _timestamp
        if message.full_name in _JSON_TYPES:
            return lambda value: json_format.MessageToJson(value, indent=None, ensure_ascii=False)
        if message.file.name == "google/protobuf/wrappers.proto":
            inner = self._conversion(message.fields_by_name["value"])
            return lambda value: inner(value.value) if inner else value.value
        if not message.fields:
            return lambda value: True
        fields = self._fields_of(message)
        return lambda value: _as_json(value, fields)


def _as_json(message: Any, fields: Sequence[_Field]) -> dict[str, Any]:  # noqa: ANN401
    result: dict[str, Any] = {}
    for name, kind, convert in fields:
        if kind == "optional" and not message.HasField(name):
            continue
        value = getattr(message, name)
        if kind == "map":
            result[name] = {_key(key): convert(each) if convert else each for key, each in value.items()}
        elif kind == "repeated":
            result[name] = [convert(each) for each in value] if convert else list(value)
        else:
            result[name] = convert(value) if convert else value
    return result


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _timestamp(value: Any) -> str:  # noqa: ANN401
    at = _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def _full_name(file: Any, path: Sequence[int]) -> str:  # noqa: ANN401
    """Return the full name of the message with these indexes in a file."""
    names, messages = [file.package] if file.package else [], file.message_type
    for depth, index in enumerate(path):
        if not 0 <= index < len(messages):
            raise ValueError(f"the schema has no message of index {list(path[: depth + 1])}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def _indexes(value: bytes) -> tuple[list[int], int]:
    """Read message indexes; return them and the position at which the message begins."""
    count, end = _number(value, 0)
    if not 0 <= count <= len(value):
        raise ValueError(f"there are {count} message indexes, it says")
    indexes = []
    for _ in range(count):
        index, end = _number(value, end)
        indexes.append(index)
    # An empty list of indexes names the first message of a file.
    return indexes or [0], end


def _number(value: bytes, begin: int) -> tuple[int, int]:
    """Read a whole number (varint, zigzag); return it and the position of its end."""
    number = shift = 0
    end = begin
    while True:
        if end >= len(value) or shift > 63:
            raise ValueError("the message indexes are cut off")
        byte = value[end]
        number |= (byte & 0x7F) << shift
        end, shift = end + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), end
