"""MERGE of a batch into a table, once: the table keeps the number of the newest batch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.delta import table as delta

#: Delta's settings for what its commands commit; writers have options of these names.
_COMMAND = "spark.databricks.delta.write."
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def merge_once(rows: DataFrame, path: str, keys: Sequence[str], *, writer: str, batch_id: int) -> None:
    """Let each row take the place of the one with the same keys, null among them, or come new; once a batch.

    Args:
        rows: One row for each value of `keys`.
        path: The table, as Spark reads it; made where it is missing, and given new columns.
        keys: The columns that tell rows apart.
        writer: Names the writer; its batches come in the order of their numbers.
        batch_id: The number of the batch. A batch that the table has is skipped.
    """
    same = [F.col(f"old.`{key}`").eqNullSafe(F.col(f"new.`{key}`")) for key in keys]
    delta.ensure_table(rows.sparkSession, path, delta.nullable(rows), {})
    with _committed_as(rows.sparkSession, writer, batch_id):
        (
            DeltaTable.forPath(rows.sparkSession, path)
            .alias("old")
            .merge(rows.alias("new"), reduce(Column.__and__, same))
            .withSchemaEvolution()
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
            .execute()
        )


@contextmanager
def _committed_as(spark: SparkSession, writer: str, batch_id: int) -> Iterator[None]:
    """Let Delta's commands commit as batch `batch_id` of `writer`, or skip it; in the query's own session."""
    metadata = json.dumps({"writer": writer, "batch_id": batch_id})
    settings = {f"{_COMMAND}txnAppId": writer, f"{_COMMAND}txnVersion": str(batch_id), _METADATA: metadata}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)
