"""Topiclake's own notes in a checkpoint: lines of JSON in `topiclake/<name>`, one file for each append."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

#: For `jars/store` on S3: one file needs no renames.
_AT_ONCE = "topiclake.committed.at.once"


def path(checkpoint: str, name: str) -> str:
    """Return the folder of the notes called `name`."""
    return f"{checkpoint}/topiclake/{name}"


def read(spark: SparkSession, checkpoint: str, name: str, schema: str) -> list[Row]:
    """Return the notes called `name`, columns as in the DDL `schema`; none where nothing was noted."""
    try:
        # A line that a full disk cut off is of a start that failed.
        lines = spark.read.schema(schema).option("mode", "DROPMALFORMED")
        return lines.json(path(checkpoint, name)).collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []


def append(
    spark: SparkSession, checkpoint: str, name: str, rows: Iterable[tuple[Any, ...]], schema: str
) -> None:
    """Add notes; no file where `rows` is empty."""
    if notes := list(rows):
        one_file = spark.createDataFrame(notes, schema).coalesce(1)
        one_file.write.mode("append").option(_AT_ONCE, "true").json(path(checkpoint, name))
