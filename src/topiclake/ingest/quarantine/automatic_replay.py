"""Automatic replay of quarantined records when the registry knows their schema."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from topiclake.config.pipeline import PipelineSettings
from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.errors import TopiclakeError
from topiclake.ingest.quarantine import replay_claims
from topiclake.ingest.quarantine.replay import replay_quarantine
from topiclake.ingest.row_transform import Function
from topiclake.reasons import UNKNOWN_SCHEMA_ID
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.storage import mount
from topiclake.streaming import checkpoint, progress
from topiclake.threads import side_by_side

_LOG = logging.getLogger(__name__)
#: Interval at which a running query checks whether a schema has become known (s).
EVERY_SECONDS = 60
#: Number of unknown schemas that are checked, at most; those of the most records come first.
_MOST = 100


@dataclass
class _Waiting:
    """Schemas that records of one topic wait for.

    Attributes:
        settings: The configuration of the topic.
        quarantine: Resolved location of the quarantine.
        transform: The transform of its rows.
        version: Version of the quarantine when it was last read; None before the first read.
        ids: Schemas that its records wait for.
        replayed: Schemas whose records were replayed; records that still wait have another problem.
        registry: The registry, once records wait: its client is not cheap, and usually no record waits.
    """

    settings: Settings
    quarantine: str
    transform: Function | None
    version: int | None = None
    ids: list[int] = field(default_factory=list)
    replayed: set[int] = field(default_factory=set)
    registry: SchemaRegistry | None = None

    def read(self, spark: SparkSession) -> None:
        """Read the schemas that records wait for, if the quarantine has changed since the last read."""
        path = self.quarantine
        if not delta.is_table(spark, path):
            return
        version = delta.latest_version(spark, path)
        if version == self.version:
            return
        waiting = replay_claims.read(spark, path).where(
            (F.col("topic") == self.settings.pipeline.topic)
            & (F.col("reason") == UNKNOWN_SCHEMA_ID)
            & F.col("schema_id").isNotNull()
            & F.col("replayed_at").isNull()
        )
        self.ids, self.version = [], version
        # Usually no record waits, and that check costs less than a count.
        if not waiting.isEmpty():
            counts = waiting.groupBy("schema_id").count().orderBy(F.desc("count")).limit(_MOST)
            self.ids = [row["schema_id"] for row in counts.collect()]

    def registered_ids(self) -> set[int]:
        """Return the schemas that the registry knows now."""
        ids = [schema_id for schema_id in self.ids if schema_id not in self.replayed]
        if not ids:
            return set()
        if self.registry is None:
            self.registry = SchemaRegistry.from_settings(self.settings.schema_registry)
        schemas, _, _ = self.registry.by_ids(ids)
        return set(schemas)


def run_at_start(spark: SparkSession, settings: Settings, transform: Function | None = None) -> None:
    """Replay records at the start of a query with the trigger `availableNow`."""
    if _is_enabled(settings.pipeline) and settings.pipeline.trigger == "availableNow":
        _check_topics(spark, settings, transform, {})


def watch(
    query: StreamingQuery, spark: SparkSession, settings: Settings, transform: Function | None = None
) -> None:
    """Replay records while a query runs, when the schema that they wait for becomes known."""
    if _is_enabled(settings.pipeline) and settings.pipeline.trigger != "availableNow":
        arguments = (query, spark, settings, transform)
        threading.Thread(target=_watch, args=arguments, name=f"replay of {query.name}", daemon=True).start()


def _is_enabled(pipeline: PipelineSettings) -> bool:
    return pipeline.automatic_replay and pipeline.is_registered and pipeline.mode == "PERMISSIVE"


def _watch(
    query: StreamingQuery, spark: SparkSession, settings: Settings, transform: Function | None
) -> None:
    states: dict[str, _Waiting] = {}
    while not progress.has_ended(query, EVERY_SECONDS):
        _check_topics(spark, settings, transform, states)


def _check_topics(
    spark: SparkSession, settings: Settings, transform: Function | None, states: dict[str, _Waiting]
) -> None:
    """Check each topic; `states` keeps the state between checks. Errors are only logged."""

    def check(topic: str) -> None:
        with _problems_logged(f"topic {topic}"):
            if topic not in states:
                of_topic = settings.for_topic(topic)
                quarantine = mount.resolve_table(settings.storage, of_topic.pipeline.quarantine_path)
                states[topic] = _Waiting(of_topic, quarantine, transform)
            _replay(spark, states[topic])

    with _problems_logged(f"pipeline {settings.name}"):
        side_by_side(spark, (partial(check, topic) for topic in _topics(spark, settings)))


@contextmanager
def _problems_logged(subject: str) -> Iterator[None]:
    try:
        yield
    except (TopiclakeError, PySparkException, Py4JError) as error:
        problem = " ".join(str(error).split())[:500]
        _LOG.warning("%s: its quarantine cannot be replayed now: %s", subject, problem)


def _topics(spark: SparkSession, settings: Settings) -> Iterable[str]:
    """Return the topics; in a pipeline of several topics, those that the checkpoint knows."""
    if not settings.pipeline.has_table_for_each:
        return settings.pipeline.topics
    path = mount.resolve(settings.storage, settings.pipeline.checkpoint_path)
    return sorted(checkpoint.position(spark, path) or [])


def _replay(spark: SparkSession, waiting: _Waiting) -> None:
    waiting.read(spark)
    if ids := waiting.registered_ids():
        report = replay_quarantine(spark, waiting.settings, [UNKNOWN_SCHEMA_ID], transform=waiting.transform)
        waiting.replayed |= ids
        _LOG.warning(
            "topic %s: %d records left the quarantine, since the registry knows their schemas now (%s)",
            waiting.settings.pipeline.topic,
            report.replayed,
            ", ".join(map(str, sorted(ids))),
        )
