"""What the JVM that decodes must have been started with."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from topiclake import driver_lock
from topiclake.errors import PlatformError
from topiclake.session import AVRO_LIMITS, is_databricks, jvm_options

#: Avro's own limit where none is set: all that Java can hold.
_NO_LIMIT = 2**31 - 8
#: Delta's own for a folder and for S3 are safe within one driver; whoever sets them says that there is one.
_LOG_STORES = {
    "file": "io.topiclake.store.LinkedLogStore or io.delta.storage.HDFSLogStore",
    "s3a": "io.topiclake.store.ConditionalPutLogStore, io.delta.storage.S3DynamoDBLogStore "
    "or io.delta.storage.S3SingleDriverLogStore",
}
#: For one driver only; Spark's class loader knows the older names, too.
_OF_ONE_DRIVER = ("HDFSLogStore", "LocalLogStore", "S3SingleDriverLogStore")
_CONF = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def require_avro_limits(spark: SparkSession) -> None:
    """Check that the JVM bounds what one Avro record may claim; else six bytes can end it.

    Raises:
        PlatformError: It does not; says which settings are missing.
    """
    try:
        found = _properties(spark)
    except PySparkException:
        # Databricks' shared clusters and serverless forbid `java_method`; the settings are told to anyone.
        text = " ".join(spark.conf.get(key, "") or "" for key in _CONF)
        found = dict(re.findall(r"-D([^\s=]+)=([^\s\"']*)", text))
    missing = sorted(name for name in AVRO_LIMITS if not _is_limit(found.get(name, "")))
    if missing:
        where = "the cluster's Spark config" if is_databricks() else "spark-defaults.conf or --conf"
        lines = ", ".join(f"{key} {jvm_options()}" for key in _CONF)
        raise PlatformError(
            f"the JVM has no {', '.join(_told(name, found) for name in missing)}: "
            "a record of six bytes could end it",
            f"put into {where}: {lines}; outside Databricks topiclake.session.local_session sets it",
            properties=tuple(missing),
        )


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


def _is_limit(value: str) -> bool:
    """Tell whether Avro takes it for a limit: it ignores, with a warning, what is no number or below 0."""
    return value.isdecimal() and 0 < int(value) < _NO_LIMIT


def _told(name: str, found: dict[str, str]) -> str:
    return f"{name} (it is {found[name]!r})" if name in found else name


def _properties(spark: SparkSession) -> dict[str, str]:
    """Ask a JVM that runs tasks for its properties."""
    asked = [
        F.expr(f"java_method('java.lang.System', 'getProperty', '{name}')").alias(str(place))
        for place, name in enumerate(AVRO_LIMITS)
    ]
    row = spark.range(1).select(*asked).collect()[0]
    # Spark writes Java's null as the text "null".
    return {name: value for name, value in zip(AVRO_LIMITS, row, strict=True) if value not in (None, "null")}
