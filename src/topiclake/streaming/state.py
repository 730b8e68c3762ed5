"""How streams with windows, joins and counts keep their state, set for small clusters."""

from __future__ import annotations

from pyspark.sql import SparkSession

from topiclake.config.settings import Settings
from topiclake.session import is_databricks

_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PREFIX = "spark.sql.streaming.stateStore."


def set_state(spark: SparkSession, settings: Settings) -> None:
    """Set that the streams which this session starts from now on keep their state in RocksDB.

    A checkpoint keeps the store and the number of partitions that it began with: a later start with others
    goes on with those. On Databricks only the partitions are set: there RocksDB is the runtime's own, from
    17.3 on (https://learn.microsoft.com/azure/databricks/structured-streaming/rocksdb-state-store).

    Args:
        spark: The session.
        settings: The configuration; its section `state`.

    Example:
        >>> tl.set_state(spark, settings)
    """
    state, conf = settings.state, {}
    if state.partitions is not None:
        conf["spark.sql.shuffle.partitions"] = str(state.partitions)
    if not is_databricks():
        conf |= {
            f"{_PREFIX}providerClass": _PROVIDER,
            # What has changed goes to the checkpoint with each batch, not the whole store.
            f"{_PREFIX}rocksdb.changelogCheckpointing.enabled": "true",
            # One limit for all stores of an executor, beside the JVM's memory; else each takes what it likes.
            f"{_PREFIX}rocksdb.boundedMemoryUsage": "true",
            f"{_PREFIX}rocksdb.maxMemoryUsageMB": str(state.memory_mb),
        }
    for key, value in conf.items():
        spark.conf.set(key, value)
