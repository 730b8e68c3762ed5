"""Kafka: what a reader, a producer and an administrator are told, from one configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from confluent_kafka.error import KafkaError as ClientError
from pyspark.sql import DataFrame, SparkSession

from topiclake import source_options
from topiclake.config.kafka import KafkaSettings
from topiclake.config.pipeline import PipelineSettings
from topiclake.errors import KafkaError, TopicNotFoundError
from topiclake.source_options import Known

#: Seconds until a broker that does not answer counts as unreachable.
TIMEOUT_SECONDS = 10

#: Kafka's setting of a topic, and the value with which the newest record of each key stays.
_CLEANUP, _COMPACT = "cleanup.policy", "compact"
#: Waiting does not help against these.
_HOPELESS = (ClientError._AUTHENTICATION, ClientError._SSL)

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def read_topic(
    spark: SparkSession,
    kafka: KafkaSettings,
    pipeline: PipelineSettings,
    *,
    shaded: bool,
    known: Known = MappingProxyType({}),
) -> DataFrame:
    """Read a topic as a stream.

    Args:
        spark: The session.
        kafka: How to reach the broker.
        pipeline: Topic, starting offsets and rate limit.
        shaded: Whether Kafka's classes carry Databricks' prefix.
        known: See `source_options.of_stream`.

    Returns:
        A streaming DataFrame `key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT,
        timestamp TIMESTAMP, timestampType INT, headers ARRAY<STRUCT<key STRING, value BINARY>>`.
    """
    options = reader_options(kafka, pipeline, shaded=shaded, known=known)
    return spark.readStream.format("kafka").options(**options).load()


def read_range(
    spark: SparkSession,
    options: Mapping[str, str],
    ranges: Mapping[str, Mapping[int, tuple[int, int]]],
    *,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """Read offsets of topics as a batch.

    Args:
        spark: The session.
        options: Of `reader_options`, without topics and offsets.
        ranges: By topic and partition the first offset, and the one after the last.
        fail_on_data_loss: Whether it fails when Kafka has deleted the beginning of a range; else it gives
            what is left.

    Returns:
        A DataFrame with the columns of `read_topic`; `headers` where the options ask for them.
    """
    ends = {
        name: json.dumps(
            {topic: {str(one): span[end] for one, span in found.items()} for topic, found in ranges.items()}
        )
        for end, name in enumerate(("startingOffsets", "endingOffsets"))
    }
    assigned = {"assign": json.dumps({topic: sorted(found) for topic, found in ranges.items()})}
    losses = {"failOnDataLoss": "true" if fail_on_data_loss else "false"}
    return spark.read.format("kafka").options(**{**options, **assigned, **losses, **ends}).load()


def reader_options(
    kafka: KafkaSettings,
    pipeline: PipelineSettings,
    *,
    shaded: bool,
    known: Known = MappingProxyType({}),
) -> dict[str, str]:
    """Return the options of Spark's Kafka source, for a stream; arguments as in `read_topic`."""
    return source_options.of_stream(pipeline, known) | range_options(kafka, shaded=shaded)


def range_options(kafka: KafkaSettings, *, shaded: bool) -> dict[str, str]:
    """Return the options of Spark's Kafka source but for topics and offsets, as `read_range` wants them."""
    return {"includeHeaders": "true"} | _jvm_consumer(kafka, shaded=shaded)


def _jvm_consumer(kafka: KafkaSettings, *, shaded: bool) -> dict[str, str]:
    # Spark asks only for records that are there. But behind the last of them the consumer waits for more, and
    # Spark's next question waits behind it on the same connection: 500 ms a task, by default.
    defaults = {"fetch.max.wait.ms": "10", "isolation.level": kafka.isolation_level}
    consumer = defaults | {key: str(value) for key, value in kafka.consumer.items()}
    client = jvm_client_settings(kafka, shaded=shaded) | consumer
    options = {f"kafka.{key}": value for key, value in client.items()}
    if kafka.group_id_prefix is not None:
        options["groupIdPrefix"] = kafka.group_id_prefix
    return options


def writer_options(kafka: KafkaSettings, topic: str | None, *, shaded: bool) -> dict[str, str]:
    """Return the options of Spark's Kafka sink; without a topic the records have a column for it."""
    tuned = {"linger.ms": "20", "batch.size": "131072", "compression.type": "lz4"}
    client = jvm_client_settings(kafka, shaded=shaded) | tuned
    options = {} if topic is None else {"topic": topic}
    return options | {f"kafka.{key}": value for key, value in client.items()}


def jvm_client_settings(kafka: KafkaSettings, *, shaded: bool) -> dict[str, str]:
    """Return the settings that every Kafka client on the JVM has."""
    client = {"bootstrap.servers": kafka.bootstrap_servers, "security.protocol": kafka.security_protocol}
    if kafka.ca_file is not None:
        client |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(kafka.ca_file)}
    if kafka.is_sasl:
        client |= {"sasl.mechanism": kafka.sasl_mechanism, "sasl.jaas.config": _jaas(kafka, shaded=shaded)}
    return client


def _jaas(kafka: KafkaSettings, *, shaded: bool) -> str:
    """Return the login as JAAS wants it; Databricks ships Kafka's classes under `kafkashaded.`."""
    module = ("kafkashaded." if shaded else "") + _LOGIN_MODULES[kafka.sasl_mechanism]
    username, password = (_quoted(part) for part in _login(kafka))
    return f"{module} required username={username} password={password};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _login(kafka: KafkaSettings) -> tuple[str, str]:
    return (
        kafka.username.reveal() if kafka.username else "",
        kafka.password.reveal() if kafka.password else "",
    )


def client_settings(kafka: KafkaSettings) -> dict[str, Any]:
    """Return the settings of a confluent-kafka client: producer, consumer or administrator."""
    client: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "security.protocol": kafka.security_protocol,
        # Failures come back as errors with a remedy; librdkafka's own lines would stand beside them.
        "log_level": 0,
    }
    if kafka.ca_file is not None:
        client["ssl.ca.location"] = str(kafka.ca_file)
    if kafka.is_sasl:
        username, password = _login(kafka)
        client |= {
            "sasl.mechanism": kafka.sasl_mechanism,
            "sasl.username": username,
            "sasl.password": password,
        }
    return client


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
    there = _topics(kafka)
    if waits:
        return
    if pipeline.topic_pattern:
        pattern = re.compile(pipeline.topic_pattern)
        if not any(pattern.fullmatch(name) for name in there):
            raise TopicNotFoundError(
                f"no topic on the broker at {kafka.bootstrap_servers} matches {pipeline.topic_pattern}; "
                f"{_near_there(pipeline.topic_pattern, there)}",
                "a pattern that matches a topic's whole name, or create the first topic",
                topic_pattern=pipeline.topic_pattern,
                server=kafka.bootstrap_servers,
                near=_near(pipeline.topic_pattern, there),
            )
        return
    is_any_there = any(topic in there for topic in pipeline.topics)
    for topic in pipeline.topics:
        if topic not in there and not (is_any_there and topic in known):
            raise _not_found(kafka, topic, there)


def _not_found(kafka: KafkaSettings, topic: str, there: Iterable[str]) -> TopicNotFoundError:
    return TopicNotFoundError(
        f"topic {topic} is not on the broker at {kafka.bootstrap_servers}; {_near_there(topic, there)}",
        "publish first (the examples: python -m workbench run notebooks/…_publish.py); or check its name; or "
        "wait_for_topic=true, where it is created later",
        topic=topic,
        server=kafka.bootstrap_servers,
        near=_near(topic, there),
    )


def _near_there(name: str, topics: Iterable[str]) -> str:
    near = ", ".join(_near(name, topics))
    return f"the nearest names there: {near}" if near else "it holds no topic"


def _near(name: str, topics: Iterable[str]) -> tuple[str, ...]:
    """Return the three topics whose names are most like `name`, the nearest first; none of Kafka's own."""
    public = sorted(topic for topic in topics if not topic.startswith("_"))
    return tuple(get_close_matches(name, public, n=3, cutoff=0))


def ensure_topic(kafka: KafkaSettings, topic: str, partitions: int, *, compacted: bool = False) -> int:
    """Create `topic` where it is missing, and return how many partitions it has.

    Args:
        kafka: The broker.
        topic: Its name.
        partitions: How many a new topic has.
        compacted: Whether Kafka keeps the newest record of each key for ever, and may delete older ones.

    Raises:
        KafkaError: The broker cannot be reached, refuses the login, or refuses to create it; or the topic is
            there and not compacted, as was asked for.
    """
    topics = _topics(kafka)
    client = AdminClient(client_settings(kafka))
    if topic not in topics:
        config = {_CLEANUP: _COMPACT} if compacted else {}
        try:
            client.create_topics([NewTopic(topic, partitions, config=config)])[topic].result(TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != ClientError.TOPIC_ALREADY_EXISTS:
                raise KafkaError(
                    f"topic {topic} cannot be created: {error.args[0].str()}",
                    topic=topic,
                    reason="refused",
                    detail=error.args[0].str(),
                ) from None
    elif compacted:
        _require_compacted(client, topic)
    return topics.get(topic, partitions)


def _require_compacted(client: AdminClient, topic: str) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        policy = client.describe_configs([resource])[resource].result(TIMEOUT_SECONDS)[_CLEANUP].value
    except KafkaException as error:
        raise KafkaError(
            f"topic {topic} does not tell its settings: {error.args[0].str()}",
            topic=topic,
            reason="hidden",
            detail=error.args[0].str(),
        ) from None
    if policy != _COMPACT:
        raise KafkaError(
            f"topic {topic} has {_CLEANUP}={policy}: records that are old would be deleted, {_COMPACT} keeps "
            "the newest of each key",
            f"kafka-configs --alter --topic {topic} --add-config {_CLEANUP}={_COMPACT}, or another topic",
            topic=topic,
            reason="not_compacted",
            found=policy,
        )


def _topics(kafka: KafkaSettings) -> dict[str, int]:
    """Return the broker's topics with their number of partitions."""
    problems: list[ClientError] = []
    client = AdminClient(client_settings(kafka) | {"error_cb": problems.append})
    for _ in range(TIMEOUT_SECONDS):
        try:
            found = client.list_topics(timeout=1).topics
        except KafkaException as error:
            client.poll(0)  # hands over what went wrong so far: it fills `problems`
            problems.append(error.args[0])
            if any(problem.code() in _HOPELESS for problem in problems):
                break
        else:
            return {name: len(topic.partitions) for name, topic in found.items()}
    raise unreachable(kafka, problems)


def unreachable(kafka: KafkaSettings, problems: list[ClientError]) -> KafkaError:
    """Say why the broker cannot be used: the login, the certificate, or the address."""
    by_code = {problem.code(): problem for problem in problems}
    if ClientError._AUTHENTICATION in by_code:
        return KafkaError(
            f"the broker at {kafka.bootstrap_servers} refuses the login ({kafka.sasl_mechanism})",
            "check the secrets kafka.username and kafka.password",
            server=kafka.bootstrap_servers,
            reason="login",
        )
    if ClientError._SSL in by_code:
        return KafkaError(
            f"no TLS connection to the broker at {kafka.bootstrap_servers}: "
            f"{by_code[ClientError._SSL].str()[:200]}",
            "check kafka.security_protocol and kafka.ca_file",
            server=kafka.bootstrap_servers,
            reason="tls",
        )
    reason = problems[0].str() if problems else "no answer"
    return KafkaError(
        f"the broker at {kafka.bootstrap_servers} does not answer within {TIMEOUT_SECONDS} s ({reason})",
        "python -m workbench status, or check kafka.bootstrap_servers, security_protocol and the network",
        server=kafka.bootstrap_servers,
        reason="unreachable",
        detail=reason,
    )
