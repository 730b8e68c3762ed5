"""Protobuf's messages as rows: a column of structs, made in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from topiclake.formats.protobuf import message
from topiclake.formats.protobuf.message import Described


def decoded(value: Column, schema: Column, schemas: Mapping[bytes, Described], row: StructType) -> Column:
    """Decode `value BINARY`: message indexes, as Confluent has them, and a message; runs Python.

    Args:
        value: Null if it is not to be decoded.
        schema: The key in `schemas` of the schema that it claims to have, BINARY.
        schemas: The schemas that records name.
        row: The type of the rows.

    Returns:
        STRUCT<row, error STRING>: the message as a row, or why it is no message; both null for a null.
    """
    described, shape = dict(schemas), row.json()

    def run(values: pa.Array, names: pa.Array) -> pa.Array:
        return message.decoded(values, names, described, shape)

    arrow_udf: Any = F.arrow_udf  # its overloads know no struct
    result = StructType([StructField("row", row), StructField("error", StringType())])
    # Called once for each value, wherever Spark would like to have it twice.
    rows: Column = arrow_udf(run, result).asNondeterministic()(value, schema)
    return rows
