"""What Kafka's console consumer has to be told, so that it reads with the addresses and logins of conf/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from topiclake.config.load import first_pipeline, load_settings
from topiclake.config.schema_registry import SchemaRegistrySettings
from topiclake.config.secret import SecretReader
from topiclake.kafka import jvm_client_settings
from topiclake.kafka_admin import require_topic


@dataclass(frozen=True)
class ConsoleAccess:
    """How the console reaches broker and registry; `consumer` and `formatter` hold secrets.

    Attributes:
        bootstrap_servers: The broker.
        group_id_prefix: What the name of its consumer group begins with, where the broker asks for that.
        consumer: Properties of Kafka's Java consumer.
        formatter: Properties of `io.topiclake.console.AvroFormatter` (jars/console).
    """

    bootstrap_servers: str
    group_id_prefix: str | None
    consumer: Mapping[str, str] = field(repr=False)
    formatter: Mapping[str, str] = field(repr=False)


def console_access(
    topic: str, parameters: Mapping[str, str], *, secrets: SecretReader, conf: Path
) -> ConsoleAccess:
    """Read from `conf` how a topic is reached.

    Args:
        topic: Its name.
        parameters: `env`, and keys of a pipeline.
        secrets: What resolves secrets, usually `dbutils.secrets.get`.
        conf: The folder of the files.

    Raises:
        ConfigError: A parameter or a file is wrong.
        TopicNotFoundError, KafkaError: The topic is not there, or the broker cannot be asked.
    """
    given = {**parameters, "topic": topic}
    settings = load_settings(first_pipeline(conf), given, secrets=secrets, conf=conf)
    require_topic(settings.kafka, topic)
    return ConsoleAccess(
        settings.kafka.bootstrap_servers,
        settings.kafka.group_id_prefix,
        jvm_client_settings(settings.kafka),
        _formatter(settings.schema_registry),
    )


def _formatter(registry: SchemaRegistrySettings) -> dict[str, str]:
    given = {
        "schema.registry.url": registry.url,
        "schema.registry.retry.seconds": str(registry.retry_seconds),
    }
    if registry.username is not None and registry.password is not None:
        given["basic.auth.user.info"] = f"{registry.username.reveal()}:{registry.password.reveal()}"
    if registry.ca_file is not None:
        given["schema.registry.ca.file"] = str(registry.ca_file)
    return given
