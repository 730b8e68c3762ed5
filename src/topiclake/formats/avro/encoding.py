"""From rows to Avro, exactly: columns that do not fit the schema are reported before anything is written.

Spark's `to_avro` alone fails in the middle of a job, with a NullPointerException for a null. It writes a
number that is too large as another number, and does not write a column that the schema lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from topiclake.errors import ConfigError

#: A schema as JSON has it: a name, a list (a union) or an object.
Tree = Any

_INT = (-(2**31), 2**31 - 1)
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
#: By Avro type, the columns that are written as it, and the type that they are cast to first.
_ALLOWED: dict[str, tuple[tuple[type[T.DataType], ...], str | None]] = {
    "boolean": ((T.BooleanType,), None),
    "int": (_INTEGERS, "int"),
    "long": (_INTEGERS, "bigint"),
    "float": ((T.FloatType,), None),
    "double": ((T.FloatType, T.DoubleType), "double"),
    "bytes": ((T.BinaryType,), None),
    "fixed": ((T.BinaryType,), None),
    "enum": ((T.StringType,), None),
    "string": ((T.StringType,), None),
}
_COLUMNS = {name: cast for name, (_, cast) in _ALLOWED.items() if cast} | {
    "boolean": "boolean",
    "float": "float",
    "bytes": "binary",
    "fixed": "binary",
    "enum": "string",
    "string": "string",
    "null": "void",
}
_TIMES: dict[str, type[T.DataType]] = {
    "date": T.DateType,
    "timestamp-millis": T.TimestampType,
    "timestamp-micros": T.TimestampType,
    "local-timestamp-millis": T.TimestampNTZType,
    "local-timestamp-micros": T.TimestampNTZType,
}
_ISO = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}


@dataclass(frozen=True)
class Encoder:
    """The expressions that write a column by a schema.

    Attributes:
        value: The expression for `to_avro`, as a function of the column.
        problem: STRING: the value that does not fit, and where; null if all fit. It is a function of the
            column, because items of arrays are not columns.
    """

    value: Callable[[Column], Column]
    problem: Callable[[Column], Column]


def encoder_for(kind: T.DataType, schema: Mapping[str, Any] | str) -> Encoder:
    """Say how a column is written by a schema.

    Args:
        kind: The column's type.
        schema: Avro, self-contained.

    Raises:
        ConfigError: No value of the column would fit: its type is another one, it is missing, or the schema
            lacks it; names the column.
    """
    return _EncoderBuilder(_named_types(schema)).build(kind, schema, "")


def _named_types(tree: Tree) -> dict[str, Tree]:
    types: dict[str, Tree] = {}
    if isinstance(tree, list):
        for each in tree:
            types |= _named_types(each)
    elif isinstance(tree, dict):
        if tree.get("type") in ("record", "enum", "fixed"):
            types[str(tree["name"]).rpartition(".")[2]] = tree
        for each in (*(f["type"] for f in tree.get("fields", ())), tree.get("items"), tree.get("values")):
            types |= _named_types(each)
        if isinstance(tree.get("type"), dict | list):
            types |= _named_types(tree["type"])
    return types


@dataclass(frozen=True)
class _EncoderBuilder:
    named_types: Mapping[str, Tree]

    def build(self, kind: T.DataType, schema: Tree, path: str) -> Encoder:
        if isinstance(schema, str) and schema.rpartition(".")[2] in self.named_types:
            schema = self.named_types[schema.rpartition(".")[2]]
        if isinstance(schema, list):
            return self._union(kind, schema, path)
        if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
            return self.build(kind, schema["type"], path)
        inner = self._not_null(kind, schema if isinstance(schema, dict) else {"type": schema}, path)
        missing = f"{_name(path)} is null, and the schema wants a value"

        def problem(column: Column) -> Column:
            return F.when(column.isNull(), F.lit(missing)).otherwise(inner.problem(column))

        return Encoder(inner.value, problem)

    def _union(self, kind: T.DataType, schema: list[Tree], path: str) -> Encoder:
        members = [member for member in schema if member != "null"]
        if len(members) != 1:
            raise ConfigError(
                f"{_name(path)} is a union of {len(members)} types, {json.dumps(schema)[:200]}",
                "use a union of null and one type",
                column=path,
                reason="union",
            )
        if isinstance(kind, T.NullType):
            return Encoder(lambda column: column, lambda _: F.lit(None).cast("string"))
        inner = self.build(kind, members[0], path)
        if "null" not in schema:
            return inner
        return Encoder(inner.value, lambda column: F.when(column.isNotNull(), inner.problem(column)))

    def _not_null(self, kind: T.DataType, schema: dict[str, Any], path: str) -> Encoder:
        """Fit what is not null."""
        name, logical = schema["type"], schema.get("logicalType")
        if name == "record" and isinstance(kind, T.StructType):
            return self._record(kind, schema, path)
        if name == "array" and isinstance(kind, T.ArrayType):
            return self._array(kind, schema, path)
        if name == "map" and isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
            return self._map(kind, schema, path)
        if logical == "decimal" and isinstance(kind, T.DecimalType) and name in ("bytes", "fixed"):
            return _decimal(schema, path)
        if logical in _TIMES and isinstance(kind, _TIMES[logical]):
            return Encoder(lambda column: column, _no_problem)
        if name == "string" and isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType):
            return Encoder(_as_text, _no_problem)
        kinds, cast = _ALLOWED.get(name, ((), None))
        if not isinstance(kind, kinds) or logical in _TIMES or logical == "decimal":
            raise ConfigError(
                f"{_name(path)} is {kind.simpleString()}; the schema wants {logical or name}",
                "cast the column, or give a schema that fits",
                column=path,
                found=kind.simpleString(),
                expected=logical or name,
                reason="type",
            )
        return Encoder(
            lambda column: column.cast(cast) if cast else column, _problem_of(kind, name, schema, path)
        )

    def _record(self, kind: T.StructType, schema: dict[str, Any], path: str) -> Encoder:
        columns = {field.name: field.dataType for field in kind}
        allowed = {field["name"]: field for field in schema["fields"]}
        if unknown := [name for name in columns if name not in allowed]:
            raise ConfigError(
                f"{_name(_joined(path, unknown[0]))} is not in the schema, which has {', '.join(allowed)}",
                f"drop it, or add it to the schema of {schema['name']}",
                column=_joined(path, unknown[0]),
                allowed=tuple(allowed),
                reason="unknown",
            )
        absent = [name for name, field in allowed.items() if name not in columns and "default" not in field]
        if absent:
            raise ConfigError(
                f"{_name(_joined(path, absent[0]))} is missing, and the schema has no default for it",
                f"rename one of {', '.join(columns)}, or add a default to the schema",
                column=_joined(path, absent[0]),
                reason="missing",
            )
        fields = {
            name: self.build(columns[name], field["type"], _joined(path, name))
            for name, field in allowed.items()
            if name in columns
        }
        # A field without a column is written as its default, which `to_avro` does not know.
        defaults = {
            name: self._default(field, _joined(path, name))
            for name, field in allowed.items()
            if name not in fields
        }

        def value(column: Column) -> Column:
            parts = [
                (fields[name].value(column[name]) if name in fields else defaults[name]).alias(name)
                for name in allowed
            ]
            return F.when(column.isNotNull(), F.struct(*parts))

        def problem(column: Column) -> Column:
            problems = [field.problem(column[name]) for name, field in fields.items()]
            return F.coalesce(*problems, F.lit(None).cast("string"))

        return Encoder(value, problem)

    def _array(self, kind: T.ArrayType, schema: dict[str, Any], path: str) -> Encoder:
        item = self.build(kind.elementType, schema["items"], f"{path}[]")
        return Encoder(
            lambda column: F.transform(column, item.value),
            lambda column: _first(F.transform(column, item.problem)),
        )

    def _map(self, kind: T.MapType, schema: dict[str, Any], path: str) -> Encoder:
        item = self.build(kind.valueType, schema["values"], f"{path}{{}}")
        return Encoder(
            lambda column: F.transform_values(column, lambda _, each: item.value(each)),
            lambda column: _first(F.transform(F.map_values(column), item.problem)),
        )

    def _default(self, field: Mapping[str, Any], path: str) -> Column:
        """Return a field's default, in the type that `to_avro` wants."""
        default, kind = field["default"], self._column_type(field["type"])
        if default in ([], {}):
            return (F.array() if default == [] else F.create_map()).cast(kind)
        if default is not None and (kind == "binary" or not isinstance(default, bool | int | float | str)):
            raise ConfigError(
                f"{_name(path)} is missing, and its default is no plain value",
                "pass the column",
                column=path,
                reason="default",
            )
        return F.lit(default).cast(kind)

    def _column_type(self, schema: Tree) -> str:
        if isinstance(schema, list):
            return self._column_type(next(member for member in schema if member != "null"))
        if isinstance(schema, str):
            named_type = self.named_types.get(schema.rpartition(".")[2])
            return self._column_type(named_type) if named_type else _COLUMNS[schema]
        if schema.get("logicalType") in _TIMES:
            return _TIMES[schema["logicalType"]]().simpleString()
        if schema.get("logicalType") == "decimal":
            return f"decimal({schema['precision']},{schema.get('scale', 0)})"
        if schema["type"] == "record":
            fields = (f"{field['name']}: {self._column_type(field['type'])}" for field in schema["fields"])
            return f"struct<{', '.join(fields)}>"
        if schema["type"] == "array":
            return f"array<{self._column_type(schema['items'])}>"
        if schema["type"] == "map":
            return f"map<string, {self._column_type(schema['values'])}>"
        return self._column_type(schema["type"])


def _problem_of(
    kind: T.DataType, name: str, schema: Mapping[str, Any], path: str
) -> Callable[[Column], Column]:
    if name == "int" and isinstance(kind, T.LongType):
        return lambda column: _unless(column.between(*_INT), path, column, "no int of 32 bits")
    if name == "enum":
        symbols = [str(symbol) for symbol in schema["symbols"]]
        return lambda column: _unless(column.isin(symbols), path, column, f"none of {', '.join(symbols)}")
    if name == "fixed":
        size = int(schema["size"])
        return lambda column: _unless(F.length(column) == size, path, F.hex(column), f"not {size} bytes")
    return _no_problem


def _decimal(schema: Mapping[str, Any], path: str) -> Encoder:
    precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
    kind = f"decimal({precision},{scale})"

    def problem(column: Column) -> Column:
        is_unchanged = column.try_cast(kind).eqNullSafe(column)
        return _unless(is_unchanged, path, column, f"no {kind}")

    return Encoder(lambda column: column.try_cast(kind), problem)


def _as_text(column: Column) -> Column:
    # By JSON, since only `to_json` accepts a zone: a local time does not name one moment in each zone.
    return F.get_json_object(F.to_json(F.struct(column.alias("at")), _ISO), "$.at")


def _no_problem(_: Column) -> Column:
    return F.lit(None).cast("string")


def _first(problems: Column) -> Column:
    return F.get(F.filter(problems, lambda each: each.isNotNull()), F.lit(0))


def _unless(is_valid: Column, path: str, column: Column, problem: str) -> Column:
    message = F.concat(
        F.lit(f"{_name(path)} is "), F.substring(column.cast("string"), 1, 100), F.lit(f", {problem}")
    )
    return F.when(~is_valid, message)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _name(path: str) -> str:
    return f"column {path}" if path else "the row"
