"""MERGE of each batch into a table, once: the table keeps the number of the newest batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession

from topiclake.config import table_name
from topiclake.delta import catalog
from topiclake.delta import table as delta
from topiclake.session import is_connect

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
        batch_id: Number of the batch. Delta skips a batch that the table already has, but on Spark Connect.
    """
    keys_match = " AND ".join(f"old.{delta.quoted(key)} <=> new.{delta.quoted(key)}" for key in keys)
    delta.ensure_table(rows.sparkSession, path, delta.nullable(rows), {})
    with _committed_as(rows.sparkSession, writer, batch_id, {}):
        delta.retry_conflicts(
            lambda: catalog.merge(
                path,
                rows,
                keys_match,
                "WHEN MATCHED THEN UPDATE SET *",
                "WHEN NOT MATCHED THEN INSERT *",
                evolves=True,
            )
        )


def execute_once(
    rows: DataFrame,
    path: str,
    condition: Column,
    clauses: Callable[[DeltaMergeBuilder], DeltaMergeBuilder],
    *,
    writer: str | None,
    batch_id: int,
    commit: Mapping[str, object],
) -> None:
    """Execute one MERGE, unless `writer` has committed batch `batch_id` already. New columns are added.

    If another writer was faster, the MERGE is repeated on the newest version.

    Args:
        rows: The source, with the alias `new`; the table has the alias `old`.
        path: Location of the table, which exists.
        condition: The rows that match.
        clauses: Adds the clauses of the MERGE.
        writer: Name of the writer. None: the MERGE is executed in any case, and has no metadata. A session
            that others use at the same time allows nothing else.
        batch_id: Number of the batch.
        commit: Metadata that the table's history keeps as JSON, with writer and batch.
    """
    spark = rows.sparkSession

    def execute() -> None:
        merge = _delta_table(spark, path).alias("old").merge(rows.alias("new"), condition)
        clauses(merge.withSchemaEvolution()).execute()

    with _committed_as(spark, writer, batch_id, commit):
        delta.retry_conflicts(execute)


def _delta_table(spark: SparkSession, location: str) -> DeltaTable:
    if table_name.is_name(location):
        return DeltaTable.forName(spark, table_name.quoted(location))
    return DeltaTable.forPath(spark, location)


@contextmanager
def _committed_as(
    spark: SparkSession, writer: str | None, batch_id: int, commit: Mapping[str, object]
) -> Iterator[None]:
    """Make Delta's commands commit as batch `batch_id` of `writer`, or skip that batch.

    `spark` must be the session of the query, since these are settings of the whole session. On Spark Connect
    all queries share one session, and serverless compute refuses the settings. There Delta merges a repeated
    batch again, which changes no row, because a writer repeats only its newest batch.
    """
    if writer is None or is_connect(spark):
        yield
        return
    metadata = json.dumps({"writer": writer, "batch_id": batch_id} | dict(commit))
    settings = {f"{_COMMAND}txnAppId": writer, f"{_COMMAND}txnVersion": str(batch_id), _METADATA: metadata}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)
