"""The connection to the broker, and the settings of Kafka's clients that a configuration may hold.

The other settings belong to Spark, or have a separate key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from topiclake.config.login import CertificateSettings, OAuthClientSettings
from topiclake.config.secret import SecretReference, Section
from topiclake.config.source import Text

#: Of both clients, in milliseconds and bytes.
_COMMON_NUMBERS = frozenset(
    {
        "connections.max.idle.ms",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
_COMMON_WORDS: dict[str, tuple[str, ...]] = {
    "client.dns.lookup": ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "metadata.recovery.strategy": ("none", "rebootstrap"),
}
_LOADS = "it loads a class into Spark's JVM, which may change records"
_COMMON_REFUSED = {
    "bootstrap.servers": "set kafka.bootstrap_servers",
    "interceptor.classes": _LOADS,
    "metric.reporters": _LOADS,
    "security.protocol": "set kafka.security_protocol",
    "security.providers": _LOADS,
}
_PREFIXES = {
    "kafka.": "leave out the prefix kafka.",
    "sasl.": "logins are secrets: set kafka.sasl_mechanism, with kafka.username and kafka.password, or "
    "kafka.oauth",
    "ssl.": "set kafka.ca_file and kafka.client_certificate; what the broker's certificate says is always "
    "checked",
}


@dataclass(frozen=True)
class _Client:
    """The settings of a client of Kafka's that a configuration may hold.

    Attributes:
        numbers: Settings whose values are whole numbers.
        words: Settings by their values.
        texts: Settings with any value.
        refused: Why others are refused, and what to set instead.
    """

    numbers: frozenset[str]
    words: Mapping[str, tuple[str, ...]]
    texts: frozenset[str]
    refused: Mapping[str, str]

    @property
    def allowed(self) -> tuple[str, ...]:
        """The names of the settings."""
        return tuple(sorted(self.numbers | self.texts | set(self.words)))

    def check_name(self, name: str) -> str:
        """Return the name of a setting; ValueError: it is refused."""
        if name in self.allowed:
            return name
        reason = self.refused.get(name) or next(
            (reason for start, reason in _PREFIXES.items() if name.startswith(start)), ""
        )
        if not reason and name.endswith((".class", ".classes")):
            reason = _LOADS
        if reason:
            raise ValueError(f"is not for a configuration: {reason}")
        raise ValueError(f"is unknown; allowed: {', '.join(self.allowed)}")

    def check_values(self, given: dict[str, Any]) -> dict[str, str | int]:
        """Return the values of settings as Kafka accepts them; ValueError: one is of another kind."""
        values: dict[str, str | int] = {}
        for name, value in given.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if name in self.numbers and not text.removeprefix("-").isdecimal():
                raise ValueError(f"{name} must be a whole number")
            if name in self.words and text not in self.words[name]:
                raise ValueError(f"{name} must be {' or '.join(self.words[name])}")
            values[name] = text if isinstance(value, bool) else value
        return values


_CHECKPOINT = "the checkpoint keeps the offsets, not Kafka"
_GROUP = "Spark reads partitions by their numbers, without a group's members"
CONSUMER = _Client(
    numbers=_COMMON_NUMBERS
    | {
        "default.api.timeout.ms",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
    },
    words=_COMMON_WORDS
    | {
        "check.crcs": ("true", "false"),
        "isolation.level": ("read_uncommitted", "read_committed"),
    },
    texts=frozenset({"client.id", "client.rack"}),
    # The first four are refused by Spark.
    refused=_COMMON_REFUSED
    | {
        "auto.offset.reset": "Spark decides where to begin: set starting_offsets of the pipeline",
        "key.deserializer": "keys come as bytes: set key of the pipeline, or cast the column",
        "value.deserializer": "values come as bytes: set avro_form, or cast the column",
        "enable.auto.commit": _CHECKPOINT,
        "auto.commit.interval.ms": _CHECKPOINT,
        "group.id": "queries that share a group get part of the records each: set kafka.group_id_prefix, "
        "where the broker allows groups by their prefix",
        "partition.assignment.strategy": _LOADS,
        "allow.auto.create.topics": "a topic with a typing error in its name would be created",
        "exclude.internal.topics": "set topic_pattern to what matches",
        "group.instance.id": _GROUP,
        "group.protocol": _GROUP,
        "group.remote.assignor": _GROUP,
        "heartbeat.interval.ms": _GROUP,
        "session.timeout.ms": _GROUP,
    },
)

_DURABLE = "a broker could lose a record that it has acknowledged, or have it twice"
_BYTES = "records are sent as bytes: make them in the column"
PRODUCER = _Client(
    numbers=_COMMON_NUMBERS
    | {
        "batch.size",
        "buffer.memory",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "delivery.timeout.ms",
        "linger.ms",
        "max.block.ms",
        "max.request.size",
        "metadata.max.idle.ms",
    },
    words=_COMMON_WORDS | {"compression.type": ("none", "gzip", "snappy", "lz4", "zstd")},
    texts=frozenset({"client.id"}),
    # The first two are refused by Spark.
    refused=_COMMON_REFUSED
    | {
        "key.serializer": _BYTES,
        "value.serializer": _BYTES,
        "acks": _DURABLE,
        "enable.idempotence": _DURABLE,
        "retries": "set delivery.timeout.ms, until which a record is sent again",
        "max.in.flight.requests.per.connection": "records of one key could change their order",
        "partitioner.ignore.keys": "records of one key would be in several partitions",
        "transactional.id": "each executor has its producer: readers drop duplicates by topiclake_id",
        "transaction.timeout.ms": "there are no transactions: readers drop duplicates by topiclake_id",
    },
)

#: Settings of a client as Kafka names them, without the prefix `kafka.`.
ConsumerSettings = Annotated[
    dict[Annotated[str, AfterValidator(CONSUMER.check_name)], bool | int | str],
    AfterValidator(CONSUMER.check_values),
]
ProducerSettings = Annotated[
    dict[Annotated[str, AfterValidator(PRODUCER.check_name)], bool | int | str],
    AfterValidator(PRODUCER.check_values),
]

#: Mechanisms that send no password but a token or a signature.
_WITHOUT_PASSWORD = ("OAUTHBEARER", "AWS_MSK_IAM")
#: The keys of a login that a service credential of Databricks replaces.
_LOGIN_KEYS = {"security_protocol", "sasl_mechanism", "username", "password", "oauth", "client_certificate"}
#: The region in the name of a broker of Amazon MSK.
_AWS_REGION = re.compile(r"\.([a-z]{2}(?:-[a-z]+)+-\d+)\.amazonaws\.com")


def _refuse_kerberos(mechanism: object) -> object:
    if mechanism == "GSSAPI":
        raise ValueError("Kerberos (GSSAPI) is not supported: docs/logins.md lists the logins")
    return mechanism


class KafkaSettings(Section):
    """The connection to the broker, and settings of its clients."""

    #: Host and port of one broker or several, with commas between them.
    bootstrap_servers: Text
    #: The protocol of the broker's listener. Use SASL_SSL or SSL outside of a trusted network.
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    #: The mechanism that the broker has the login for; only SASL protocols use it.
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"],
        BeforeValidator(_refuse_kerberos),
    ] = "PLAIN"
    #: The login; only SASL protocols use it.
    username: SecretReference | None = None
    #: The password of that login.
    password: SecretReference | None = None
    #: OAUTHBEARER: the application that asks an OAuth server for tokens.
    oauth: OAuthClientSettings | None = None
    #: SSL, SASL_SSL: the certificate of this client. Set it when the broker asks for one.
    client_certificate: CertificateSettings | None = None
    #: AWS_MSK_IAM: the region of the cluster. Set it when the broker's name does not contain it.
    aws_region: Text | None = None
    #: Databricks: a service credential of Unity Catalog, in place of all other keys of a login.
    service_credential: Text | None = None
    #: A PEM file with the authorities to trust. Set it when the system's own did not sign the certificate.
    ca_file: Path | None = None
    #: The prefix of the names of Spark's consumer groups. Set it when the broker allows groups by prefix
    #: only.
    group_id_prefix: Text | None = None
    #: Consumer settings as Kafka names them, without the prefix `kafka.`. The defaults of `conf/base.yaml`
    #: are measured. Change them for larger records, slow networks, or `isolation.level`.
    consumer: ConsumerSettings = Field(default_factory=dict)
    #: Producer settings as Kafka names them, without the prefix `kafka.`. Change them for larger records,
    #: slow networks, or another compression.
    producer: ProducerSettings = Field(default_factory=dict)

    @property
    def is_sasl(self) -> bool:
        """Return whether the broker asks for a login."""
        return self.security_protocol.startswith("SASL")

    @property
    def region(self) -> str | None:
        """The AWS region of the cluster: `aws_region`, or the one in the broker's name."""
        named = _AWS_REGION.search(self.bootstrap_servers)
        return self.aws_region or (named[1] if named else None)

    @property
    def isolation_level(self) -> str:
        """Of the consumer; `read_committed`, the default, leaves out records of aborted transactions."""
        return str(self.consumer.get("isolation.level", "read_committed"))

    @model_validator(mode="after")
    def _check_login(self) -> KafkaSettings:
        mechanism = self.sasl_mechanism
        given = {name for name in _LOGIN_KEYS & self.model_fields_set if getattr(self, name) is not None}
        if self.service_credential is not None and given:
            raise ValueError(f"service_credential replaces {', '.join(sorted(given))}: remove one of the two")
        if (self.oauth is not None) != (mechanism == "OAUTHBEARER"):
            raise ValueError("sasl_mechanism OAUTHBEARER and the keys of oauth need each other")
        if mechanism in _WITHOUT_PASSWORD and self.security_protocol != "SASL_SSL":
            raise ValueError(f"sasl_mechanism {mechanism} needs security_protocol SASL_SSL")
        if mechanism in _WITHOUT_PASSWORD and {"username", "password"} & given:
            raise ValueError(f"sasl_mechanism {mechanism} has no username and no password")
        if mechanism == "AWS_MSK_IAM" and self.region is None:
            raise ValueError("sasl_mechanism AWS_MSK_IAM needs aws_region: bootstrap_servers contains none")
        if self.client_certificate is not None and not self.security_protocol.endswith("SSL"):
            raise ValueError("client_certificate needs security_protocol SSL or SASL_SSL")
        return self
