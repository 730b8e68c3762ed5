"""Rows of a test as a DataFrame, without Python workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import StructType

from topiclake.local_frame import local_frame

#: Smaller rows become a part of the plan, of which Spark computes what it can before it executes the plan.
THRESHOLD = "spark.sql.execution.arrow.localRelationThreshold"


def local_rows(spark: SparkSession, rows: Iterable[object], schema: StructType | str) -> DataFrame:
    """As `createDataFrame`, which reads a list in Python workers, in each query again."""
    columns: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    values = list(rows)
    spark.conf.set(THRESHOLD, "0b")
    try:
        if not values:
            return local_frame(spark, [], columns)
        return spark.createDataFrame(LocalDataToArrowConversion.convert(values, columns, False), columns)
    finally:
        spark.conf.unset(THRESHOLD)
