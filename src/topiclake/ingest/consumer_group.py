"""Offsets of a Kafka consumer group, committed after each micro-batch, so that Kafka's tools show the lag.

Topiclake does not read them: a query continues from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import uuid4

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.error import KafkaError as ClientError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from topiclake.errors import KafkaError
from topiclake.ingest import paused_topics
from topiclake.kafka.client import TIMEOUT_SECONDS
from topiclake.streaming.batch_hooks import Backoff, CommittedBatch
from topiclake.streaming.checkpoint import Offsets

_COMING = (
    ClientError.NOT_COORDINATOR,
    ClientError.COORDINATOR_LOAD_IN_PROGRESS,
    ClientError.COORDINATOR_NOT_AVAILABLE,
)


@dataclass
class _State:
    """State of one start of a query, kept between batches."""

    admin: AdminClient
    pause: Backoff = field(default_factory=Backoff)


#: By start of a query, in the process that runs the micro-batches.
_states: dict[str, _State] = {}


@dataclass(frozen=True)
class GroupCommit:
    """Commits the end of each written batch to a consumer group; picklable, for Spark Connect.

    Attributes:
        group: The group's id.
        client: Settings of a confluent-kafka client.
        ledger: Location of the table of paused ranges; None if the query has one topic.
        start: Id of one start of the query.
    """

    group: str
    client: Mapping[str, Any] = field(repr=False)
    ledger: str | None = None
    start: str = field(default_factory=lambda: uuid4().hex)

    @property
    def action(self) -> str:
        """Name of the action, for the log."""
        return f"committing offsets of the consumer group {self.group}"

    def begin(self) -> None:
        """Do nothing before a batch."""

    def __call__(self, batch: CommittedBatch) -> None:
        """Commit the end offsets of the batch.

        Raises:
            KafkaError: The broker refuses the commit.
        """
        end = batch.end
        if self.ledger is not None:
            end = written_offsets(end, _waiting(batch, self.ledger))
        end_offsets = [
            TopicPartition(topic, partition, offset)
            for topic, offsets in end.items()
            for partition, offset in offsets.items()
        ]
        if not end_offsets:
            return
        if self.start not in _states:
            _states[self.start] = _State(AdminClient(dict(self.client)))
        state = _states[self.start]
        state.pause.check()
        tries = Retrying(
            retry=retry_if_exception_type(NoCoordinatorError),
            wait=wait_fixed(0.2),
            stop=stop_after_delay(TIMEOUT_SECONDS),
            reraise=True,
        )
        try:
            tries(_commit, state.admin, self.group, end_offsets)
        except KafkaError as error:
            state.pause.begin(error)
            raise
        state.pause.end()

    def close(self) -> None:
        """Discard the client."""
        _states.pop(self.start, None)


def _commit(admin: AdminClient, group: str, end_offsets: list[TopicPartition]) -> None:
    request = ConsumerGroupTopicPartitions(group, end_offsets)
    try:
        answers = admin.alter_consumer_group_offsets([request], request_timeout=TIMEOUT_SECONDS)
        result = answers[group].result(TIMEOUT_SECONDS + 1)
    except KafkaException as error:
        raise _refused(group, error.args[0]) from None
    for partition in result.topic_partitions:
        if partition.error is not None:
            raise _refused(
                group, partition.error, f" (topic {partition.topic}, partition {partition.partition})"
            )


def written_offsets(end: Offsets, waiting: Offsets) -> Offsets:
    """Return the offsets up to which topics are written, since paused topics are read further."""
    return {
        topic: {
            partition: min(offset, waiting.get(topic, {}).get(partition, offset))
            for partition, offset in offsets.items()
        }
        for topic, offsets in end.items()
    }


def _waiting(batch: CommittedBatch, ledger: str) -> Offsets:
    """Return the first missed offset of each partition of a paused topic."""
    return {
        topic: {partition: first for partition, (first, _) in paused_topics.spans_of(rows).items()}
        for topic, rows in paused_topics.paused(batch.spark, ledger).items()
    }


class NoCoordinatorError(KafkaError):
    """The group has no coordinator yet, as for the first group of a broker.

    Wait: Topiclake commits the offsets again with the next batch.
    """

    id: ClassVar[str] = "TL-KAFKA-004"


def _refused(group: str, error: ClientError, location: str = "") -> KafkaError:
    if error.code() in _COMING:
        return NoCoordinatorError(f"{error.str()}{location}", "wait for the next batch", group=group)
    if error.code() in (ClientError.NON_EMPTY_GROUP, ClientError.UNKNOWN_MEMBER_ID):
        return KafkaError(
            f"consumers use the group {group}",
            "set another consumer_group, which no consumer reads with",
            group=group,
            reason="in_use",
        )
    if error.code() in (ClientError.GROUP_AUTHORIZATION_FAILED, ClientError.TOPIC_AUTHORIZATION_FAILED):
        return KafkaError(
            f"the broker does not allow it: {error.str()}{location}",
            f"grant this login READ on group {group} and on the topic, or remove consumer_group",
            group=group,
            reason="not_allowed",
        )
    return KafkaError(
        f"{error.str()}{location}",
        "check the broker and the permissions of the login, or remove consumer_group",
        group=group,
        reason="refused",
    )
