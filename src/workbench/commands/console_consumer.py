"""`python -m workbench consume`: Kafka's own console consumer, with the addresses and logins of conf/."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click

from topiclake.config.kafka import KafkaSettings
from topiclake.config.schema_registry import SchemaRegistrySettings
from topiclake.errors import PlatformError
from topiclake.kafka.admin import require_topic
from topiclake.kafka.client import jvm_client_settings
from topiclake.login.certificate import read_certificate
from topiclake.schema_registry.client import BearerToken
from topiclake.schema_registry.registry import bearer
from workbench.commands.settings import pipeline_settings
from workbench.host.home import Home
from workbench.host.jars import fetch_jars
from workbench.host.java import SHORT_LIVED, more_options, require_java
from workbench.services.kafka_broker import properties_text

MAIN_CLASS = "org.apache.kafka.tools.consumer.ConsoleConsumer"
FORMATTER = "io.topiclake.console.AvroFormatter"
_OAUTH_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
#: The folders below jars/ with its classes: ours, the broker's and Avro's.
_MODULES = ("console", "kafka", "avro")


def consume(
    home: Home,
    topic: str,
    options: Sequence[str],
    parameters: Mapping[str, str],
    *,
    avro: bool,
    avro_keys: bool,
) -> NoReturn:
    """Replace this process by Kafka's console consumer.

    Args:
        home: The home of the services that `env=local` reads.
        topic: Its name.
        options: More options of `kafka-console-consumer`, as they are.
        parameters: `env`, and keys of a pipeline, as for notebooks.
        avro: Values are Confluent-framed Avro, printed as JSON.
        avro_keys: Keys are, too, and are printed.

    Raises:
        ConfigError: A parameter or a file of conf/ is wrong.
        PlatformError: Java is missing, or the jars are, or the login is AWS_MSK_IAM.
        LoginError: A token or a client certificate cannot be used.
        TopicNotFoundError, KafkaError: The topic does not exist, or the broker cannot be reached.
    """
    java = require_java()
    home.prepare()
    fetched = fetch_jars(lambda line: click.echo(line, err=True))
    jars = [fetched / module / "target" / "jars" for module in _MODULES]
    if not all(any(folder.glob("*.jar")) for folder in jars):
        raise PlatformError(
            "the console consumer's jars are missing", "python -m workbench doctor", folder=str(fetched)
        )
    settings = pipeline_settings(home, None, {**parameters, "topic": topic})
    kafka = settings.kafka
    if kafka.sasl_mechanism == "AWS_MSK_IAM":
        raise PlatformError(
            "the console consumer has no class for AWS_MSK_IAM",
            "use another login, or Kafka's own kafka-console-consumer with the jar aws-msk-iam-auth",
            reason="aws_msk_iam",
        )
    require_topic(kafka, topic)
    command = [
        str(java.path),
        *_java_options(home, jars, kafka),
        MAIN_CLASS,
        *("--bootstrap-server", kafka.bootstrap_servers, "--topic", topic),
        *("--consumer.config", _pipe_path(jvm_client_settings(kafka))),
    ]
    # Kafka accepts neither a group together with a partition nor two groups.
    is_free = not any(option.startswith(("--partition", "--group")) for option in options)
    if kafka.group_id_prefix is not None and is_free:
        command += ["--group", f"{kafka.group_id_prefix}-console-{uuid.uuid4().hex[:8]}"]
    if avro or avro_keys:
        keys = {"key.avro": "true", "print.key": "true"} if avro_keys else {}
        properties = _formatter(settings.schema_registry) | keys
        command += ["--formatter", FORMATTER, "--formatter-config", _pipe_path(properties)]
    os.execv(command[0], [*command, *options])  # noqa: S606 - no shell is wanted


def _formatter(registry: SchemaRegistrySettings) -> dict[str, str]:
    """Return properties of `io.topiclake.console.AvroFormatter` (jars/console). It does not renew a token."""
    properties = {
        "schema.registry.url": registry.url,
        "schema.registry.retry.seconds": str(registry.retry_seconds),
    }
    if source := bearer(registry):
        headers = BearerToken(source).headers()
        properties |= {f"schema.registry.header.{name}": value for name, value in headers.items()}
    if registry.client_certificate is not None:
        certificate = read_certificate(registry.client_certificate)
        properties |= {
            "schema.registry.certificate": certificate.chain,
            "schema.registry.key": certificate.key,
        }
    if registry.username is not None and registry.password is not None:
        properties["basic.auth.user.info"] = f"{registry.username.reveal()}:{registry.password.reveal()}"
    if registry.ca_file is not None:
        properties["schema.registry.ca.file"] = str(registry.ca_file)
    return properties


def _java_options(home: Home, jars: Sequence[Path], kafka: KafkaSettings) -> list[str]:
    # Kafka 4 asks only OAuth servers that a property of the JVM lists.
    urls = [] if kafka.oauth is None else [f"-D{_OAUTH_URLS}={kafka.oauth.token_url}"]
    return [
        *urls,
        SHORT_LIVED,
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={home.tmp}",
        *more_options(),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        *("-cp", os.pathsep.join(f"{folder}/*" for folder in jars)),
    ]


def _pipe_path(properties: Mapping[str, str]) -> str:
    """Return a path from which the next program reads these properties, once: they never reach a disk."""
    reader, write = os.pipe()
    # Far less than the buffer of a pipe, so that the write does not wait for a reader.
    os.write(write, properties_text(properties).encode("ascii"))
    os.close(write)
    os.set_inheritable(reader, True)
    return f"/dev/fd/{reader}"
