"""Folders of Parquet files that Spark's file sink writes; `_spark_metadata` lists the valid files."""

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

    Spark's file sink skips batches whose numbers the folder has, even if another checkpoint wrote them.

    Args:
        spark: The session.
        lake: The storage.
        path: The folder, as Spark reads it.
        checkpoint_path: The checkpoint, as Spark reads it.
        key: The caller's name of the folder's path: `table_path` or `path`.

    Raises:
        StorageError: The folder is a Delta table, or has files of another checkpoint; or the folder or the
            checkpoint cannot be used.
    """
    with storage_errors(lake, checkpoint_path):
        is_new = checkpoint.last_planned(spark, checkpoint_path) == checkpoint.NONE
    with storage_errors(lake, path):
        is_table, is_used = delta.is_table(spark, path), is_new and has_files(spark, path)
    if is_table:
        raise StorageError(
            f"{path} is a Delta table",
            f"set another {key} for Parquet files",
            path=path,
            key=key,
            reason="delta_table",
        )
    if is_used:
        raise StorageError(
            f"{path} holds files of another checkpoint than {checkpoint_path}, which is new: Spark would "
            "take its first batches for written, and skip them",
            f"set the checkpoint_path of those files, or a new {key}",
            path=path,
            key=key,
            checkpoint=checkpoint_path,
            reason="files",
        )


def has_files(spark: SparkSession, path: str) -> bool:
    """Return whether there are valid Parquet files at `path`."""
    try:
        # Spark Connect looks for the path only when it needs the columns.
        _ = spark.read.parquet(path).schema
    except AnalysisException as error:
        if re.search("PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA", str(error)):
            return False
        raise
    return True
