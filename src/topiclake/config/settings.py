"""The typed configuration of one pipeline: all sections together."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated
from uuid import uuid4

from pydantic import Field

from topiclake.config import table_name
from topiclake.config.database import DatabaseSettings
from topiclake.config.kafka import KafkaSettings
from topiclake.config.lineage import LineageSettings
from topiclake.config.pipeline import PipelineSettings
from topiclake.config.schema_registry import SchemaRegistrySettings
from topiclake.config.secret import Section
from topiclake.config.storage import StorageSettings
from topiclake.config.webhook import WebhookSettings
from topiclake.errors import ConfigError


class StateSettings(Section):
    """How streams with windows, joins and counts keep their state; see `topiclake.set_state`."""

    #: Partitions of the state, fixed when a checkpoint begins. None: Spark's own setting. Set it to the
    #: number of cores of a small cluster, because each partition is a task and files of each batch.
    partitions: Annotated[int, Field(gt=0, le=10_000)] | None = None
    #: The memory of an executor that RocksDB may use in addition to the JVM, in MB. Raise it when the state
    #: is larger and batches read it from disk.
    memory_mb: Annotated[int, Field(ge=16)] = 256


class Settings(Section):
    """The whole configuration of one pipeline.

    Example:
        >>> settings = tl.load_settings("readings", {"env": "local", "trigger": "10 seconds"}, conf=conf)
        >>> settings.pipeline.topic, settings.pipeline.trigger
        ('readings', '10 seconds')
        >>> isinstance(settings, tl.Settings)
        True
    """

    env: str
    name: str
    kafka: KafkaSettings
    schema_registry: SchemaRegistrySettings
    storage: StorageSettings
    pipeline: PipelineSettings
    #: For streams with windows, joins and counts.
    state: StateSettings = Field(default_factory=StateSettings)
    #: Needed by sinks that write to a database.
    database: DatabaseSettings | None = None
    #: Set it to send notifications to people; without it they are in the log alone.
    webhook: WebhookSettings | None = None
    #: Set it when a catalog collects OpenLineage events; each micro-batch of an ingest sends one.
    lineage: LineageSettings | None = None
    #: Names this run in the tables' histories.
    run_id: str = Field(default_factory=lambda: uuid4().hex)
    #: When the configuration was read, in UTC.
    loaded_at: datetime = Field(default_factory=lambda: datetime.now(timezone.utc))
    #: By key, such as `kafka.bootstrap_servers`, the file or the word `parameter`; other keys have defaults.
    origins: dict[str, str] = Field(default_factory=dict, exclude=True, repr=False)

    def only_topic(self) -> Settings:
        """Return the configuration of its topic.

        Raises:
            ConfigError: It has several topics, each with separate tables.
        """
        if self.pipeline.has_several_topics:
            raise ConfigError(
                f"pipeline {self.name} has several topics, each with a separate table and quarantine",
                "use settings.for_topic('<topic>') in a notebook, -p topic=<topic> on a command line",
                pipeline=self.name,
            )
        return self.for_topic(self.pipeline.topic)

    def for_topic(self, topic: str) -> Settings:
        """Return the configuration of one of several topics: its own table, quarantine and subjects."""
        assign = self.pipeline.assign or {}
        key = "table_path" if self.pipeline.table is None else "table"
        changes = {
            "topic": topic,
            "topic_pattern": None,
            "assign": {topic: assign[topic]} if topic in assign else None,
            key: table_name.for_topic(self.pipeline.location, topic),
        }
        return self.model_copy(update={"pipeline": self.pipeline.model_copy(update=changes)})
