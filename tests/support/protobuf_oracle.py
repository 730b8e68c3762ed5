"""Protobuf as the docs describe it, a value at a time and without Arrow."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta, timezone
from decimal import Decimal

from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_JSON_TYPES = [f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")]


def message_class(descriptors, name):
    """Return the class of a message of a `FileDescriptorSet`."""
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def expected(kind, encoded, columns):
    """Return the row of a message as a dict of all `columns` (a shape), or None if it is no row."""
    try:
        message = kind.FromString(encoded)
        return _struct(message, columns) if message.IsInitialized() else None
    except (DecodeError, ValueError, OverflowError, json_format.Error):
        return None


def _struct(message, shape):
    fields = message.DESCRIPTOR.fields_by_name
    return {
        each["name"]: _column(message, fields[each["name"]], each["type"]) if each["name"] in fields else None
        for each in shape["fields"]
    }


def _column(message, field, shape):
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return sorted((_key(key), _value(inner, each, shape["valueType"])) for key, each in value.items())
    if field.is_repeated:
        return [_value(field, each, shape["elementType"]) for each in value]
    return _value(field, value, shape)


def _value(field, value, shape):
    message = field.message_type
    if field.type == field.TYPE_ENUM:
        # Of names for one number, `items` yields the last, and `get` finds the first.
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return names.get(value, str(value))
    if field.type == field.TYPE_STRING and isinstance(value, bytes):
        raise ValueError("no UTF-8")
    if message is None:
        return value
    if message.full_name == "google.protobuf.Timestamp":
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if message.full_name in _JSON_TYPES:
        return json_format.MessageToJson(value, indent=None, ensure_ascii=False)
    if message.file.name == "google/protobuf/wrappers.proto":
        return _value(message.fields_by_name["value"], value.value, shape)
    return _struct(value, shape) if message.fields else True


def _key(key):
    if isinstance(key, bytes):
        raise ValueError("no UTF-8")
    return str(key).lower() if isinstance(key, bool) else str(key)


def plain(value):
    """Return a value of Arrow or of the oracle so that both compare; maps are lists of pairs."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        pairs = value and isinstance(value[0], tuple)
        return [plain(each) for each in (sorted(value, key=lambda pair: pair[0]) if pairs else value)]
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    return int(value) if isinstance(value, Decimal) else value


def any_message(rng: random.Random, kind, depth=0):
    """Return a message with fields set at random."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.4 and not (field.is_required and rng.random() < 0.9):
            continue
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            _fill_map(rng, message, field)
        elif field.is_repeated:
            for _ in range(rng.randrange(4)):
                if inner is None:
                    getattr(message, field.name).append(_scalar(rng, field))
                else:
                    getattr(message, field.name).add().CopyFrom(_inner(rng, inner, depth))
        elif inner is None:
            setattr(message, field.name, _scalar(rng, field))
        else:
            getattr(message, field.name).CopyFrom(_inner(rng, inner, depth))
    return message


def _inner(rng, descriptor, depth):
    kind = message_factory.GetMessageClass(descriptor)
    return kind() if depth > 3 else any_message(rng, kind, depth + 1)


def _fill_map(rng, message, field):
    keys, values = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    for _ in range(rng.randrange(3)):
        target, key = getattr(message, field.name), _scalar(rng, keys)
        if values.message_type is None:
            target[key] = _scalar(rng, values)
        else:
            target[key].CopyFrom(_inner(rng, values.message_type, 3))


def _scalar(rng, field):
    if field.type == field.TYPE_ENUM:
        later = [] if field.enum_type.is_closed else [77]
        return rng.choice([*(each.number for each in field.enum_type.values), *later])
    if field.cpp_type == field.CPPTYPE_STRING:
        text = "".join(rng.choice('aé\U0001f600\0"\\\n ') for _ in range(rng.randrange(6)))
        return text.encode() if field.type == field.TYPE_BYTES else text
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return rng.choice([0.0, -0.0, 0.1, -1e30, float("inf"), float("nan")])
    if field.cpp_type == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    bits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        return rng.choice([0, 1, 2**bits - 1, rng.getrandbits(bits)])
    return rng.choice([0, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), rng.getrandbits(bits - 1), 1])


def mutated(rng: random.Random, encoded: bytes) -> bytes:
    """Return bytes with one change: a bit, a cut, a copy, or bytes that are inserted."""
    at, end = (rng.randrange(len(encoded) + 1) for _ in range(2))
    kind = rng.randrange(5)
    if kind == 0 and encoded:
        at = min(at, len(encoded) - 1)
        return encoded[:at] + bytes([encoded[at] ^ 1 << rng.randrange(8)]) + encoded[at + 1 :]
    if kind == 1:
        return encoded[:at]
    if kind == 2:
        return encoded + encoded[min(at, end) : max(at, end)]
    if kind == 3:
        return encoded[: min(at, end)] + encoded[max(at, end) :]
    return encoded[:at] + rng.randbytes(rng.randrange(1, 12)) + encoded[at:]
