"""The topic whose offsets order the changes of a table, by the id of Kafka.

Another topic has other offsets. Its changes would look older than the rows, and would change nothing. So the
table notes its topic, and a start with another one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial

from pyspark.sql import SparkSession

from topiclake.changes.rules import PROPERTY as CHANGES_PROPERTY
from topiclake.config.settings import Settings
from topiclake.delta import catalog
from topiclake.delta import table as delta
from topiclake.errors import IngestError
from topiclake.ingest.targets import TOPIC_PROPERTY, Target, topic_property
from topiclake.ingest.topic_targets import Topics
from topiclake.kafka import offsets as kafka_offsets
from topiclake.storage.failures import storage_errors
from topiclake.threads import side_by_side


@dataclass(frozen=True)
class TableTopics:
    """The topics of a start, and their tables.

    Attributes:
        spark: The session.
        settings: The configuration.
        target: The tables; for several topics, their paths contain `{topic}`.
        topics: The targets of several topics; None for a single table.
    """

    spark: SparkSession
    settings: Settings
    target: Target
    topics: Topics | None

    @cached_property
    def ids(self) -> Mapping[str, str]:
        """By topic its id, if the broker returns it; empty if offsets do not order changes of the tables.

        Raises:
            KafkaError: The broker cannot be reached, or refuses the request.
        """
        settings = self.settings
        if not settings.pipeline.orders_changes_by_offset:
            return {}
        return kafka_offsets.pipeline_offsets(settings.kafka, settings.pipeline, []).ids

    def require_same(self) -> None:
        """Check that each table with rows has the changes of its topic, if it has noted one.

        Raises:
            IngestError: It has those of another topic.
            KafkaError, StorageError: The broker or a table cannot be used.
        """
        with self._storage_errors():
            for topic, (target, noted) in self._noted().items():
                is_other = noted.get("id", self.ids[topic]) != self.ids[topic]
                if is_other and not delta.read(self.spark, target.table).isEmpty():
                    raise self._other_topic(target, topic, noted)

    def note(self) -> None:
        """Note the topic in each table without a note, and in an empty one with that of another topic."""
        with self._storage_errors():
            for topic, (target, noted) in self._noted().items():
                if noted.get("id") != self.ids[topic]:
                    delta.set_properties(self.spark, target.table, topic_property(topic, self.ids))

    def _noted(self) -> dict[str, tuple[Target, Mapping[str, str]]]:
        """Return by topic its table of changes, if it exists, and the name and the id in the note."""

        def of_table(topic: str) -> tuple[str, tuple[Target, Mapping[str, str]]] | None:
            target = self.target if self.topics is None else self.topics.target(topic)
            if not delta.is_table(self.spark, target.table):
                return None
            properties = delta.properties(self.spark, target.table)
            if CHANGES_PROPERTY not in properties:
                return None
            return topic, (target, json.loads(properties.get(TOPIC_PROPERTY, "{}")))

        tables = side_by_side(self.spark, (partial(of_table, topic) for topic in self.ids))
        return dict(found for found in tables if found is not None)

    def _storage_errors(self) -> AbstractContextManager[None]:
        return storage_errors(self.settings.storage, self.target.table)

    def _other_topic(self, target: Target, topic: str, noted: Mapping[str, str]) -> IngestError:
        return IngestError(
            f"topic {topic} has the id {self.ids[topic]}, but offsets of topic {noted['name']} with the id "
            f"{noted['id']} order the changes in {target.table}",
            "set a new checkpoint_path and table_path; or, if this topic has the same records at the same "
            f"offsets, ALTER TABLE {catalog.identifier(target.table)} UNSET TBLPROPERTIES "
            f"('{TOPIC_PROPERTY}')",
            pipeline=self.settings.name,
            topic=topic,
            table=target.table,
            found=self.ids[topic],
            expected=noted["id"],
            reason="other_topic",
        )
