"""A plan of the next start of an ingest: offsets to read, and changes of tables. Nothing is written."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pyspark.sql import DataFrame, SparkSession

from topiclake.config.settings import Settings
from topiclake.delta import log_store
from topiclake.ingest import start, start_state, targets
from topiclake.ingest.planned_ranges import PlannedRange, planned_ranges, read_sample
from topiclake.ingest.planned_tables import PlannedTable, planned_table
from topiclake.ingest.row_transform import Function
from topiclake.ingest.table_topics import TableTopics
from topiclake.ingest.topic_targets import Topics
from topiclake.kafka import offsets as kafka_offsets
from topiclake.local_frame import local_frame
from topiclake.session import require_redaction
from topiclake.storage.failures import storage_errors


@dataclass(frozen=True)
class IngestPlan:
    """The plan of the next start of an ingest.

    Attributes:
        pipeline: Name of the pipeline.
        value_format: Format of the values.
        checkpoint_path: Resolved location of the checkpoint.
        is_first_start: Whether the checkpoint has not begun.
        ranges: The offsets that would be read.
        tables: The table of each topic.
    """

    pipeline: str
    value_format: str
    checkpoint_path: str
    is_first_start: bool
    ranges: tuple[PlannedRange, ...]
    tables: tuple[PlannedTable, ...]

    @property
    def records(self) -> int:
        """Number of offsets that would be read."""
        return sum(planned.records for planned in self.ranges)

    @property
    def has_changes(self) -> bool:
        """Whether a start would read a record, create a table or change one."""
        return self.records > 0 or any(table.changes or not table.exists for table in self.tables)

    @property
    def seconds(self) -> float | None:
        """Estimated duration of the ingest; None if a table has no rate yet."""
        seconds = 0.0
        for table in self.tables:
            records = sum(planned.records for planned in self.ranges if planned.topic == table.topic)
            if records and table.rows_per_second is None:
                return None
            seconds += records / (table.rows_per_second or 1)
        return seconds

    def to_json(self, indent: int | None = None) -> str:
        """Return the plan as the exit value of a notebook, with `records`, `seconds` and `has_changes`."""
        derived = {"records": self.records, "seconds": self.seconds, "has_changes": self.has_changes}
        return json.dumps(asdict(self) | derived, indent=indent)

    def offsets(self, spark: SparkSession) -> DataFrame:
        """Return the offsets that would be read, one row for each partition."""
        columns = "topic STRING, partition INT, first BIGINT, after BIGINT, records BIGINT"
        rows = [(each.topic, each.partition, each.first, each.after, each.records) for each in self.ranges]
        return local_frame(spark, rows, columns)

    def summary(self, spark: SparkSession) -> DataFrame:
        """Return each topic's table as rows: `topic STRING, fact STRING, value STRING`."""
        rows = [(table.topic, fact, value) for table in self.tables for fact, value in table.facts()]
        return local_frame(spark, rows, "topic STRING, fact STRING, value STRING")


def plan_ingest(spark: SparkSession, settings: Settings, *, transform: Function | None = None) -> IngestPlan:
    """Return the plan of the next `start_ingest` of a pipeline, without changing anything.

    At most 1,000 records of each topic are read and decoded. With `resume=table` and no checkpoint, the start
    also writes older records that are in neither table. The plan does not count those.

    Args:
        spark: The session.
        settings: The configuration.
        transform: The transform of `start_ingest`. It is applied only to the columns, not to rows.

    Returns:
        The offsets that would be read, and the columns, versions and sampled reasons of each table.

    Raises:
        TopicNotFoundError, SubjectNotFoundError, IngestError, ConfigError, OffsetsLostError, KafkaError,
            SchemaRegistryError, StorageError: `start_ingest` would raise it before it writes.

    Example:
        >>> plan = tl.plan_ingest(spark, settings)
        >>> plan.records, plan.has_changes
        (0, False)
    """
    base_target, pipeline = targets.target(settings, transform), settings.pipeline
    topics = Topics.from_settings(settings, base_target) if pipeline.has_table_for_each else None
    require_redaction(spark)
    log_store.require_log_store(spark, base_target.table, base_target.quarantine)
    state = start_state.read(spark, settings, base_target)
    position = state.progress.position
    table_topics = TableTopics(spark, settings, base_target, topics)
    settings, _, _ = start.checked(spark, settings, base_target, state, topics, table_topics, is_plan=True)
    broker_offsets = kafka_offsets.pipeline_offsets(settings.kafka, pipeline, position or [])
    ranges = planned_ranges(settings, position, broker_offsets)
    tables = []
    with storage_errors(settings.storage, base_target.table):
        for topic in sorted(broker_offsets.offsets):
            target = base_target if topics is None else topics.target(topic)
            sample = read_sample(spark, settings, [planned for planned in ranges if planned.topic == topic])
            tables.append(planned_table(spark, settings, topic, target, sample))
    return IngestPlan(
        settings.name,
        pipeline.value_format,
        base_target.checkpoint,
        position is None,
        tuple(ranges),
        tuple(tables),
    )
