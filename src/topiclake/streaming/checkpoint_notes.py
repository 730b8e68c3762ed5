"""Notes of Topiclake in a checkpoint: lines of JSON in `topiclake/<name>`, one file for each append."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession

from topiclake.local_frame import local_frame

_Content = TypeVar("_Content")

#: Option for `jars/store` on S3: a single file needs no rename.
_COMMITTED_AT_ONCE = "topiclake.committed.at.once"


def path(checkpoint: str, name: str) -> str:
    """Return the folder of the notes called `name`."""
    return f"{checkpoint}/topiclake/{name}"


def read_if_exists(read: Callable[[], _Content]) -> _Content | None:
    """Return what `read` reads with Spark, or None if the path does not exist."""
    try:
        content = read()
        if isinstance(content, DataFrame):
            # Spark Connect looks for the path only when it needs the columns.
            _ = content.schema
        return content
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None


def read(spark: SparkSession, checkpoint: str, name: str, schema: str) -> list[Row]:
    """Return the notes called `name`, with the columns of the DDL `schema`; empty without notes."""
    # A line that a full disk truncated belongs to a start that failed.
    lines = spark.read.schema(schema).option("mode", "DROPMALFORMED")
    return read_if_exists(lambda: lines.json(path(checkpoint, name)).collect()) or []


def append(
    spark: SparkSession, checkpoint: str, name: str, rows: Iterable[tuple[Any, ...]], schema: str
) -> None:
    """Add notes; write no file if `rows` is empty."""
    if notes := list(rows):
        one_file = local_frame(spark, notes, schema).coalesce(1)
        one_file.write.mode("append").option(_COMMITTED_AT_ONCE, "true").json(path(checkpoint, name))
