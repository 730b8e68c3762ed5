"""A store's credential, read again while a query runs, so that a renewed one needs no restart.

A query runs in a separate session, a copy that only its micro-batches see. An idle query writes to its
checkpoint before it has a batch. So a thread sets a renewed credential in the session that started the
query, and accesses the store. This access opens the store again for the whole driver (`jars/store`). Each
micro-batch sets the credential in the query's own session, whose jobs pass it to the executors.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from topiclake.config.storage import StorageSettings
from topiclake.storage import expiry, mount
from topiclake.storage.access import hadoop_settings, renewed_key
from topiclake.storage.failures import storage_errors

#: Interval in which the secrets are read again.
EVERY_SECONDS = 60

WriteBatch = Callable[[DataFrame, int], None]
_LOG = logging.getLogger(__name__)

#: By source: the settings that open it, if they were renewed.
_renewed: dict[str, Mapping[str, str]] = {}


def with_newest_credential(write_batch: WriteBatch, source: str) -> WriteBatch:
    """Return a function that writes a micro-batch with the newest credential, picklable for Spark Connect."""
    return partial(_write, write_batch, source)


def _write(write_batch: WriteBatch, source: str, records: DataFrame, batch_id: int) -> None:
    newest, conf, stamp = _renewed.get(source), records.sparkSession.conf, renewed_key(source)
    # A query that was started later has a newer credential from its start.
    if newest and int(newest[stamp]) > int(conf.get(stamp, "0") or 0):
        for key, value in newest.items():
            conf.set(key, value)
    write_batch(records, batch_id)


def follow(has_ended: Callable[[int], bool], spark: SparkSession, storage: StorageSettings) -> None:
    """Keep a store's credential up to date while a query runs, and warn before it ends.

    Args:
        has_ended: Waits for a number of seconds, or until the query ends, and returns whether it has ended.
        spark: The session that started it.
        storage: The store.
    """
    if storage.credentials:
        arguments = (has_ended, spark, storage, _stamp(spark, storage))
        name = f"credential of {storage.source}"
        threading.Thread(target=_follow, args=arguments, name=name, daemon=True).start()


def _follow(
    has_ended: Callable[[int], bool],
    spark: SparkSession,
    storage: StorageSettings,
    stamp: str | None,
) -> None:
    problem = ""
    settings: Mapping[str, str] = {}
    while not has_ended(EVERY_SECONDS):
        try:
            before, settings = settings, hadoop_settings(storage)
            expiry.remind(storage, settings)
            expiry.require_started(storage, settings)
            # One of several secrets may have been replaced, and the other one not yet.
            if settings == before or len(storage.credentials) == 1:
                mount.apply_credential(storage, settings, spark)
            if (now := _stamp(spark, storage)) != stamp:
                stamp = now
                _refresh(spark, storage, settings)
            problem = ""
        except Exception as error:  # noqa: BLE001 (an unavailable secret store must not end the query)
            previous, problem = problem, mount.reason(error)
            if problem != previous:
                _LOG.warning(
                    "the credential of %s is not renewed, and tried again: %s", storage.source, problem
                )


def _stamp(spark: SparkSession, storage: StorageSettings) -> str | None:
    """Return when a store's settings in a session changed, or None for a mount on Databricks."""
    return spark.conf.get(renewed_key(storage.source), None)


def _refresh(spark: SparkSession, storage: StorageSettings, settings: Mapping[str, str]) -> None:
    _renewed[storage.source] = {
        key: spark.conf.get(key) or "" for key in (*settings, renewed_key(storage.source))
    }
    with storage_errors(storage, storage.source):
        # Any access opens the store again; the checkpoint is then written with the renewed credential. This
        # folder usually does not exist, so that Spark has no files to list.
        try:
            _ = spark.read.text(f"{mount.resolve(storage, storage.source)}/_delta_log").schema
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
    _LOG.info("%s is opened with its renewed credential", storage.source)
