"""Rows of a test as a DataFrame, without Python workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import StructType

from topiclake.local_frame import local_frame

#: Smaller rows become a part of the plan, and Spark then computes their expressions without generated code.
THRESHOLD = "spark.sql.execution.arrow.localRelationThreshold"


def local_rows(spark: SparkSession, rows: Iterable[object], schema: StructType | str) -> DataFrame:
    """As `createDataFrame`, which reads a list in Python workers, in each query again."""
    columns: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    values = list(rows)
    if not values:
        return local_frame(spark, [], columns)
    table = LocalDataToArrowConversion.convert(values, columns, False)
    spark.conf.set(THRESHOLD, "0b")
    try:
        return spark.createDataFrame(table, columns)
    finally:
        spark.conf.unset(THRESHOLD)
