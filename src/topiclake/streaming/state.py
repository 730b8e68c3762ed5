"""State store settings of streams with windows, joins and counts, for small clusters."""

from __future__ import annotations

from pyspark.sql import SparkSession

from topiclake.config.settings import Settings
from topiclake.session import is_databricks

_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PREFIX = "spark.sql.streaming.stateStore."


def set_state(spark: SparkSession, settings: Settings) -> None:
    """Set RocksDB as the state store of all streams that this session starts from now on.

    A checkpoint keeps its state store and its number of partitions. Later starts use those, whatever is set.
    On Databricks only the partitions are set, since the runtime uses RocksDB by default from 17.3 on
    (https://learn.microsoft.com/azure/databricks/structured-streaming/rocksdb-state-store).

    Args:
        spark: The session.
        settings: The configuration, with its section `state`.

    Example:
        >>> tl.set_state(spark, settings)
    """
    state, conf = settings.state, {}
    if state.partitions is not None:
        conf["spark.sql.shuffle.partitions"] = str(state.partitions)
    if not is_databricks():
        conf |= {
            f"{_PREFIX}providerClass": _PROVIDER,
            # Each batch writes only its changes to the checkpoint, not the whole store.
            f"{_PREFIX}rocksdb.changelogCheckpointing.enabled": "true",
            # One limit for all stores of an executor, in addition to the JVM's memory. Without it, their
            # memory is unlimited.
            f"{_PREFIX}rocksdb.boundedMemoryUsage": "true",
            f"{_PREFIX}rocksdb.maxMemoryUsageMB": str(state.memory_mb),
        }
    for key, value in conf.items():
        spark.conf.set(key, value)
