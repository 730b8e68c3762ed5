"""Rows of this process as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


def local_frame(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: StructType | str) -> DataFrame:
    """Return `rows` as a DataFrame that the JVM reads by itself.

    `createDataFrame` with a list reads the rows in Python workers, in each query again. The first worker of a
    session starts within seconds, and each further query costs some tenths of a second.

    Args:
        spark: The session.
        rows: Each row's values, in the order of the columns; a time has its zone.
        schema: The columns, also as DDL.
    """
    columns: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    values = list(rows)
    arrays = [pa.array([row[place] for row in values]) for place in range(len(columns))]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, names=columns.names), columns)
