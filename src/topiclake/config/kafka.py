"""How to reach the broker, and which settings of Kafka's consumer a configuration may hold.

The others are Spark's, or have a key of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from topiclake.config.secret import SecretReference, Section
from topiclake.config.source import Text

_NUMBERS = frozenset(
    {
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
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
_WORDS = {
    "check.crcs": ("true", "false"),
    "client.dns.lookup": ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "isolation.level": ("read_uncommitted", "read_committed"),
    "metadata.recovery.strategy": ("none", "rebootstrap"),
}
_TEXTS = frozenset({"client.id", "client.rack"})
ALLOWED = tuple(sorted(_NUMBERS | _TEXTS | set(_WORDS)))

_CHECKPOINT = "the checkpoint keeps the offsets, not Kafka"
_LOADS = "it loads a class into Spark's JVM, which may change records"
_GROUP = "Spark reads partitions by their numbers, without a group's members"
#: Why, and what to set instead. The first four and the last two are refused by Spark, or ignored.
_REFUSED = {
    "auto.offset.reset": "Spark decides where to begin: set starting_offsets of the pipeline",
    "key.deserializer": "keys come as bytes: set decode_key, or cast the column",
    "value.deserializer": "values come as bytes: set avro_form, or cast the column",
    "enable.auto.commit": _CHECKPOINT,
    "auto.commit.interval.ms": _CHECKPOINT,
    "interceptor.classes": _LOADS,
    "group.id": "queries that share a group get part of the records each: set kafka.group_id_prefix, where "
    "the broker allows groups by their prefix",
    "bootstrap.servers": "set kafka.bootstrap_servers",
    "security.protocol": "set kafka.security_protocol",
    "metric.reporters": _LOADS,
    "partition.assignment.strategy": _LOADS,
    "security.providers": _LOADS,
    "allow.auto.create.topics": "a topic with a typing error in its name would be created",
    "exclude.internal.topics": "set topic_pattern to what matches",
    "group.instance.id": _GROUP,
    "group.protocol": _GROUP,
    "group.remote.assignor": _GROUP,
    "heartbeat.interval.ms": _GROUP,
    "session.timeout.ms": _GROUP,
}
_PREFIXES = {
    "kafka.": "leave out the prefix kafka.",
    "sasl.": "logins are secrets: set kafka.sasl_mechanism, kafka.username and kafka.password",
    "ssl.": "set kafka.ca_file; what the broker's certificate says is always checked",
}


def _check_name(name: str) -> str:
    if name in ALLOWED:
        return name
    reason = _REFUSED.get(name) or next(
        (reason for start, reason in _PREFIXES.items() if name.startswith(start)), ""
    )
    if not reason and name.endswith((".class", ".classes")):
        reason = _LOADS
    raise ValueError(
        f"is not for a configuration: {reason}" if reason else f"is unknown; allowed: {', '.join(ALLOWED)}"
    )


def _check_values(given: dict[str, Any]) -> dict[str, str | int]:
    values: dict[str, str | int] = {}
    for name, value in given.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if name in _NUMBERS and not text.removeprefix("-").isdecimal():
            raise ValueError(f"{name} must be a whole number")
        if name in _WORDS and text not in _WORDS[name]:
            raise ValueError(f"{name} must be {' or '.join(_WORDS[name])}")
        values[name] = text if isinstance(value, bool) else value
    return values


#: Settings of the consumer as Kafka names them, without the prefix `kafka.`.
ConsumerSettings = Annotated[
    dict[Annotated[str, AfterValidator(_check_name)], bool | int | str], AfterValidator(_check_values)
]


class KafkaSettings(Section):
    """How to reach the broker."""

    #: Host and port of one broker or several, with commas between them.
    bootstrap_servers: Text
    #: The protocol of the broker's listener. Use SASL_SSL or SSL outside of a trusted network.
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    #: The mechanism that the broker has the login for; only SASL protocols use it.
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    #: The login; only SASL protocols use it.
    username: SecretReference | None = None
    password: SecretReference | None = None
    #: A PEM file with the authorities to trust. Set it when the system's own did not sign the certificate.
    ca_file: Path | None = None
    #: The prefix of the names of Spark's consumer groups. Set it when the broker allows groups by prefix
    #: only.
    group_id_prefix: Text | None = None
    #: Consumer settings as Kafka names them, without the prefix `kafka.`. The defaults of `conf/base.yaml`
    #: are measured. Change them for larger records, slow networks, or `isolation.level`.
    consumer: ConsumerSettings = Field(default_factory=dict)

    @property
    def is_sasl(self) -> bool:
        """Return whether the broker asks for a login."""
        return self.security_protocol.startswith("SASL")

    @property
    def isolation_level(self) -> str:
        """Of the consumer; `read_committed`, the default, leaves out records of aborted transactions."""
        return str(self.consumer.get("isolation.level", "read_committed"))
