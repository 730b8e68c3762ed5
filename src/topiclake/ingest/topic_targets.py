"""The targets of several topics in one query: each topic has its own table, quarantine and schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from topiclake.config import table_name
from topiclake.config.pipeline import QUARANTINE
from topiclake.config.settings import Settings
from topiclake.errors import IngestError
from topiclake.ingest import targets
from topiclake.ingest.targets import Target
from topiclake.kafka import client as kafka_client
from topiclake.kafka import source as kafka_source
from topiclake.storage import mount

#: Seconds between two attempts to resume a topic while the query runs.
RETRY_SECONDS = 60.0


@dataclass(frozen=True)
class Topics:
    """The targets of several topics; picklable, for Spark Connect.

    Attributes:
        template: A target whose paths and subjects hold `{topic}`.
        reader: Options of Spark's Kafka source without topics and offsets, to read a paused range again.
        ledger: Location of the Delta table of paused ranges.
        retry_seconds: Seconds between two attempts to resume a topic.
        fail_on_data_loss: Whether a topic is paused if Kafka has deleted records of it. Otherwise it
            continues with the remaining records.
        ids: By topic the id for the properties of a new table, if offsets order its changes.
        client: Settings of a confluent-kafka client.
        reads: A regular expression that matches the topics of the pipeline.
    """

    template: Target
    reader: Mapping[str, str] = field(repr=False)
    ledger: str
    client: Mapping[str, Any] = field(repr=False)
    reads: str
    retry_seconds: float = RETRY_SECONDS
    fail_on_data_loss: bool = True
    ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, settings: Settings, template: Target) -> Topics:
        """Return the topics of a configuration; the paths and subjects of `template` hold `{topic}`."""
        return cls(
            template=template,
            reader=kafka_source.range_options(settings.kafka),
            ledger=mount.resolve(settings.storage, settings.pipeline.paused_path),
            client=kafka_client.client_settings(settings.kafka),
            reads=kafka_source.pattern(settings.pipeline),
            fail_on_data_loss=settings.pipeline.fail_on_data_loss,
        )

    def has(self, topic: str) -> bool:
        """Return whether the pipeline reads a topic; otherwise it did so earlier."""
        return re.fullmatch(self.reads, topic) is not None

    def target(self, topic: str) -> Target:
        """Return the target of one topic."""
        return replace(
            self.template,
            topic=topic,
            table=table_name.for_topic(self.template.table, topic),
            quarantine=table_name.for_topic(self.template.quarantine, topic),
            schemas=self.template.schemas.for_topic(topic),
            properties={**self.template.properties, **targets.topic_property(topic, self.ids)},
        )


def owners_of(topics: Topics, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the topics by their table, as a catalog compares names."""
    owners: dict[str, list[str]] = {}
    for name in names:
        table = table_name.for_topic(topics.template.table, name)
        owners.setdefault(table_name.folded(table), []).append(name)
    return owners


def require_own_table(topics: Topics, topic: str, owners: Mapping[str, list[str]]) -> None:
    """Check that no other topic has the table of a topic, as its table or as its quarantine."""
    table = table_name.for_topic(topics.template.table, topic)
    if not table_name.is_allowed(table):
        raise IngestError(
            f"the table of topic {topic} would be {table}, and no catalog allows a dot in a table's name",
            "set table_path in place of table, or a separate pipeline for this topic",
            topic=topic,
            table=table,
            reason="table_name",
        )
    for other in owners.get(table_name.folded(table), ()):
        if other != topic:
            raise IngestError(
                f"topics {topic} and {other} would have the same table: a catalog ignores the case of names",
                "set table_path in place of table, or a separate pipeline for one of them",
                topic=topic,
                table=table,
                reason="table_name",
            )
    other = topic[: -len(QUARANTINE)]
    quarantine = table_name.for_topic(topics.template.quarantine, other)
    if other and table_name.folded(table) == table_name.folded(quarantine):
        raise IngestError(
            f"the table of topic {topic} would be the quarantine of topic {other}",
            "set a table or table_path that does not end with {topic}",
            topic=topic,
            reason="quarantine_of_another",
        )
