"""Transactions of Kafka that do not end: a consumer of committed records waits at the first one of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.streaming import StreamingQuery

from topiclake.config.kafka import KafkaSettings
from topiclake.config.pipeline import PipelineSettings
from topiclake.errors import KafkaError
from topiclake.kafka import offsets as kafka_offsets
from topiclake.streaming import progress

_LOG = logging.getLogger(__name__)
#: After how long a transaction is named, and how often Kafka is asked (s). A broker ends those that its own
#: clients have left after `transaction.max.timeout.ms`, 15 minutes by default.
STALLED_SECONDS, EVERY_SECONDS = 300, 60

#: By topic and partition the first offset of the oldest transaction that is open.
OpenTransactions = Mapping[tuple[str, int], int]


@dataclass
class Stalls:
    """Which partitions wait, and since when; each transaction is named once.

    Attributes:
        since: By topic, partition and offset: when it was seen first (s, of a monotonic clock).
        named: Those that were named.
    """

    since: dict[tuple[str, int, int], float] = field(default_factory=dict)
    named: set[tuple[str, int, int]] = field(default_factory=set)

    def update(self, transactions: OpenTransactions, now: float) -> list[tuple[str, int, int]]:
        """Return the topic, partition and offset of each transaction that is to be named now."""
        open_now = [(topic, partition, offset) for (topic, partition), offset in sorted(transactions.items())]
        self.since = {transaction: self.since.get(transaction, now) for transaction in open_now}
        stalled = {transaction for transaction, began in self.since.items() if now - began >= STALLED_SECONDS}
        new, self.named = sorted(stalled - self.named), stalled
        return new


def watch(query: StreamingQuery, settings: KafkaSettings, pipeline: PipelineSettings) -> None:
    """Log a warning for each transaction that keeps a query from its records for five minutes.

    Args:
        query: A query that was just started.
        settings: The broker; a consumer of uncommitted records waits for no transaction.
        pipeline: Its topics.
    """
    if settings.isolation_level == "read_committed":
        given = (query, settings, pipeline)
        threading.Thread(target=_watch, args=given, name=f"transactions of {query.name}", daemon=True).start()


def _watch(query: StreamingQuery, settings: KafkaSettings, pipeline: PipelineSettings) -> None:
    stalls = Stalls()
    while not progress.has_ended(query, EVERY_SECONDS):
        try:
            transactions = kafka_offsets.open_transactions(settings, pipeline)
        except KafkaError:
            # The query names a broker that is away.
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
