"""Topics on the broker: their partitions, first and next offsets, and ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.error import KafkaError as ClientError
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_fixed

from topiclake.config.kafka import KafkaSettings
from topiclake.config.pipeline import PipelineSettings
from topiclake.errors import ConfigError
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.kafka.client import TIMEOUT_SECONDS

_SPECS: Any = OffsetSpec  # its methods have no types

_COMMITTED: Any = IsolationLevel.READ_COMMITTED
_ATTEMPTS = 25
_LEADERLESS = (
    ClientError.NOT_LEADER_FOR_PARTITION,
    ClientError.LEADER_NOT_AVAILABLE,
    ClientError.UNKNOWN_TOPIC_OR_PART,
    ClientError.OFFSET_NOT_AVAILABLE,
)


@dataclass(frozen=True)
class BrokerOffsets:
    """Offsets and ids of topics on a broker.

    Attributes:
        offsets: By topic and partition the first offset, and the next to come.
        ids: By topic the id that Kafka gave it when it was created, if the broker returns it.
    """

    offsets: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)


def topic_offsets(settings: KafkaSettings, topic: str) -> dict[int, tuple[int, int]]:
    """Return for each partition of `topic` the first offset that Kafka still holds, and the next to come.

    Raises:
        TopicNotFoundError: The broker does not hold the topic.
        KafkaError: The broker cannot be reached, or refuses the login or the request.
    """
    kafka_admin.require_topic(settings, topic)
    try:
        return fetch_offsets(kafka_client.client_settings(settings), [topic], with_ids=False).offsets[topic]
    except KafkaException as error:
        raise kafka_client.unreachable(settings, [error.args[0]]) from None


def pipeline_offsets(
    settings: KafkaSettings, pipeline: PipelineSettings, known: Iterable[str]
) -> BrokerOffsets:
    """Return offsets and ids of the topics of a pipeline, and of those that its checkpoint knows.

    Raises:
        KafkaError: The broker cannot be reached, or refuses the login or the request.
    """
    pattern = pipeline.topic_pattern
    try:
        return fetch_offsets(
            kafka_client.client_settings(settings), {*known, *pipeline.topics}, pattern=pattern
        )
    except KafkaException as error:
        raise kafka_client.unreachable(settings, [error.args[0]]) from None


def offsets_since(
    settings: KafkaSettings, times: Mapping[tuple[str, int], datetime]
) -> dict[tuple[str, int], int]:
    """Return for each topic and partition the offset of the first record that is not older than its time.

    -1: no record is that new.

    Raises:
        KafkaError: The broker cannot be reached, or refuses the login or the request.
    """
    admin = _admin(tuple(sorted(kafka_client.client_settings(settings).items())))
    offsets: dict[tuple[str, int], int] = {}
    try:
        for time in set(times.values()):
            partitions = [TopicPartition(*where) for where, at in times.items() if at == time]
            offsets |= _ends(admin, partitions, _SPECS.for_timestamp(round(time.timestamp() * 1000)))
    except KafkaException as error:
        raise kafka_client.unreachable(settings, [error.args[0]]) from None
    return offsets


def open_transactions(settings: KafkaSettings, pipeline: PipelineSettings) -> dict[tuple[str, int], int]:
    """Return where the oldest open transaction begins, for each topic and partition that has one.

    Raises:
        KafkaError: The broker cannot be reached, or refuses the login or the request.
    """
    client, pattern = kafka_client.client_settings(settings), pipeline.topic_pattern
    try:
        # The end of all records before that of the committed ones: a transaction that commits meanwhile is
        # not open.
        ends = fetch_offsets(client, pipeline.topics, pattern=pattern, with_ids=False).offsets
        after = {
            (topic, partition): end for topic, spans in ends.items() for partition, (_, end) in spans.items()
        }
        admin = _admin(tuple(sorted(client.items())))
        partitions = [TopicPartition(topic, partition) for topic, partition in after]
        committed = _ends(admin, partitions, _SPECS.latest(), isolation_level=_COMMITTED)
    except KafkaException as error:
        raise kafka_client.unreachable(settings, [error.args[0]]) from None
    return {where: offset for where, offset in committed.items() if offset < after[where]}


def fetch_offsets(
    client: Mapping[str, Any], topics: Iterable[str], *, pattern: str | None = None, with_ids: bool = True
) -> BrokerOffsets:
    """Return offsets and ids of topics; topics that the broker does not hold are omitted.

    Args:
        client: Settings of a confluent-kafka client.
        topics: Names.
        pattern: A regular expression: also the topics whose whole names match it.
        with_ids: Whether ids are asked for.

    Raises:
        KafkaException: The broker cannot be reached, or refuses the request.
    """
    admin = _admin(tuple(sorted(client.items())))
    known_topics = _topics(admin, set(topics))
    wanted = {name for name in topics if name in known_topics}
    wanted |= {name for name in known_topics if pattern and re.fullmatch(pattern, name)}
    partitions = [
        TopicPartition(name, partition)
        for name in sorted(wanted)
        for partition in known_topics[name].partitions
    ]
    if not partitions:
        return BrokerOffsets()
    earliest, latest = (_ends(admin, partitions, spec) for spec in (_SPECS.earliest(), _SPECS.latest()))
    offsets: dict[str, dict[int, tuple[int, int]]] = {}
    for (topic, partition), first in sorted(earliest.items()):
        offsets.setdefault(topic, {})[partition] = (first, latest[topic, partition])
    return BrokerOffsets(offsets, _ids(admin, wanted) if with_ids else {})


@lru_cache(maxsize=4)
def _admin(client: tuple[tuple[str, Any], ...]) -> AdminClient:
    """Return a client with these settings; one for all batches, since each is a connection and threads."""
    return AdminClient(dict(client))


def _is_leaderless(error: BaseException) -> bool:
    """Return whether a partition has no leader for a moment: it is new, or it moves."""
    return isinstance(error, KafkaException) and error.args[0].code() in _LEADERLESS


_until_led = retry(
    retry=retry_if_exception(_is_leaderless),
    stop=stop_after_attempt(_ATTEMPTS),
    wait=wait_fixed(0.2),
    reraise=True,
)


@_until_led
def _topics(admin: AdminClient, wanted: set[str]) -> dict[str, Any]:
    """Return the broker's topics; one without a leader for a moment is listed without its partitions."""
    topics = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
    for name, topic in topics.items():
        if name in wanted and topic.error:
            raise KafkaException(topic.error)
    return dict(topics)


@_until_led
def _ends(
    admin: AdminClient,
    partitions: list[TopicPartition],
    spec: Any,  # noqa: ANN401
    **options: Any,  # noqa: ANN401
) -> dict[tuple[str, int], int]:
    """Return one end of each partition."""
    futures = admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=TIMEOUT_SECONDS, **options)
    return {
        (partition.topic, partition.partition): future.result().offset
        for partition, future in futures.items()
    }


def _ids(admin: AdminClient, topics: Iterable[str]) -> dict[str, str]:
    """Return the ids of topics; a broker before 2.8 has no ids, and a login may not be allowed to ask."""
    futures = admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=TIMEOUT_SECONDS)
    ids = {}
    for name, future in futures.items():
        try:
            ids[name] = str(future.result().topic_id)
        except KafkaException:
            continue
    return {name: topic_id for name, topic_id in ids.items() if topic_id.strip("A=")}


def require_partitions(pipeline: PipelineSettings, broker_offsets: BrokerOffsets) -> None:
    """Check the partitions that a pipeline names against the broker; Spark would report a mistake late.

    Raises:
        ConfigError: `assign` or offsets name a partition that does not exist, or offsets omit one.
    """
    named = {"assign": pipeline.assign or {}}
    for key in ("starting_offsets", "ending_offsets"):
        offsets = getattr(pipeline, key)
        if isinstance(offsets, dict):
            named[key] = {
                topic: tuple(map(int, partitions_of_topic)) for topic, partitions_of_topic in offsets.items()
            }
    for key, topics in named.items():
        for topic, partitions in topics.items():
            in_kafka = set(broker_offsets.offsets.get(topic, {}))
            wanted = set((pipeline.assign or {}).get(topic, in_kafka)) if key != "assign" else in_kafka
            wrong = set(partitions) - in_kafka or (key != "assign" and wanted - set(partitions))
            if wrong:
                raise ConfigError(
                    f"{key} names the partitions {_shown(partitions)} of topic {topic}, which has "
                    f"{_shown(in_kafka)}",
                    f"pass -p {key}=<JSON with {'some' if key == 'assign' else 'each'} of them>",
                    parameter=key,
                    topic=topic,
                    partitions=tuple(sorted(partitions)),
                    allowed=tuple(sorted(in_kafka)),
                )


def _shown(partitions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"
