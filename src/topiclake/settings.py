"""The typed configuration: what may stand in conf/, and what it means."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal
from uuid import uuid4

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    model_validator,
)

from topiclake.errors import ConfigError

#: What is added to a table's path for its quarantine.
QUARANTINE = "_quarantine"

#: A secret is a reference to a scope and a key, as in Databricks' own job files.
SECRET_REFERENCE = re.compile(r"^\{\{secrets/([\w.@-]+)/([\w.@-]+)\}\}$")

SecretReader = Callable[[str, str], str]


class Secret:
    """A reference `{{secrets/scope/key}}`, resolved when it is used and never printed."""

    def __init__(self, scope: str, key: str, read: SecretReader | None) -> None:
        self._scope, self._key, self._read = scope, key, read

    @property
    def name(self) -> str:
        """Scope and key."""
        return f"{self._scope}/{self._key}"

    def reveal(self) -> str:
        """Return the secret's value.

        Raises:
            ConfigError: Nothing was given that can read secrets, or it does not know this one.
        """
        if self._read is None:
            raise ConfigError(
                f"the secret {self._scope}/{self._key} is asked for, but nothing here can read secrets",
                "pass secrets=dbutils.secrets.get to load_settings",
            )
        return self._read(self._scope, self._key)

    def __repr__(self) -> str:
        return f"Secret({self._scope}/{self._key}, [REDACTED])"


def _parse_secret(value: object, info: ValidationInfo) -> Secret:
    if isinstance(value, Secret):
        return value
    match = SECRET_REFERENCE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a reference {{secrets/<scope>/<key>}}, never the secret itself")
    return Secret(match[1], match[2], (info.context or {}).get("secrets"))


def _parse_offsets(value: object) -> object:
    """Accept earliest, latest, or Kafka's JSON of offsets for each partition."""
    if isinstance(value, str) and value not in ("earliest", "latest"):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(
                'must be earliest, latest or JSON like {"gps": {"0": 23, "1": -2}} (-2: earliest, -1: latest)'
            ) from error
    return value


def _check_offsets(value: object, info: ValidationInfo) -> object:
    """Spark takes the offsets of the topic that it reads, and of no other."""
    topic = info.data.get("topic")
    if isinstance(value, dict) and topic is not None and set(value) != set(_listed(topic)):
        raise ValueError(f"must be those of topic {topic} alone")
    return value


def _listed(topics: str) -> list[str]:
    return [name.strip() for name in topics.split(",") if name.strip()]


def _check_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    return value


def _check_trigger(value: str) -> str:
    if value != "availableNow" and not re.fullmatch(r"\d+ (second|minute|hour)s?", value):
        raise ValueError("must be availableNow or an interval such as '10 seconds'")
    return value


SecretReference = Annotated[Secret, BeforeValidator(_parse_secret), PlainSerializer(repr)]
StartingOffsets = Annotated[
    Literal["earliest", "latest"] | dict[str, dict[str, int]],
    BeforeValidator(_parse_offsets),
    AfterValidator(_check_offsets),
]
Trigger = Annotated[str, AfterValidator(_check_trigger)]
Text = Annotated[str, Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class KafkaSettings(_Section):
    """How to reach the broker."""

    bootstrap_servers: Text
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    username: SecretReference | None = None
    password: SecretReference | None = None
    #: A PEM file with the authorities to trust, where the system's own do not do.
    ca_file: Path | None = None
    #: Consumer settings as Kafka names them, without the prefix `kafka.`.
    consumer: dict[str, str | int] = Field(default_factory=dict)

    @property
    def is_sasl(self) -> bool:
        """Tell whether the broker asks for a login."""
        return self.security_protocol.startswith("SASL")


class SchemaRegistrySettings(_Section):
    """How to reach the schema registry."""

    url: Annotated[str, Field(pattern=r"^https?://")]
    username: SecretReference | None = None
    password: SecretReference | None = None
    ca_file: Path | None = None
    #: How long a micro-batch waits for a registry that gives no answer, before the query fails.
    retry_seconds: Annotated[float, Field(ge=0)] = 300


class StorageSettings(_Section):
    """Where tables and checkpoints live: a source, mounted at a mount point."""

    source: Text
    mount_point: Annotated[str, Field(pattern=r"^/mnt/[\w.-]+$")]
    #: For wasbs: the shared access signature of the container.
    sas_token: SecretReference | None = None


class PipelineSettings(_Section):
    """One topic into one table, or several, each into its own."""

    #: A topic, or several with commas between them; then paths hold `{topic}`.
    topic: Text
    #: A regular expression: the topics whose whole names match it, also new ones, instead of `topic`.
    topic_pattern: Annotated[str, AfterValidator(_check_pattern)] | None = None
    starting_offsets: StartingOffsets = "earliest"
    mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE"
    trigger: Trigger = "availableNow"
    max_offsets_per_trigger: Annotated[int, Field(gt=0)] | None = None
    view: Annotated[str, Field(pattern=r"^\w+$")]
    table_path: Text
    checkpoint_path: Text
    #: Where the schemas' subjects get their names from, as Confluent's serializers have it.
    subject_strategy: Literal["topic_name", "record_name", "topic_record_name"] = "topic_name"
    #: Full names of the records in the topic, for the strategies that name subjects by them; a record that is
    #: not listed is looked up by its schema id.
    record_names: tuple[Text, ...] = ()
    #: Whether keys are Avro and decoded too, into the column `_key`.
    decode_key: bool = False
    #: Whether rows carry `_headers ARRAY<STRUCT<key STRING, value BINARY>>`.
    headers_column: bool = False
    #: Whether rows carry `_kafka`; without it nothing can be audited.
    kafka_column: bool = True
    #: Fields of `_kafka`; each further one costs about a tenth of the throughput. Several pipelines that
    #: share a table need `topic` for an audit.
    kafka_fields: tuple[Literal["partition", "offset", "topic", "timestamp"], ...] = ("partition", "offset")
    #: What becomes of a record without a value.
    tombstones: Literal["quarantine", "skip"] = "quarantine"
    #: Table properties of Delta and Parquet, set when the table is created.
    table_properties: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_paths(self) -> PipelineSettings:
        if self.has_several_topics and "{topic}" not in self.table_path:
            raise ValueError("table_path must hold {topic}: each of several topics has a table of its own")
        return self

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are listed."""
        return tuple(_listed(self.topic))

    @property
    def has_several_topics(self) -> bool:
        """Whether each topic has a table of its own, be it one topic for now."""
        return self.topic_pattern is not None or len(self.topics) > 1 or "{topic}" in self.table_path

    @property
    def paused_path(self) -> str:
        """The table of what paused topics have missed, beside the checkpoint."""
        return f"{self.checkpoint_path.rstrip('/')}_paused"

    def subjects(self, part: Literal["value", "key"], *, topic: str) -> tuple[str, ...]:
        """Return the subjects of `topic` whose versions are known without a look at the records."""
        if part == "key" or self.subject_strategy == "topic_name":
            return (f"{topic}-{part}",)
        if self.subject_strategy == "record_name":
            return self.record_names
        return tuple(f"{topic}-{name}" for name in self.record_names)

    @property
    def quarantine_path(self) -> str:
        """The table of the records that are not in `table_path`, beside it."""
        return f"{self.table_path.rstrip('/')}{QUARANTINE}"


class Settings(_Section):
    """The whole configuration of one pipeline."""

    env: str
    name: str
    kafka: KafkaSettings
    schema_registry: SchemaRegistrySettings
    storage: StorageSettings
    pipeline: PipelineSettings
    #: Names this run in the tables' histories.
    run_id: str = Field(default_factory=lambda: uuid4().hex)
    #: When the configuration was read, in UTC.
    loaded_at: datetime = Field(default_factory=lambda: datetime.now(timezone.utc))

    def only_topic(self) -> Settings:
        """Return the configuration of its topic.

        Raises:
            ConfigError: It has several, each with tables of its own.
        """
        if self.pipeline.topic_pattern is not None or len(self.pipeline.topics) > 1:
            raise ConfigError(
                f"pipeline {self.name} has several topics, each with a table and a quarantine of its own",
                "settings.for_topic('<topic>') in a notebook, -p topic=<topic> on a command line",
            )
        return self.for_topic(self.pipeline.topic)

    def for_topic(self, topic: str) -> Settings:
        """Return the configuration of one of several topics: its own table, quarantine and subjects."""
        one = {
            "topic": topic,
            "topic_pattern": None,
            "table_path": self.pipeline.table_path.replace("{topic}", topic),
        }
        return self.model_copy(update={"pipeline": self.pipeline.model_copy(update=one)})
