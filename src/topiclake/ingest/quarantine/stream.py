"""A query, with a separate checkpoint, that writes records rejected by `read_values` to the quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from topiclake.config.pipeline import QUARANTINE
from topiclake.config.settings import Settings
from topiclake.delta import log_store
from topiclake.errors import NewSchemaError
from topiclake.formats.declared import DeclaredFormat
from topiclake.ingest import declared_batch, quarantine_rows, targets
from topiclake.ingest.batch import Batch
from topiclake.ingest.targets import Target, writer_name
from topiclake.kafka import source as kafka_source
from topiclake.reasons import OK, UNDECODABLE
from topiclake.schema_registry.wire_format import Part, SchemaKey
from topiclake.session import require_avro_limits
from topiclake.sources import registered_rows, schema_decisions, streams
from topiclake.sources.fixed_schemas import FixedSchemas
from topiclake.sources.schema_decisions import Decisions
from topiclake.storage import mount
from topiclake.storage.renewal import WriteBatch
from topiclake.streaming import queries


def start_quarantine(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Start a query that writes the records rejected by `read_values` to the quarantine table.

    The query is separate from those that read valid rows. The meaning of values is fixed for both, so each
    record is either a valid row or in quarantine.

    Args:
        spark: The session.
        settings: The configuration. The checkpoint of the query is `checkpoint_path` plus `_quarantine`.

    Returns:
        The running query; `await_caught_up` waits for it.

    Raises:
        ConfigError, KafkaError, StorageError: The configuration or a service cannot be used.

    Example:
        >>> query = tl.start_quarantine(spark, settings)
        >>> tl.await_caught_up(query, "availableNow")
    """
    streams.require_named(settings.pipeline)
    target = targets.target(settings)
    records = streams.topic_records(spark, settings)
    log_store.require_log_store(spark, target.quarantine)
    checkpoint_path = f"{target.checkpoint.rstrip('/')}{QUARANTINE}"
    for location in (target.quarantine, checkpoint_path):
        mount.require_writable(location)
    write_batch: WriteBatch
    if settings.pipeline.is_registered:
        require_avro_limits(spark)
        fixed = streams.current_schemas(spark, settings)
        waiting = replace(target, schemas=target.schemas.waiting(settings.schema_registry))
        write_batch = partial(write_registered, waiting, fixed, checkpoint_path)
    else:
        values = DeclaredFormat.from_settings(settings.pipeline)
        write_batch = partial(write_declared, target, values, checkpoint_path)
    return queries.start_batches(
        records,
        settings,
        write_batch,
        name=f"{settings.name}{QUARANTINE}",
        location=checkpoint_path,
    )


def write_registered(
    target: Target, fixed: FixedSchemas, checkpoint: str, records: DataFrame, batch_id: int
) -> None:
    """Write the records that `fixed_schemas.valid_rows` drops to the quarantine.

    The query has the checkpoint `checkpoint`. It first asks the registry for schemas without a decision, at
    most five unknown ones a minute. The others count as unknown.

    Raises:
        NewSchemaError: A schema is known now that was unknown at the start; nothing is written.
        SchemaRegistryError: The registry cannot be used; nothing is written.
    """
    spark, codecs, layout = records.sparkSession, fixed.codecs, target.schemas.layout
    rejected = registered_rows.decode(records, codecs, layout).where(
        registered_rows.is_rejected(codecs, layout)
    )
    decisions, kafka_records = fixed.decisions, records.select(*kafka_source.RECORD_COLUMNS)
    while True:
        tally = registered_rows.tally(kafka_records, codecs, layout, decisions.unknown)
        if not tally.reasons.keys() - {OK}:
            return
        if not any(tally.late.values()):
            break
        for part, new in tally.late.items():
            if new:
                decisions = _decided(target, fixed.table, spark, part, new)
    unknown: dict[Part, set[SchemaKey]] = {part: set(keys) for part, keys in decisions.unknown.items()}
    bad = quarantine_rows.with_reasons(
        rejected,
        codecs,
        unknown,
        needs_python=UNDECODABLE in tally.reasons,
        keeps_tombstones=layout.keeps_tombstones,
    )
    batch = _batch(target, checkpoint, records, batch_id)
    batch.append(
        quarantine_rows.quarantined(bad, pipeline=target.pipeline, batch_id=batch_id), target.quarantine
    )


def _decided(
    target: Target, table: str, spark: SparkSession, part: Part, new: Sequence[SchemaKey]
) -> Decisions:
    """Ask the registry, write its answers, and return all decisions; raise if a schema is known."""
    schemas, _, _ = target.schemas.registry.by_ids(new, subjects=target.schemas.subjects[part])
    schema_decisions.decide(spark, table, part, {key: key in schemas for key in new})
    decisions = schema_decisions.read(spark, table)
    if listed := [key for key in new if key in decisions.known[part]]:
        ids = ", ".join(map(str, listed))
        raise NewSchemaError(
            f"records of pipeline {target.pipeline} have schemas ({ids}) that were not known when its query "
            "started; nothing of them is lost",
            "start it again, and the queries of read_values with it",
            pipeline=target.pipeline,
            part=part,
            schema_ids=tuple(listed),
        )
    return decisions


def write_declared(
    target: Target, values: DeclaredFormat, checkpoint: str, records: DataFrame, batch_id: int
) -> None:
    """Write rejected records of a declared format to the quarantine, in the query with `checkpoint`."""
    batch = _batch(target, checkpoint, records, batch_id)
    declared_batch.write_rejected(batch, values, values.decode(records))


def _batch(target: Target, checkpoint: str, records: DataFrame, batch_id: int) -> Batch:
    query_target = replace(target, checkpoint=checkpoint)
    return Batch(query_target, writer_name(query_target, records.sparkSession), records, batch_id, {})
