"""The table of a topic, and its changes by the next start of an ingest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.config.pipeline import PipelineSettings
from topiclake.config.settings import Settings
from topiclake.delta import evolution
from topiclake.delta import table as delta
from topiclake.errors import SubjectNotFoundError
from topiclake.formats.avro import plain as avro_plain
from topiclake.formats.codec import Codecs
from topiclake.formats.declared import DeclaredFormat
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.ingest.targets import LATE, Target, writer_name
from topiclake.reasons import OK
from topiclake.schema_registry.wire_format import Part
from topiclake.sources import declared_rows, registered_rows
from topiclake.sources.layout import KEY_COLUMN
from topiclake.sources.table_snapshot import NO_TABLE, TableSnapshot, read_snapshot
from topiclake.streaming import checkpoint


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
        rows_per_second: Rate of the fastest micro-batch of the last run with rows; None without such a run.
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

    def facts(self) -> Iterable[tuple[str, str]]:
        """Return the facts about the table for a reader, each with its name."""
        counts = ", ".join(f"{reason}: {count:,}" for reason, count in sorted(self.sample.items()))
        yield "sample", counts or "no record to sample"
        for schema in self.schemas:
            version = f"{schema.subject}, version {schema.version}, id {schema.schema_id}"
            yield "schema", f"{version}: {schema.refusal or 'fits'}"
        yield "table", f"{self.path} ({'exists' if self.exists else 'would be created'})"
        yield "columns", self.columns
        yield from (("change", change) for change in self.changes)
        yield "quarantine", self.quarantine_path


def planned_table(
    spark: SparkSession, settings: Settings, topic: str, target: Target, sample: DataFrame | None
) -> PlannedTable:
    """Return the table of a topic, with its changes, and the reasons of sampled records."""
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
        _rows_per_second(spark, target) if exists else None,
    )


def _rows_per_second(spark: SparkSession, target: Target) -> float | None:
    """Return the rate of the fastest micro-batch of the last run; None if no rate is known.

    The duration of a micro-batch is from its entry in the checkpoint to its commit in the table.
    """
    begun = checkpoint.begin_times(spark, target.checkpoint)
    if begun is None:
        return None
    # The rows of a MERGE include those that it did not change.
    counts = (
        F.get_json_object("batch", f"$.changes.{name}").cast("bigint") for name in ("merged", "superseded")
    )
    records_of_changes = reduce(Column.__add__, counts)
    commits = delta.history(spark, target.table).select(
        "version",
        F.coalesce(records_of_changes, "rows").alias("records"),
        F.col("timestamp").cast("double").alias("committed"),
        F.get_json_object("batch", "$.writer").alias("writer"),
        F.get_json_object("batch", "$.run").alias("run"),
        F.get_json_object("batch", "$.batch_id").cast("bigint").alias("batch_id"),
    )
    rate = F.try_divide("records", F.col("committed") - F.col("begun"))
    writer = writer_name(target, spark)
    # Batches of other queries may have the same numbers.
    own = commits.where(F.col("run").isNotNull() & F.col("writer").isin(writer, writer + LATE))
    rates = own.join(begun, "batch_id").withColumn("rate", rate)
    by_run = rates.groupBy("run").agg(F.max("rate").alias("rate"), F.max("version").alias("version"))
    newest = by_run.where("rate > 0").orderBy(F.desc("version")).limit(1).collect()
    return newest[0]["rate"] if newest else None


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
        decoded = registered_rows.decode(_tagged(sample, schemas, codecs), codecs, layout)
        rows = registered_rows.valid_rows(registered_rows.as_rows(decoded, codecs, layout))
        counts = _with_changes(target, rows, tally.reasons)
    target.schemas.require_usable(codecs)
    columns = schemas.columns(spark, codecs)
    # As before the first batch. `planned` compares the columns of versions and of a transform with the table.
    if target.transform is None and codecs.key is None and KEY_COLUMN in columns.names:
        target.require_fit(snapshot, StructType([columns[KEY_COLUMN]]))
    return columns, snapshot, tuple(_versions(target, codecs)), counts


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
    if target.mapping is not None:
        columns, enforced = target.mapping.columns(spark, columns), NO_TABLE
    target.require_fit(snapshot, columns)
    if sample is None:
        return columns, snapshot, {}
    decoded = declared_rows.decode(values, sample, layout, enforced)
    counts = {row["reason"]: row["count"] for row in decoded.groupBy("reason").count().collect()}
    return columns, snapshot, _with_changes(target, declared_rows.valid_rows(decoded, layout), counts)


def _with_changes(target: Target, rows: DataFrame, counts: Mapping[str, int]) -> Mapping[str, int]:
    """Return the counts of records by reason, with the reasons of valid rows that are no usable change."""
    if target.changes is None:
        return counts
    bad = target.changes.count_reasons(rows)
    valid = counts.get(OK, 0) - sum(bad.values())
    found = {reason: counts.get(reason, 0) + bad.get(reason, 0) for reason in {*counts, *bad} - {OK}}
    return found | ({OK: valid} if valid else {})
