"""MERGE of each batch into a table, once: the table keeps the number of the newest batch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from topiclake.delta import catalog
from topiclake.delta import table as delta
from topiclake.session import is_connect

#: Delta's settings for what its commands commit; writers have options of these names.
_COMMAND = "spark.databricks.delta.write."
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_SORTED_JOINS = "spark.sql.join.preferSortMergeJoin"


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
    actions = ("WHEN MATCHED THEN UPDATE SET *", "WHEN NOT MATCHED THEN INSERT *")
    execute_once(rows, path, keys_match, actions, writer=writer, batch_id=batch_id, commit={})


def execute_once(
    rows: DataFrame,
    path: str,
    condition: str,
    actions: Sequence[str],
    *,
    writer: str | None,
    batch_id: int,
    commit: Mapping[str, object],
) -> int:
    """Execute one MERGE, unless `writer` has committed batch `batch_id` already. New columns are added.

    If another writer was faster, the MERGE is repeated on the newest version.

    Args:
        rows: The source, which is `new` in the conditions; the table is `old`.
        path: Location of the table, which exists.
        condition: The condition in SQL that makes an old and a new row one.
        actions: The clauses `WHEN …` in SQL.
        writer: Name of the writer. None: the MERGE is executed in any case, and has no metadata. A session
            that others use at the same time allows nothing else.
        batch_id: Number of the batch.
        commit: Metadata that the table's history keeps as JSON, with writer and batch.

    Returns:
        The number of rows that it has changed; 0 if the table has the batch already.
    """
    spark = rows.sparkSession
    with _committed_as(spark, writer, batch_id, commit), _joined_by_hash(spark):
        return delta.retry_conflicts(lambda: catalog.merge(path, rows, condition, *actions, evolves=True))


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


@contextmanager
def _joined_by_hash(spark: SparkSession) -> Iterator[None]:
    """Make Spark hash the rows of a batch, instead of sorting all rows of the files that a MERGE rewrites.

    Rows that may not fit into the memory of a task are sorted anyway. A user's own value of the setting
    stays. Serverless compute refuses the setting.
    """
    if is_connect(spark) or spark.conf.get(_SORTED_JOINS, None) is not None:
        yield
        return
    spark.conf.set(_SORTED_JOINS, "false")
    try:
        yield
    finally:
        spark.conf.unset(_SORTED_JOINS)
