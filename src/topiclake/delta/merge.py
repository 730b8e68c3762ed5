"""MERGE of each batch into a table, once: the table keeps the number of the newest batch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.delta import catalog
from topiclake.delta import table as delta

#: Delta's settings for what its commands commit; writers have options of these names.
_COMMAND = "spark.databricks.delta.write."
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def merge_once(rows: DataFrame, path: str, keys: Sequence[str], *, writer: str, batch_id: int) -> None:
    """Merge a batch once: update the row with the same keys, or insert a new one. Null keys are equal.

    Args:
        rows: One row for each value of `keys`.
        path: Location of the table. A missing table is created, and new columns are added.
        keys: The columns that identify a row.
        writer: Name of the writer, whose batches arrive in the order of their numbers.
        batch_id: Number of the batch. Delta skips a batch that the table already has.
    """
    keys_match = [F.col(f"old.`{key}`").eqNullSafe(F.col(f"new.`{key}`")) for key in keys]
    delta.ensure_table(rows.sparkSession, path, delta.nullable(rows), {})
    with _committed_as(rows.sparkSession, writer, batch_id):
        (
            catalog.delta_table(rows.sparkSession, path)
            .alias("old")
            .merge(rows.alias("new"), reduce(Column.__and__, keys_match))
            .withSchemaEvolution()
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
            .execute()
        )


@contextmanager
def _committed_as(spark: SparkSession, writer: str, batch_id: int) -> Iterator[None]:
    """Make Delta's commands commit as batch `batch_id` of `writer`, or skip that batch.

    `spark` must be the session of the query, since these are settings of the whole session.
    """
    metadata = json.dumps({"writer": writer, "batch_id": batch_id})
    settings = {f"{_COMMAND}txnAppId": writer, f"{_COMMAND}txnVersion": str(batch_id), _METADATA: metadata}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)
