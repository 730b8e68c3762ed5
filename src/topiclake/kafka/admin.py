"""Topics on the broker: the check that they exist, and the creation of a missing one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from confluent_kafka.error import KafkaError as ClientError

from topiclake.config.kafka import KafkaSettings
from topiclake.config.pipeline import PipelineSettings
from topiclake.errors import KafkaError, TopicNotFoundError
from topiclake.kafka.client import TIMEOUT_SECONDS, client_settings, is_hopeless, unreachable

#: Kafka's setting of a topic, and the value with which the newest record of each key stays.
_CLEANUP, _COMPACT = "cleanup.policy", "compact"


def require_topic(kafka: KafkaSettings, topic: str) -> int:
    """Return the number of partitions of `topic`.

    Raises:
        TopicNotFoundError: The broker does not hold it; names three whose names are like it.
        KafkaError: The broker cannot be reached or refuses the login.
    """
    topics = _topics(kafka)
    if topic not in topics:
        raise _not_found(kafka, topic, topics)
    return topics[topic]


def require_topics(
    kafka: KafkaSettings,
    pipeline: PipelineSettings,
    *,
    waits: bool = False,
    known: Collection[str] = (),
) -> None:
    """Check that the topics of a pipeline exist: each that it lists, or one that matches its pattern.

    Args:
        kafka: How to reach the broker.
        pipeline: Its topics.
        waits: Whether a topic may be created later.
        known: Topics that existed at an earlier start: one of these may be missing, not all.

    Raises:
        TopicNotFoundError: One that it lists is missing, or none matches its pattern.
        KafkaError: The broker cannot be reached or refuses the login.
    """
    names = _topics(kafka)
    if waits:
        return
    if pipeline.topic_pattern:
        pattern = re.compile(pipeline.topic_pattern)
        if not any(pattern.fullmatch(name) for name in names):
            raise TopicNotFoundError(
                f"no topic on the broker at {kafka.bootstrap_servers} matches {pipeline.topic_pattern}; "
                f"{_near_text(pipeline.topic_pattern, names)}",
                "use a pattern that matches a topic's whole name, or create the first topic",
                topic_pattern=pipeline.topic_pattern,
                server=kafka.bootstrap_servers,
                near=_near(pipeline.topic_pattern, names),
            )
        return
    has_topic = any(topic in names for topic in pipeline.topics)
    for topic in pipeline.topics:
        if topic not in names and not (has_topic and topic in known):
            raise _not_found(kafka, topic, names)


def _not_found(kafka: KafkaSettings, topic: str, names: Iterable[str]) -> TopicNotFoundError:
    return TopicNotFoundError(
        f"topic {topic} is not on the broker at {kafka.bootstrap_servers}; {_near_text(topic, names)}",
        "publish first (the examples: python -m workbench run notebooks/…_publish.py); or check its name; or "
        "set wait_for_topic=true, if it is created later",
        topic=topic,
        server=kafka.bootstrap_servers,
        near=_near(topic, names),
    )


def _near_text(name: str, topics: Iterable[str]) -> str:
    near = ", ".join(_near(name, topics))
    return f"the nearest names there: {near}" if near else "it holds no topic"


def _near(name: str, topics: Iterable[str]) -> tuple[str, ...]:
    """Return the three topics whose names are most like `name`, the nearest first; no internal topics."""
    public = sorted(topic for topic in topics if not topic.startswith("_"))
    return tuple(get_close_matches(name, public, n=3, cutoff=0))


def ensure_topic(kafka: KafkaSettings, topic: str, partitions: int, *, compacted: bool = False) -> int:
    """Create `topic` if it is missing, and return the number of its partitions.

    Args:
        kafka: The broker.
        topic: Its name.
        partitions: The number of partitions of a new topic.
        compacted: Whether Kafka keeps the newest record of each key for ever, and may delete older ones.

    Raises:
        KafkaError: The broker cannot be reached, refuses the login, or refuses to create it. Or the topic
            exists and is not compacted, although `compacted` is set.

    Example:
        >>> tl.ensure_topic(settings.kafka, "sensors", 2)
        2
    """
    topics = _topics(kafka)
    client = AdminClient(client_settings(kafka))
    if topic not in topics:
        config = {_CLEANUP: _COMPACT} if compacted else {}
        try:
            client.create_topics([NewTopic(topic, partitions, config=config)])[topic].result(TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != ClientError.TOPIC_ALREADY_EXISTS:
                raise _error(topic, "cannot be created", "refused", error) from None
    elif compacted:
        _require_compacted(client, topic)
    return topics.get(topic, partitions)


def _require_compacted(client: AdminClient, topic: str) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        policy = client.describe_configs([resource])[resource].result(TIMEOUT_SECONDS)[_CLEANUP].value
    except KafkaException as error:
        raise _error(topic, "does not show its settings", "hidden", error) from None
    if policy != _COMPACT:
        raise KafkaError(
            f"topic {topic} has {_CLEANUP}={policy}: records that are old would be deleted, {_COMPACT} keeps "
            "the newest of each key",
            f"kafka-configs --alter --topic {topic} --add-config {_CLEANUP}={_COMPACT}, or use another topic",
            topic=topic,
            reason="not_compacted",
            found=policy,
        )


def _error(topic: str, problem: str, reason: str, error: KafkaException) -> KafkaError:
    detail = error.args[0].str()
    return KafkaError(
        f"topic {topic} {problem}: {detail}",
        "check the permissions of the login on the topic",
        topic=topic,
        reason=reason,
        detail=detail,
    )


def _topics(kafka: KafkaSettings) -> dict[str, int]:
    """Return the broker's topics with their number of partitions."""
    problems: list[ClientError] = []
    client = AdminClient(client_settings(kafka) | {"error_cb": problems.append})
    for _ in range(TIMEOUT_SECONDS):
        try:
            topics = client.list_topics(timeout=1).topics
        except KafkaException as error:
            client.poll(0)  # hands over what went wrong so far: it fills `problems`
            problems.append(error.args[0])
            if any(map(is_hopeless, problems)):
                break
        else:
            return {name: len(topic.partitions) for name, topic in topics.items()}
    raise unreachable(kafka, problems)
