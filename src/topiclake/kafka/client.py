"""The settings of Kafka's clients, from one configuration, and why a broker cannot be used."""

from __future__ import annotations

from typing import Any

from confluent_kafka.error import KafkaError as ClientError

from topiclake.config.kafka import KafkaSettings
from topiclake.errors import KafkaError
from topiclake.session import is_databricks

#: Seconds until a broker that does not answer counts as unreachable.
TIMEOUT_SECONDS = 10

#: Waiting does not help against these.
HOPELESS = (ClientError._AUTHENTICATION, ClientError._SSL)

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def jvm_client_settings(kafka: KafkaSettings) -> dict[str, str]:
    """Return the settings that every Kafka client on the JVM has."""
    client = {"bootstrap.servers": kafka.bootstrap_servers, "security.protocol": kafka.security_protocol}
    if kafka.ca_file is not None:
        client |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(kafka.ca_file)}
    if kafka.is_sasl:
        client |= {"sasl.mechanism": kafka.sasl_mechanism, "sasl.jaas.config": _jaas(kafka)}
    return client


def _jaas(kafka: KafkaSettings) -> str:
    """Return the login as JAAS wants it; Databricks ships Kafka's classes under `kafkashaded.`."""
    module = ("kafkashaded." if is_databricks() else "") + _LOGIN_MODULES[kafka.sasl_mechanism]
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
    """Return the settings of a confluent-kafka client: producer, consumer or administrator.

    Example:
        >>> from confluent_kafka import Consumer
        >>> consumer = Consumer(tl.client_settings(settings.kafka) | {"group.id": "look"})
        >>> "readings" in consumer.list_topics(timeout=30).topics
        True
        >>> consumer.close()
    """
    client: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "security.protocol": kafka.security_protocol,
        # Failures are raised as errors with a remedy; librdkafka's log lines would repeat them.
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
