"""Open transactions of Kafka: a consumer of committed records waits at the first one in each partition."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.streaming import StreamingQuery

from topiclake.config.kafka import KafkaSettings
from topiclake.config.pipeline import PipelineSettings
from topiclake.errors import KafkaError, LoginError
from topiclake.kafka import offsets as kafka_offsets
from topiclake.streaming import progress

_LOG = logging.getLogger(__name__)
#: Age at which an open transaction is logged, and interval of the checks (s). A broker aborts a transaction
#: that its client has abandoned after `transaction.max.timeout.ms` at the latest, 15 minutes by default.
STALLED_SECONDS, EVERY_SECONDS = 300, 60

#: By topic and partition, the first offset of the oldest open transaction.
OpenTransactions = Mapping[tuple[str, int], int]


@dataclass
class Stalls:
    """Open transactions and the time since when each is open; each transaction is logged once.

    Attributes:
        since: By topic, partition and offset, the time at which it was first seen (s, monotonic clock).
        logged: The transactions that were logged.
    """

    since: dict[tuple[str, int, int], float] = field(default_factory=dict)
    logged: set[tuple[str, int, int]] = field(default_factory=set)

    def update(self, transactions: OpenTransactions, now: float) -> list[tuple[str, int, int]]:
        """Return the topic, partition and offset of each transaction that must be logged now."""
        open_now = [(topic, partition, offset) for (topic, partition), offset in sorted(transactions.items())]
        self.since = {transaction: self.since.get(transaction, now) for transaction in open_now}
        stalled = {transaction for transaction, began in self.since.items() if now - began >= STALLED_SECONDS}
        new, self.logged = sorted(stalled - self.logged), stalled
        return new


def watch(query: StreamingQuery, settings: KafkaSettings, pipeline: PipelineSettings) -> None:
    """Log a warning for each transaction that blocks a query for five minutes.

    Args:
        query: A query that was just started.
        settings: The broker. A consumer of uncommitted records does not wait for transactions.
        pipeline: The topics of the query.
    """
    if settings.isolation_level == "read_committed":
        arguments = (query, settings, pipeline)
        threading.Thread(
            target=_watch, args=arguments, name=f"transactions of {query.name}", daemon=True
        ).start()


def _watch(query: StreamingQuery, settings: KafkaSettings, pipeline: PipelineSettings) -> None:
    stalls = Stalls()
    while not progress.has_ended(query, EVERY_SECONDS):
        try:
            transactions = kafka_offsets.open_transactions(settings, pipeline)
        except (KafkaError, LoginError):
            # The query itself reports an unavailable broker.
            continue
        for topic, partition, offset in stalls.update(transactions, time.monotonic()):
            _LOG.warning(
                "query %s: a transaction of Kafka that began at offset %s of topic %s, partition %s, has "
                "been open for %s s, and no later record of the partition is read until it ends; try: "
                "kafka-transactions.sh find-hanging, or isolation.level: read_uncommitted in kafka.consumer",
                query.name,
                offset,
                topic,
                partition,
                STALLED_SECONDS,
            )
