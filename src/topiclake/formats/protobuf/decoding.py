"""Protobuf's messages as JSON that Spark reads exactly: a column of texts, made in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from pyspark.sql import Column
from pyspark.sql import functions as F

from topiclake.formats.protobuf.message import to_json

#: A `FileDescriptorSet`, its main file last, and the full names of the messages that values may be.
Described = tuple[bytes, list[str]]


def as_json(value: Column, schema: Column, schemas: Mapping[bytes, Described]) -> Column:
    """Decode `value BINARY`: message indexes, as Confluent has them, and a message; runs Python.

    Args:
        value: Null if it is not to be decoded.
        schema: The key in `schemas` of the schema that it claims to have, BINARY.
        schemas: The schemas that records name.

    Returns:
        STRUCT<text STRING, error STRING>: the message as JSON, or why it is no message; both null for a null.
        The JSON is made for `from_json`: whole numbers of any length as such, bytes in base64, times in UTC.
    """
    described = dict(schemas)

    def run(values: pd.Series, names: pd.Series) -> pd.DataFrame:
        rows = [_row(value, name, described) for value, name in zip(values, names, strict=True)]
        return pd.DataFrame(rows, columns=["text", "error"])

    pandas_udf: Any = F.pandas_udf  # its overloads know no schema as text
    # Called once for each value, wherever Spark would like to have it twice.
    decoded: Column = pandas_udf(run, "text STRING, error STRING").asNondeterministic()(value, schema)
    return decoded


def _row(
    value: bytes | None, name: bytes | None, described: Mapping[bytes, Described]
) -> tuple[str | None, str | None]:
    schema = None if name is None else described.get(bytes(name))
    if value is None or schema is None:
        return None, None
    return to_json(bytes(value), *schema)
