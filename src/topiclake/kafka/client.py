"""The settings of Kafka's clients, from one configuration, and why a broker cannot be used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from confluent_kafka.error import KafkaError as ClientError

from topiclake.config.kafka import KafkaSettings
from topiclake.errors import KafkaError
from topiclake.kafka.login import jvm_login, python_login, refused, require_databricks

#: Seconds until a broker that does not answer counts as unreachable.
TIMEOUT_SECONDS = 10

#: The alerts of TLS by which a broker refuses the certificate of a client.
_REFUSED_CERTIFICATE = re.compile(
    r"alert (?:bad certificate|certificate (?:required|expired|revoked|unknown)|unknown ca)"
)


def is_hopeless(problem: ClientError) -> bool:
    """Return whether the broker refuses this client, so that it is of no use to wait."""
    return problem.code() in (ClientError._AUTHENTICATION, ClientError._SSL) or _refuses_certificate(problem)


def _refuses_certificate(problem: ClientError) -> bool:
    return _REFUSED_CERTIFICATE.search(problem.str()) is not None


def jvm_client_settings(kafka: KafkaSettings) -> dict[str, str]:
    """Return the settings that every Kafka client on the JVM has; raises as `client_settings`."""
    require_databricks(kafka)
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    if kafka.service_credential is None:
        client |= {"security.protocol": kafka.security_protocol, **jvm_login(kafka)}
    return client


def spark_client_options(kafka: KafkaSettings, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's connector for these settings; raises as `client_settings`."""
    client = {**jvm_client_settings(kafka), **settings}
    options = {f"kafka.{key}": value for key, value in client.items()}
    if kafka.service_credential is not None:
        options["databricks.serviceCredential"] = kafka.service_credential
    return options


def client_settings(kafka: KafkaSettings) -> dict[str, Any]:
    """Return the settings of a confluent-kafka client: producer, consumer or administrator.

    Raises:
        ConfigError: A service credential is configured, and this is not Databricks.
        LoginError: The client certificate cannot be used, or the cloud returns no token.
        PlatformError: A package for that is missing.

    Example:
        >>> from confluent_kafka import Consumer
        >>> consumer = Consumer(tl.client_settings(settings.kafka) | {"group.id": "look"})
        >>> "readings" in consumer.list_topics(timeout=30).topics
        True
        >>> consumer.close()
    """
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "security.protocol": kafka.security_protocol,
        # Failures are raised as errors with a remedy; librdkafka's log lines would repeat them.
        "log_level": 0,
        **python_login(kafka),
    }


def unreachable(kafka: KafkaSettings, problems: list[ClientError]) -> KafkaError:
    """Say why the broker cannot be used: the login, the certificate, or the address."""
    by_code = {problem.code(): problem for problem in problems}
    if ClientError._AUTHENTICATION in by_code:
        return refused(kafka)
    if any(map(_refuses_certificate, problems)):
        return KafkaError(
            f"the broker at {kafka.bootstrap_servers} refuses the certificate of this client",
            "check kafka.client_certificate: an authority that the broker trusts has to sign it",
            server=kafka.bootstrap_servers,
            reason="certificate",
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
        "run python -m workbench status, or check kafka.bootstrap_servers, security_protocol and the network",
        server=kafka.bootstrap_servers,
        reason="unreachable",
        detail=reason,
    )
