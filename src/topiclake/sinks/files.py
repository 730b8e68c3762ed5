"""Streams into folders of Parquet files, each row once, and tables that list these files for each query.

Spark's own file sink writes them: `_spark_metadata` in the folder lists the valid files, so a file of a
killed task is never read. Nothing is renamed, which suits object stores.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, PlatformError, require_known_columns
from topiclake.session import FILE_LIST_CACHE_SIZE
from topiclake.sinks import parquet_folder
from topiclake.sinks.names import require_name
from topiclake.storage import mount
from topiclake.streaming import queries


def start_files(
    rows: DataFrame,
    settings: Settings,
    *,
    path: str,
    checkpoint_path: str,
    partition_by: Sequence[str],
    name: str = "files",
) -> StreamingQuery:
    """Start writing a stream into Parquet files, each row exactly once, with the pipeline's trigger.

    A micro-batch writes one file for each partition that it has rows of. Windows are written when they are
    closed, that is when the watermark has passed their end. Empty text in a partition column is read back as
    null.

    Args:
        rows: A streaming DataFrame; its output mode is `append`.
        settings: The trigger, the store and the pipeline's name.
        path: The folder; a new checkpoint needs a new folder.
        checkpoint_path: A dedicated folder.
        partition_by: Columns that become folders, such as `zip` and `day`, instead of columns of the files.
        name: Last part of the query's name, after the pipeline's name.

    Raises:
        ConfigError: A column is missing, or `partition_by` has no column, or all columns.
        StorageError: A folder cannot be used, is a Delta table, or holds another checkpoint's files.
        TopiclakeError: The unfinished batch of an earlier run failed.

    Example:
        >>> query = tl.start_files(
        ...     tl.read_values(spark, settings),
        ...     settings,
        ...     path="/mnt/datalake/by_sensor",
        ...     checkpoint_path="/mnt/datalake/checkpoints/by_sensor",
        ...     partition_by=["sensor"],
        ... )
        >>> tl.await_caught_up(query, "availableNow")
    """
    _require_columns(rows, partition_by)
    folder, location = (mount.resolve(settings.storage, each) for each in (path, checkpoint_path))
    for address in (folder, location):
        mount.require_writable(address)
    parquet_folder.require_own(rows.sparkSession, settings.storage, folder, location, key="path")
    # Otherwise each task writes a separate file into each partition.
    gathered = rows.repartition(*(F.col(delta.quoted(column)) for column in partition_by))
    writer = gathered.writeStream.queryName(f"{settings.name}_{name}").format("parquet")
    writer = writer.partitionBy(*partition_by).option("path", folder).option("checkpointLocation", location)
    return queries.start(writer, settings, rows.sparkSession, location)


def create_files_table(
    spark: SparkSession,
    settings: Settings,
    *,
    path: str,
    name: str,
    columns: StructType,
) -> DataFrame:
    """Create the table `name` over a folder of `start_files`, if it does not exist, and return it.

    Each query lists the files again, by `_spark_metadata`, so each session sees a new partition at once. The
    folder may still be empty. Dropping the table keeps the files.

    Args:
        spark: The session.
        settings: The store.
        path: The folder.
        name: Of the table, in the session's current schema.
        columns: The columns of the written rows. They are not inferred, so that the zip code "02108" stays
            text.

    Raises:
        ConfigError: The name is not valid, or another table has it.
        PlatformError: Spark was started with a setting that keeps lists of files.

    Example:
        >>> columns = tl.read_values(spark, settings).schema
        >>> files = tl.create_files_table(
        ...     spark, settings, path="/mnt/datalake/parquet", name="readings_files", columns=columns
        ... )
    """
    require_name(name)
    if spark.conf.get(FILE_LIST_CACHE_SIZE, None) != "0":
        raise PlatformError(
            f"Spark keeps the list of a table's files, and {name} would not show new partitions",
            f"start Spark with {FILE_LIST_CACHE_SIZE}=0, which topiclake.session.local_session does",
            table=name,
            setting=FILE_LIST_CACHE_SIZE,
        )
    folder = mount.resolve(settings.storage, path)
    if not spark.catalog.tableExists(name):
        # Over a folder with partitions Spark would drop the columns' types, and infer them for each query.
        spark.catalog.createTable(name, path=f"{folder}/_empty", source="parquet", schema=columns)
        spark.sql(f"ALTER TABLE `{name}` SET LOCATION {delta.literal(folder)}")
    elif (_location(spark, name), _types(spark.table(name).schema)) != (_plain(folder), _types(columns)):
        raise ConfigError(
            f"there is a table or view {name} of another folder, or with other columns than {path}",
            f"use another name, or run DROP TABLE {name}, which does not delete the files",
            table=name,
            path=path,
        )
    return spark.table(name)


def _require_columns(rows: DataFrame, partition_by: Sequence[str]) -> None:
    require_known_columns("partition_by", partition_by, rows.columns)
    if not 0 < len(partition_by) < len(rows.columns):
        columns = ", ".join(rows.columns)
        raise ConfigError(
            f"partition_by is {list(partition_by)}",
            f"use some, not all, of {columns}",
            partition_by=tuple(partition_by),
        )


def _location(spark: SparkSession, name: str) -> str:
    location = spark.sql(f"DESCRIBE TABLE EXTENDED `{name}`").where("col_name = 'Location'").collect()
    return _plain(location[0]["data_type"]) if location else ""


def _plain(path: str) -> str:
    """Return a folder's path for a comparison: Databricks writes `dbfs:` in front of some."""
    return path.removeprefix("dbfs:").rstrip("/")


def _types(columns: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in columns]
