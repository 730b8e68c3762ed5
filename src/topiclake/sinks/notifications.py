"""Notifications of problems and recoveries: to the log and to a webhook, each change once.

A Delta table stores the last notification of each subject. A micro-batch sends notifications of changes only:
a lasting problem is reported once, and a recovery only after a problem. If a batch is repeated, its
notifications are already in the table.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.local_frame import local_frame
from topiclake.sinks.start import table_of_sink
from topiclake.sinks.webhook import Webhook, message
from topiclake.streaming.sink import Sink, SinkBatch

#: Columns of the table; `id` is the same when a notification is sent again.
NOTIFICATIONS = (
    "subject STRING, is_wrong BOOLEAN, since TIMESTAMP, text STRING, id STRING, sent_at TIMESTAMP, "
    "batch_id BIGINT"
)
#: Most notifications of one message.
MAX_PER_MESSAGE = 50
_KINDS = {True: "wrong", False: "recovered"}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class NotificationBatches(Sink):
    """Reports changes since the last notifications; can be pickled, for Spark Connect.

    Attributes:
        pipeline: Its name.
        table: The table of sent notifications, as Spark reads it.
        webhook: The webhook that notifications are sent to, in addition to the log.
        notifications: Function that makes `subject, is_wrong, since, text` of a batch's rows.
    """

    pipeline: str
    table: str
    webhook: Webhook | None
    notifications: Callable[[DataFrame], DataFrame]

    def destination(self) -> str:
        """Return the table of sent notifications."""
        return self.table

    def write(self, rows: DataFrame, batch: SinkBatch) -> None:
        """Send the notifications of a batch, then store them; a crash in between sends them again."""
        changed = [
            self._notification(row.asDict()) for row in self._changed(self.notifications(rows)).collect()
        ]
        if not changed:
            return
        notifications = sorted(changed, key=lambda notification: notification["subject"])
        for notification in notifications:
            _LOG.warning("pipeline %s: %s: %s", self.pipeline, notification["kind"], notification["text"])
        if self.webhook is not None:
            for first in range(0, len(notifications), MAX_PER_MESSAGE):
                self.webhook.send(message(self.pipeline, notifications[first : first + MAX_PER_MESSAGE]))
        self._store(rows.sparkSession, notifications, batch)

    def _changed(self, now: DataFrame) -> DataFrame:
        last = last_notifications(now.sparkSession, self.table)
        last = last.select("subject", F.col("is_wrong").alias("was"))
        was = F.coalesce("was", F.lit(False))
        since = F.unix_micros("since").alias("micros")
        changed = now.join(last, "subject", "left").where(F.col("is_wrong") != was)
        return changed.select("subject", "is_wrong", since, "text")

    def _notification(self, row: dict[str, Any]) -> dict[str, Any]:
        kind, micros = _KINDS[row["is_wrong"]], row["micros"]
        since = None if micros is None else _EPOCH + timedelta(microseconds=micros)
        identity = json.dumps([self.pipeline, row["subject"], kind, micros])
        return {
            "id": sha256(identity.encode()).hexdigest()[:32],
            "subject": row["subject"],
            "kind": kind,
            "since": since and since.isoformat(),
            "text": row["text"],
        }

    def _store(self, spark: SparkSession, notifications: list[dict[str, Any]], batch: SinkBatch) -> None:
        columns = "id STRING, subject STRING, kind STRING, since STRING, text STRING"
        sent = local_frame(spark, [tuple(each.values()) for each in notifications], columns)
        rows = sent.select(
            "subject",
            (F.col("kind") == _KINDS[True]).alias("is_wrong"),
            F.col("since").cast("timestamp"),
            "text",
            "id",
            F.current_timestamp().alias("sent_at"),
            F.lit(batch.number).cast("bigint").alias("batch_id"),
        )
        delta.append_once(rows, self.table, writer=batch.query_id, batch_id=batch.number, commit={})


def notify_batches(
    settings: Settings,
    spark: SparkSession,
    *,
    path: str,
    notifications: Callable[[DataFrame], DataFrame],
) -> NotificationBatches:
    """Return a sink of `start_sinks` that notifies people of problems and recoveries.

    Each change is reported once: in the driver's log, and in a message to the webhook, if there is one
    (docs/sinks.md). After a crash between sending and storing, it is sent once more, with the same `id`.

    Args:
        settings: Its section `webhook`, the store and the pipeline's name.
        spark: The session.
        path: The path or the name of the table of sent notifications, with the columns
            `NOTIFICATIONS`. The first notification creates it.
        notifications: Function that makes `subject STRING, is_wrong BOOLEAN, since TIMESTAMP, text STRING`
            of a micro-batch's rows, one row per subject, such as `camera_notifications`.

    Raises:
        ConfigError: The webhook's secret is not an address.
        PlatformError: The table's log is not safe from a second driver.
        StorageError: The path cannot be used.
        NotificationError: Within a micro-batch: the webhook does not accept a message. Nothing is lost: the
            next start repeats the batch.

    Example:
        >>> sink = tl.notify_batches(
        ...     settings,
        ...     spark,
        ...     path="/mnt/datalake/notices",
        ...     notifications=lambda rows: rows.selectExpr(
        ...         "sensor AS subject", "celsius > 80 AS is_wrong", "at AS since", "'too hot' AS text"
        ...     ),
        ... )
    """
    table, webhook = table_of_sink(spark, settings, path), Webhook.from_settings(settings)
    return NotificationBatches(settings.name, table, webhook, notifications)


def last_notifications(spark: SparkSession, destination: str) -> DataFrame:
    """Return the last notification of each subject; columns `NOTIFICATIONS`."""
    if not delta.is_table(spark, destination):
        return local_frame(spark, [], NOTIFICATIONS)
    newest = F.max_by(F.struct("*"), "batch_id").alias("newest")
    return delta.read(spark, destination).groupBy(F.col("subject").alias("of")).agg(newest).select("newest.*")
