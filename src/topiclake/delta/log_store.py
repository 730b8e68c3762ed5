"""How Delta keeps the log of a table safe from a second driver."""

from __future__ import annotations

from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from topiclake.delta import driver_lock
from topiclake.errors import PlatformError
from topiclake.session import is_databricks

#: Delta's own for a folder and for S3 are safe within one driver; whoever sets them says that there is one.
_LOG_STORES = {
    "file": "io.topiclake.store.LinkedLogStore or io.delta.storage.HDFSLogStore",
    "s3a": "io.topiclake.store.ConditionalPutLogStore, io.delta.storage.S3DynamoDBLogStore "
    "or io.delta.storage.S3SingleDriverLogStore",
}
#: For one driver only; Spark's class loader knows the older names, too.
_OF_ONE_DRIVER = ("HDFSLogStore", "LocalLogStore", "S3SingleDriverLogStore")


def require_log_store(spark: SparkSession, path: str) -> None:
    """Check that Delta's log is kept so that a second driver cannot overwrite what this one commits.

    Where somebody chose a log store for one driver only, this process is it, on this machine, until it ends.

    Source: https://docs.delta.io/latest/delta-storage.html (S3: one driver by default)

    Raises:
        PlatformError: It is not, and nobody has said that there is one driver only; says what to set. Or
            there is another driver on this machine; names it.
    """
    # Elsewhere than on Databricks a plain path is a local folder, as it is for `storage.source`.
    scheme = urlsplit(path).scheme or "file"
    key = f"spark.delta.logStore.{scheme}.impl"
    if is_databricks() or scheme not in _LOG_STORES:
        return
    if store := spark.conf.get(key, None):
        if store.rpartition(".")[2] in _OF_ONE_DRIVER:
            safe = _LOG_STORES[scheme].partition(" ")[0].rstrip(",")
            driver_lock.take(
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
