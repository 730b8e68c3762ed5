"""From a DataFrame's columns to the Avro schema that `to_avro` writes them by."""

from __future__ import annotations

import re
from typing import Any, Literal

from pyspark.sql import types as T

from topiclake.errors import ConfigError, require_choice

#: How timestamps are written: as Avro's logical types, or as text in ISO 8601 with the zone UTC.
Timestamps = Literal["logical", "string"]

_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: dict[type[T.DataType], str] = {
    T.BooleanType: "boolean",
    T.ByteType: "int",
    T.ShortType: "int",
    T.IntegerType: "int",
    T.LongType: "long",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.BinaryType: "bytes",
}
_LOGICAL: dict[type[T.DataType], tuple[str, str]] = {
    T.DateType: ("int", "date"),
    T.TimestampType: ("long", "timestamp-micros"),
    T.TimestampNTZType: ("long", "local-timestamp-micros"),
}


def derived_schema(columns: T.StructType, name: str, *, timestamps: Timestamps = "logical") -> dict[str, Any]:
    """Return the Avro schema of rows.

    Args:
        columns: The rows' columns. A column that may be null is `["null", …]` with the default null.
        name: The name of the record, a legal name of Avro's. It is the prefix of the names of inner records.
        timestamps: How TIMESTAMP and TIMESTAMP_NTZ are written.

    Returns:
        A schema of type record.

    Raises:
        ConfigError: A column has a name or a type that Avro has not; names the column.
    """
    require_choice("timestamps", timestamps, ("logical", "string"))
    return _record(columns, _legal(name, "the record"), "", timestamps)


def _record(columns: T.StructType, name: str, path: str, timestamps: Timestamps) -> dict[str, Any]:
    fields = []
    for column in columns:
        column_path = f"{path}{column.name}"
        kind = _type(column.dataType, f"{name}_{column.name}", column_path, timestamps)
        field: dict[str, Any] = {"name": _legal(column.name, f"column {column_path}"), "type": kind}
        fields.append(field | {"type": ["null", kind], "default": None} if column.nullable else field)
    return {"type": "record", "name": name, "fields": fields}


def _type(kind: T.DataType, name: str, path: str, timestamps: Timestamps) -> Any:  # noqa: ANN401 (Avro's JSON)
    if timestamps == "string" and isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return "string"
    if plain := _PLAIN.get(type(kind)):
        return plain
    if logical := _LOGICAL.get(type(kind)):
        return {"type": logical[0], "logicalType": logical[1]}
    if isinstance(kind, T.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if isinstance(kind, T.StructType):
        return _record(kind, name, f"{path}.", timestamps)
    if isinstance(kind, T.ArrayType):
        items = _type(kind.elementType, name, f"{path}[]", timestamps)
        return {"type": "array", "items": ["null", items] if kind.containsNull else items}
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        values = _type(kind.valueType, name, f"{path}{{}}", timestamps)
        return {"type": "map", "values": ["null", values] if kind.valueContainsNull else values}
    raise ConfigError(
        f"column {path} is {kind.simpleString()}, which Avro has no form for",
        "cast it, or drop it",
        column=path,
        found=kind.simpleString(),
        reason="type",
    )


def _legal(name: str, role: str) -> str:
    if not _LEGAL.fullmatch(name):
        raise ConfigError(
            f"{role} is called {name!r}; Avro's names are letters, digits and _, and begin with no digit",
            "rename it with withColumnRenamed",
            name=name,
            reason="name",
        )
    return name
