"""Values as literals of SQL, which do not depend on the session's time zone."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from topiclake.delta import table as delta

#: By type, the parts around a text. Delta skips files by literals alone, not by casts of them.
_NUMBERS = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}
_TIMESTAMP = "timestamp"


def text(value: Column, kind: DataType) -> Column:
    """Return a value as the text that `literal` accepts."""
    # The text of a time is in the session's zone, where an hour may occur twice.
    return (F.unix_micros(value) if kind.simpleString() == _TIMESTAMP else value).cast("string")


def literal(text: str, kind: DataType) -> str:
    """Return the literal of a value, from its text."""
    name, quoted = kind.simpleString(), delta.literal(text)
    if name in _NUMBERS:
        return f"{text}{_NUMBERS[name]}"
    if name == _TIMESTAMP:
        return f"timestamp_micros({text})"
    if name == "date":
        return f"DATE {quoted}"
    return quoted if name == "string" else f"CAST({quoted} AS {name})"
