"""A plan of the next start of an ingest: offsets to read, and changes of tables. Nothing is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.config.pipeline import PipelineSettings
from topiclake.config.settings import Settings
from topiclake.config.source import EARLIEST, LATEST
from topiclake.delta import evolution, log_store
from topiclake.delta import table as delta
from topiclake.errors import SubjectNotFoundError
from topiclake.formats.avro import plain as avro_plain
from topiclake.formats.codec import Codecs
from topiclake.formats.declared import DeclaredFormat
from topiclake.ingest import targets
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.ingest.multi_topic import Topics
from topiclake.ingest.row_transform import Function
from topiclake.ingest.start_check import StartCheck
from topiclake.ingest.targets import Target
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import offsets as kafka_offsets
from topiclake.kafka import source as kafka_source
from topiclake.kafka.offsets import BrokerOffsets
from topiclake.schema_registry.wire_format import Part
from topiclake.session import require_avro_limits
from topiclake.sources import declared_rows, registered_rows
from topiclake.sources.table_snapshot import NO_TABLE, TableSnapshot, read_snapshot
from topiclake.storage.failures import storage_errors
from topiclake.streaming import checkpoint, lost_offsets
from topiclake.streaming.checkpoint import Offsets, Ranges

#: Number of records of a topic that are decoded for the plan, at most.
SAMPLE_RECORDS = 1_000


@dataclass(frozen=True)
class PlannedRange:
    """The offsets of a partition that would be read, from `first` to before `after`.

    `records` is the number of offsets. Compaction and transactions leave fewer records.
    """

    topic: str
    partition: int
    first: int
    after: int
    records: int


@dataclass(frozen=True)
class PlannedSchema:
    """A version of a subject. `refusal` is why its records would be quarantined, or "" if they would not."""

    subject: str
    version: int
    schema_id: int
    refusal: str


@dataclass(frozen=True)
class PlannedTable:
    """The table of a topic, and its changes by the next start.

    Attributes:
        topic: The topic.
        path: Resolved location of the table.
        quarantine_path: Resolved location of its quarantine.
        exists: Whether the table exists.
        columns: The columns of its rows, as DDL.
        changes: How the columns of an existing table would change, in words.
        schemas: The versions of the topic's subjects; none for values of a declared format.
        sample: Number of sampled records by reason: `ok`, or the reason for quarantine.
        rows_per_second: Rate of the fastest micro-batch of the last run; None if no run has two commits.
    """

    topic: str
    path: str
    quarantine_path: str
    exists: bool
    columns: str
    changes: tuple[str, ...]
    schemas: tuple[PlannedSchema, ...]
    sample: Mapping[str, int]
    rows_per_second: float | None = None


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


def plan_ingest(spark: SparkSession, settings: Settings, *, transform: Function | None = None) -> IngestPlan:
    """Return the plan of the next `start_ingest` of a pipeline, without changing anything.

    At most 1,000 records of each topic are read and decoded.

    Args:
        spark: The session.
        settings: The configuration.
        transform: The transform of `start_ingest`. It is applied only to the columns, not to rows.

    Raises:
        TopicNotFoundError, SubjectNotFoundError, IngestError, OffsetsLostError, KafkaError,
            SchemaRegistryError, StorageError: `start_ingest` would raise it before it writes.

    Example:
        >>> plan = tl.plan_ingest(spark, settings)
        >>> plan.records, plan.has_changes
        (0, False)
    """
    to, pipeline = targets.target(settings, transform), settings.pipeline
    several = Topics.from_settings(settings, to) if pipeline.has_table_for_each else None
    with storage_errors(settings.storage, to.checkpoint):
        known = lost_offsets.seen_topics(spark, to.checkpoint) if several is not None else set()
    kafka_admin.require_topics(settings.kafka, pipeline, waits=pipeline.wait_for_topic, known=known)
    require_avro_limits(spark)
    log_store.require_log_store(spark, to.table)
    with storage_errors(settings.storage, to.checkpoint):
        before = checkpoint.progress(spark, to.checkpoint)
    if pipeline.resume is None:
        StartCheck(spark, settings, to, before, several).run()
    if several is None and pipeline.fail_on_data_loss:
        with storage_errors(settings.storage, to.checkpoint):
            if loss := lost_offsets.describe_loss(spark, settings, to.checkpoint):
                raise loss
    held = kafka_offsets.pipeline_offsets(settings.kafka, pipeline, before.position or [])
    ranges = _ranges(settings, before.position, held)
    tables = []
    with storage_errors(settings.storage, to.table):
        for topic in sorted(held.offsets):
            target = to if several is None else several.target(topic)
            sample = _sample(spark, settings, [planned for planned in ranges if planned.topic == topic])
            tables.append(_table(spark, settings, topic, target, sample))
    return IngestPlan(
        settings.name,
        pipeline.value_format,
        to.checkpoint,
        before.position is None,
        tuple(ranges),
        tuple(tables),
    )


def _ranges(settings: Settings, position: Offsets | None, held: BrokerOffsets) -> list[PlannedRange]:
    starts = _starts(settings, held) if position is None else {}
    ranges = []
    for topic, spans in held.offsets.items():
        assigned = (settings.pipeline.assign or {}).get(topic)
        for partition, (oldest, after) in spans.items():
            if assigned is not None and partition not in assigned:
                continue
            # A partition that the checkpoint does not know yet is read from its oldest record on.
            known = starts if position is None else position
            first = min(max(known.get(topic, {}).get(partition, oldest), oldest), after)
            ranges.append(PlannedRange(topic, partition, first, after, after - first))
    return ranges


def _starts(settings: Settings, held: BrokerOffsets) -> Offsets:
    """Return the first offsets of a new checkpoint, by topic and partition."""
    configured = settings.pipeline.starting_offsets
    starts: Offsets = {}
    times: dict[tuple[str, int], datetime] = {}
    for topic, spans in held.offsets.items():
        for partition, (oldest, after) in spans.items():
            start: object = configured
            if isinstance(configured, dict):
                start = configured.get(topic, {}).get(str(partition), EARLIEST)
            if isinstance(start, datetime):
                times[topic, partition] = start
            elif start in ("latest", LATEST):
                starts.setdefault(topic, {})[partition] = after
            elif isinstance(start, int) and start != EARLIEST:
                starts.setdefault(topic, {})[partition] = start
            else:
                starts.setdefault(topic, {})[partition] = oldest
    for (topic, partition), offset in kafka_offsets.offsets_since(settings.kafka, times).items():
        # A negative offset: no record is as new, so the partition is read from its end on.
        starts.setdefault(topic, {})[partition] = offset if offset >= 0 else held.offsets[topic][partition][1]
    return starts


def _sample(spark: SparkSession, settings: Settings, ranges: Iterable[PlannedRange]) -> DataFrame | None:
    """Return the first records of each partition, or None without records."""
    readable = [planned for planned in ranges if planned.records]
    if not readable:
        return None
    each = max(1, SAMPLE_RECORDS // len(readable))
    spans: Ranges = {}
    for planned in readable:
        end = min(planned.after, planned.first + each)
        spans.setdefault(planned.topic, {})[planned.partition] = (planned.first, end)
    options = kafka_source.range_options(settings.kafka)
    records = kafka_source.read_range(spark, options, spans, fail_on_data_loss=False)
    return records.select(*kafka_source.RECORD_COLUMNS)


def _table(
    spark: SparkSession, settings: Settings, topic: str, target: Target, sample: DataFrame | None
) -> PlannedTable:
    if settings.pipeline.is_registered:
        columns, snapshot, schemas, counts = _registered(spark, target, sample)
    else:
        columns, snapshot, counts = _declared(spark, settings.pipeline, target, sample)
        schemas = ()
    exists = snapshot is not NO_TABLE
    return PlannedTable(
        topic,
        target.table,
        target.quarantine,
        exists,
        columns.toDDL(),
        tuple(evolution.changes(snapshot.columns, columns)) if exists else (),
        schemas,
        counts,
        _rows_per_second(spark, target.table) if exists else None,
    )


def _rows_per_second(spark: SparkSession, path: str) -> float | None:
    """Return the rate of the fastest commit of the last run, without its first commit; None if unknown."""
    commits = delta.history(spark, path).withColumn("run", F.get_json_object("batch", "$.run"))
    by_run = Window.partitionBy("run").orderBy("version")
    seconds = F.col("timestamp").cast("double") - F.lag("timestamp").over(by_run).cast("double")
    rates = commits.where("run IS NOT NULL").select(
        "version", "run", F.try_divide("rows", seconds).alias("rate")
    )
    newest = rates.groupBy("run").agg(F.max("rate").alias("rate"), F.max("version").alias("version"))
    known = newest.where("rate > 0").orderBy(F.desc("version")).limit(1).collect()
    return known[0]["rate"] if known else None


def _registered(
    spark: SparkSession, target: Target, sample: DataFrame | None
) -> tuple[StructType, TableSnapshot, tuple[PlannedSchema, ...], Mapping[str, int]]:
    schemas, layout = BatchSchemas(target), target.schemas.layout
    codecs, snapshot = schemas.planned(spark)
    counts: Mapping[str, int] = {}
    if sample is not None:
        tally = registered_rows.tally(_tagged(sample, schemas, codecs), codecs, layout)
        if any(tally.late.values()):
            # Schemas that no subject lists are asked for by id, as a micro-batch asks for them.
            schemas.look_up(tally.late)
            codecs, snapshot = schemas.planned(spark)
            tally = registered_rows.tally(_tagged(sample, schemas, codecs), codecs, layout)
        counts = dict(tally.reasons)
    target.schemas.require_usable(codecs)
    return schemas.columns(spark, codecs), snapshot, tuple(_versions(target, codecs)), counts


def _tagged(sample: DataFrame, schemas: BatchSchemas, codecs: Codecs) -> DataFrame:
    return avro_plain.tag_plain_records(sample, codecs.value, schemas.plain(codecs))


def _versions(target: Target, codecs: Codecs) -> Iterable[PlannedSchema]:
    part: Part
    for part, codec in codecs.parts.items():
        for subject in target.schemas.subjects[part]:
            try:
                versions = target.schemas.registry.versions(subject)
            except SubjectNotFoundError:
                # One of several subjects is enough, and `planned` has found another one.
                continue
            for version in versions:
                refusal = ": ".join(codec.refused.get(version.schema_id, ()))
                yield PlannedSchema(subject, version.version, version.schema_id, refusal)


def _declared(
    spark: SparkSession, pipeline: PipelineSettings, target: Target, sample: DataFrame | None
) -> tuple[StructType, TableSnapshot, Mapping[str, int]]:
    values, layout = DeclaredFormat.from_settings(pipeline), target.schemas.layout
    snapshot = read_snapshot(spark, target.table) or NO_TABLE
    columns, enforced = declared_rows.columns(spark, values, layout), snapshot
    if target.transform is not None:
        columns, enforced = target.transform.columns(spark, columns), NO_TABLE
    if sample is None:
        return columns, snapshot, {}
    counted = declared_rows.decode(values, sample, layout, enforced).groupBy("reason").count().collect()
    return columns, snapshot, {row["reason"]: row["count"] for row in counted}
