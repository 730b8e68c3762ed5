"""Check that Delta's log store protects a table from a second driver."""

from __future__ import annotations

from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from topiclake.delta import catalog, driver_lock
from topiclake.errors import PlatformError
from topiclake.session import is_databricks

#: Delta's defaults for local folders and for S3 are safe for one driver only. Setting one of them
#: explicitly declares that only one driver writes.
_LOG_STORES = {
    "file": "io.topiclake.store.LinkedLogStore or io.delta.storage.HDFSLogStore",
    "s3a": "io.topiclake.store.ConditionalPutLogStore, io.delta.storage.S3DynamoDBLogStore "
    "or io.delta.storage.S3SingleDriverLogStore",
}
#: Catalogs may name folders of S3 in the way of AWS.
_LOG_STORES["s3"] = _LOG_STORES["s3a"]
#: Log stores that are safe for one driver only. Spark's class loader knows the older names, too.
_OF_ONE_DRIVER = ("HDFSLogStore", "LocalLogStore", "S3SingleDriverLogStore")


def require_log_store(spark: SparkSession, *locations: str) -> None:
    """Check that the log store keeps a second driver from overwriting commits to the tables at `locations`.

    A catalog may have a table and its quarantine in different stores.

    If a log store for one driver is configured, this process locks the table on this machine until it ends.

    Source: https://docs.delta.io/latest/delta-storage.html (S3: one driver by default)

    Raises:
        PlatformError: No log store is configured; the error names the setting. Or another driver on this
            machine writes the table; the error names its process.
        StorageError: A location is a name, and its schema does not exist.
    """
    for location in locations:
        _require_safe(spark, location)


def _require_safe(spark: SparkSession, location: str) -> None:
    path = location if is_databricks() else catalog.folder(spark, location)
    # Outside Databricks a path without a scheme is a local folder, as for `storage.source`.
    scheme = urlsplit(path).scheme or "file"
    key = f"spark.delta.logStore.{scheme}.impl"
    if is_databricks() or scheme not in _LOG_STORES:
        return
    if store := spark.conf.get(key, None):
        if store.rpartition(".")[2] in _OF_ONE_DRIVER:
            safe = _LOG_STORES[scheme].partition(" ")[0].rstrip(",")
            driver_lock.acquire(
                path, f"{key}={store} is safe for one driver only", f"set {key} to {safe} in both"
            )
        return
    raise PlatformError(
        f"{path} is not safe from a second driver: by default Delta lets it overwrite this one's commits",
        f"set {key} to {_LOG_STORES[scheme]} (the last is for one driver only); outside Databricks "
        "topiclake.session.local_session sets it",
        path=path,
        key=key,
    )
