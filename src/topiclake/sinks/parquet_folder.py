"""Folders that Spark's file sink writes: Parquet files, of which `_spark_metadata` says which count."""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from topiclake.config.storage import StorageSettings
from topiclake.delta import table as delta
from topiclake.errors import StorageError
from topiclake.storage.failures import storage_errors
from topiclake.streaming import checkpoint


def require_own(
    spark: SparkSession, lake: StorageSettings, path: str, checkpoint_path: str, *, key: str
) -> None:
    """Check that a new checkpoint has a new folder.

    Spark's file sink skips batches whose numbers are there, also where they were another checkpoint's.

    Args:
        spark: The session.
        lake: The storage.
        path: The folder, as Spark reads it.
        checkpoint_path: The checkpoint, as Spark reads it.
        key: What the folder is called by who named it: `table_path`, `path`.

    Raises:
        StorageError: There is a Delta table, or files of another checkpoint; or one of both cannot be
            used.
    """
    with storage_errors(lake, checkpoint_path):
        is_new = checkpoint.last_planned(spark, checkpoint_path) == checkpoint.NONE
    with storage_errors(lake, path):
        is_table, is_used = delta.is_table(spark, path), is_new and has_files(spark, path)
    if is_table:
        raise StorageError(
            f"{path} is a Delta table",
            f"another {key} for Parquet files",
            path=path,
            key=key,
            reason="delta_table",
        )
    if is_used:
        raise StorageError(
            f"{path} holds files of another checkpoint than {checkpoint_path}, which is new: Spark would "
            "take its first batches for written, and skip them",
            f"the checkpoint_path of those files, or a new {key}",
            path=path,
            key=key,
            checkpoint=checkpoint_path,
            reason="files",
        )


def has_files(spark: SparkSession, path: str) -> bool:
    """Return whether there are Parquet files at `path`, of those that count."""
    try:
        spark.read.parquet(path)
    except AnalysisException as error:
        if re.search("PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA", str(error)):
            return False
        raise
    return True
