"""Protobuf's messages as JSON that Spark reads exactly; Google's own library decodes them, in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from pyspark.sql import Column
from pyspark.sql import functions as F

#: A `FileDescriptorSet`, its main file last, and the full names of the messages that values may be.
Described = tuple[bytes, list[str]]


def as_json(value: Column, schema: Column, schemas: Mapping[bytes, Described]) -> Column:
    """Decode `value BINARY`: message indexes, as Confluent has them, and a message; runs Python.

    Args:
        value: Null for what is not to be decoded.
        schema: Which of `schemas` it claims to be, BINARY.
        schemas: What records name.

    Returns:
        STRUCT<text STRING, error STRING>: the message as JSON, or why it is none; null where the value is.
        The JSON is made for `from_json`: whole numbers of any length as such, bytes in base64, times in UTC.
    """
    described = dict(schemas)
    #: What each process of a worker makes once of each schema.
    made: dict[bytes, Any] = {}

    # Everything inside: Spark ships it by value, so the library need not be on the workers; protobuf must.
    def run(values: pd.Series, names: pd.Series) -> pd.DataFrame:
        import json
        from base64 import b64encode
        from datetime import datetime, timedelta, timezone

        from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
        from google.protobuf.message import DecodeError

        epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)

        def prepared(name: bytes) -> Any:  # noqa: ANN401
            if name not in made:
                text, wanted = described[name]
                files = descriptor_pb2.FileDescriptorSet.FromString(text).file
                pool = descriptor_pool.DescriptorPool()
                for file in files:
                    pool.Add(file)
                made[name] = pool, files[-1], wanted, {}, {}
            return made[name]

        def number(some: bytes, place: int) -> tuple[int, int]:
            """Read a whole number (varint, zigzag), and return where it ends."""
            found = shift = 0
            while True:
                if place >= len(some) or shift > 63:
                    raise ValueError("the message indexes are cut off")
                byte = some[place]
                found |= (byte & 0x7F) << shift
                place, shift = place + 1, shift + 7
                if byte < 0x80:
                    return (found >> 1) ^ -(found & 1), place

        def indexes(some: bytes) -> tuple[list[int], int]:
            count, place = number(some, 0)
            if not 0 <= count <= len(some):
                raise ValueError(f"there are {count} message indexes, it says")
            found = []
            for _ in range(count):
                index, place = number(some, place)
                found.append(index)
            # The first message is told in short.
            return found or [0], place

        def name_of(main: Any, path: list[int]) -> str:  # noqa: ANN401
            """Return the full name of the message with these indexes in a file."""
            names, there = [main.package] if main.package else [], main.message_type
            for depth, index in enumerate(path):
                if not 0 <= index < len(there):
                    raise ValueError(f"the schema has no message of index {path[: depth + 1]}")
                names.append(there[index].name)
                there = there[index].nested_type
            return ".".join(names)

        def time_of(value: Any) -> str:  # noqa: ANN401
            at = epoch + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
            return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")

        def conversion(field: Any, steps: dict[str, Any]) -> Any:  # noqa: ANN401
            """Return what makes JSON of one value of a field; None: it is JSON."""
            kind = field.message_type
            if field.type == field.TYPE_ENUM:
                names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
                # A number that the schema does not name is from a newer version.
                return lambda value: names.get(value) or str(value)
            if field.type == field.TYPE_BYTES:
                return lambda value: b64encode(value).decode("ascii")
            if kind is None:
                return None
            if kind.full_name == "google.protobuf.Timestamp":
                return time_of
            if kind.full_name in [f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")]:
                return lambda value: json_format.MessageToJson(value, indent=None, ensure_ascii=False)
            if kind.file.name == "google/protobuf/wrappers.proto":
                inner = conversion(kind.fields_by_name["value"], steps)
                return lambda value: inner(value.value) if inner else value.value
            if not kind.fields:
                return lambda value: True
            fields = steps_of(kind, steps)
            return lambda value: plain(value, fields)

        def steps_of(kind: Any, steps: dict[str, Any]) -> Any:  # noqa: ANN401
            """Return name, way and conversion of each field of a kind of message; made once."""
            if kind.full_name not in steps:
                steps[kind.full_name] = []
                for field in kind.fields:
                    of, way = field, "there"
                    if field.message_type is not None and field.message_type.GetOptions().map_entry:
                        of, way = field.message_type.fields_by_name["value"], "map"
                    elif is_repeated(field):
                        way = "repeated"
                    elif not field.has_presence:
                        way = "always"
                    steps[kind.full_name].append((field.name, way, conversion(of, steps)))
            return steps[kind.full_name]

        def plain(message: Any, fields: Any) -> dict[str, Any]:  # noqa: ANN401
            found: dict[str, Any] = {}
            for name, way, convert in fields:
                if way == "there" and not message.HasField(name):
                    continue
                value = getattr(message, name)
                if way == "map":
                    found[name] = {
                        (str(key).lower() if isinstance(key, bool) else str(key)): convert(each)
                        if convert
                        else each
                        for key, each in value.items()
                    }
                elif way == "repeated":
                    found[name] = [convert(each) for each in value] if convert else list(value)
                else:
                    found[name] = convert(value) if convert else value
            return found

        def is_repeated(field: Any) -> bool:  # noqa: ANN401
            # Newer versions of the library have only the former, older ones only the latter.
            return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == 3)

        def decoded(value: bytes, name: bytes) -> str:
            pool, main, wanted, kinds, steps = prepared(name)
            path, place = indexes(value)
            if tuple(path) not in kinds:
                kind = name_of(main, path)
                if kind not in wanted:
                    raise ValueError(f"it is a {kind}, and the table takes {', '.join(wanted)}")
                found = pool.FindMessageTypeByName(kind)
                kinds[tuple(path)] = message_factory.GetMessageClass(found), steps_of(found, steps)
            message_class, fields = kinds[tuple(path)]
            message = message_class.FromString(value[place:])
            if not message.IsInitialized():
                lacking = ", ".join(message.FindInitializationErrors())
                raise ValueError(f"it lacks what is required: {lacking}")
            return json.dumps(plain(message, fields), ensure_ascii=False)

        def row(value: bytes | None, name: bytes | None) -> tuple[str | None, str | None]:
            if value is None or name is None or bytes(name) not in described:
                return None, None
            try:
                return decoded(bytes(value), bytes(name)), None
            except DecodeError:
                return None, "it is cut off, or no message of its schema"
            except (ValueError, OverflowError, RecursionError, json_format.SerializeToJsonError) as error:
                return None, f"{error}"[:1000]

        rows = [row(value, name) for value, name in zip(values, names, strict=True)]
        return pd.DataFrame(rows, columns=["text", "error"])

    pandas_udf: Any = F.pandas_udf  # its overloads know no schema as text
    # Called once for each value, wherever Spark would like to have it twice.
    found: Column = pandas_udf(run, "text STRING, error STRING").asNondeterministic()(value, schema)
    return found
