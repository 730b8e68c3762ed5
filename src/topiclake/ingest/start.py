"""Start the ingest of topics into Delta tables, each record in exactly one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import uuid4

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from topiclake.config.settings import Settings
from topiclake.delta import log_store
from topiclake.delta import table as delta
from topiclake.errors import require_extra
from topiclake.formats.declared import DeclaredFormat
from topiclake.ingest import (
    change_batch,
    declared_batch,
    isolated_topic,
    multi_topic,
    registered_batch,
    start_state,
    targets,
)
from topiclake.ingest.batch_schemas import BatchSchemas, BeforeTable
from topiclake.ingest.consumer_group import GroupCommit
from topiclake.ingest.quarantine import automatic_replay
from topiclake.ingest.row_transform import Function
from topiclake.ingest.start_check import StartCheck
from topiclake.ingest.start_state import StartState
from topiclake.ingest.table_topics import TableTopics
from topiclake.ingest.targets import Target
from topiclake.ingest.topic_targets import Topics
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.kafka import source as kafka_source
from topiclake.kafka.lost_ranges import LostRange
from topiclake.session import require_redaction
from topiclake.sources import declared_rows
from topiclake.sources.table_snapshot import NO_TABLE, read_snapshot
from topiclake.storage import mount
from topiclake.storage.failures import storage_errors
from topiclake.storage.renewal import WriteBatch
from topiclake.streaming import batch_hooks, checkpoint, lost_offsets, open_transactions, progress, queries
from topiclake.streaming.batch_hooks import CommitHook, CommittedBatch
from topiclake.streaming.checkpoint import NONE
from topiclake.streaming.lost_offsets import NewIds


def start_ingest(
    spark: SparkSession, settings: Settings, *, transform: Function | None = None
) -> StreamingQuery:
    """Start the stream from the pipeline's topic into its Delta table.

    Args:
        spark: The session.
        settings: The configuration.
        transform: Function from valid rows to rows of the table, one for each, with its `_kafka`
            (docs/transforms.md).

    Returns:
        The running query; `progress.await_caught_up` waits for it.

    Raises:
        TopicNotFoundError, SubjectNotFoundError: A name does not exist; the error lists similar names, and
            nothing is written. With several topics, only for a listed topic, or a pattern without a match.
        IngestError: Checkpoint and table do not agree, and `resume` does not specify how to start. Or the
            offsets of another topic order the changes of the table. Or the transform cannot be applied.
            Inside the query, the transform fails or changes the number of rows.
        ConfigError: The rules of `apply: upsert` do not fit the rows, or those of the table.
        OffsetsLostError: Kafka lost offsets that the checkpoint has not read; the error names the ranges.
        KafkaError, SchemaRegistryError, StorageError: A service cannot be used.
        PlatformError: The JVM lacks Avro's limits, or Spark would show secrets.
        DecodeError: Inside the query, in mode FAILFAST.

    Example:
        >>> query = tl.start_ingest(spark, settings)
        >>> tl.await_caught_up(query, settings.pipeline.trigger)
        >>> tl.create_view(spark, settings).count()
        4
    """
    queries.require_trigger(settings.pipeline.trigger)
    target = targets.target(settings, transform)
    require_redaction(spark)
    log_store.require_log_store(spark, target.table, target.quarantine)
    hooks = _hooks(settings)
    try:
        query = _start(spark, settings, target, hooks, transform)
    except BaseException:
        batch_hooks.close(hooks)
        raise
    if hooks:
        batch_hooks.close_with(query, hooks)
    return query


def _start(
    spark: SparkSession,
    settings: Settings,
    target: Target,
    hooks: Sequence[CommitHook],
    transform: Function | None,
) -> StreamingQuery:
    topics = Topics.from_settings(settings, target) if settings.pipeline.has_table_for_each else None
    state = start_state.read(spark, settings, target)
    before = state.progress
    checkpoint.cache_progress(target.checkpoint, target.start, before)
    table_topics = TableTopics(spark, settings, target, topics)
    settings, losses, ids = checked(spark, settings, target, state, topics, table_topics)
    new_ids = dict(ids)
    with storage_errors(settings.storage, target.checkpoint):
        lost_offsets.note_losses(spark, settings.name, target.checkpoint, losses)
    if before.position is not None:
        # The check of a new checkpoint may have written into the table.
        target = replace(target, snapshot=state.snapshot)
    topics = None if topics is None else replace(topics, ids=table_topics.ids)
    is_new = bool(new_ids) and before.position is None
    for hook in hooks:
        hook.begin()
    save_topic_ids = partial(_save_topic_ids, spark, settings, target.checkpoint, new_ids)
    # For a new checkpoint, writing the ids shows that it is writable. For an existing checkpoint, the ids are
    # written only after all checks, since the next start must find the same losses if a check fails.
    write_batch = _writer(spark, settings, target, topics, before_table=save_topic_ids if is_new else None)
    table_topics.note()
    if hooks:
        if settings.pipeline.has_table_for_each:
            _run_for_resumed(spark, target, hooks)
        write_batch = batch_hooks.with_hooks(write_batch, hooks, target.checkpoint, target.start)
    if topics is None and not settings.pipeline.fail_on_data_loss:
        client = kafka_client.client_settings(settings.kafka)
        loss_check = lost_offsets.LossCheck(settings.name, target.checkpoint, target.start, client)
        write_batch = partial(lost_offsets.write_checked, loss_check, write_batch)
    in_checkpoint = None if topics is None else before.position
    records = kafka_source.read_topic(spark, settings.kafka, settings.pipeline, known=in_checkpoint or {})
    save_topic_ids()
    automatic_replay.run_at_start(spark, settings, transform)
    query = queries.start_batches(
        records,
        settings,
        write_batch,
        name=settings.name,
        location=target.checkpoint,
        started_as=target.start,
        is_interrupted=before.is_interrupted,
    )
    progress.on_data_loss(query, partial(lost_offsets.describe_loss, spark, settings, target.checkpoint))
    open_transactions.watch(query, settings.kafka, settings.pipeline)
    automatic_replay.watch(query, spark, settings, transform)
    return query


def checked(
    spark: SparkSession,
    settings: Settings,
    target: Target,
    state: StartState,
    topics: Topics | None,
    table_topics: TableTopics,
    *,
    is_plan: bool = False,
) -> tuple[Settings, list[LostRange], NewIds]:
    """Check topics, table and offsets before a start, which a plan does, too.

    Returns:
        The configuration to start with, the losses to note, and the topics' ids to note.

    Raises:
        TopicNotFoundError, IngestError, ConfigError, OffsetsLostError, KafkaError, SchemaRegistryError,
            StorageError: As `start_ingest`.
    """
    position = state.progress.position
    waits = settings.pipeline.wait_for_topic
    known = {} if topics is None else state.topic_ids
    kafka_admin.require_topics(settings.kafka, settings.pipeline, waits=waits, known=known)
    if position is None:
        table_topics.require_same()
    settings = StartCheck(spark, settings, target, state, topics, is_plan).run()
    # This check precedes the creation of the table. The checkpoint may be in another store than the table.
    with storage_errors(settings.storage, target.checkpoint):
        losses, new_ids = lost_offsets.check_lost_offsets(
            settings, target.checkpoint, position, state.topic_ids
        )
    if position is not None:
        # The check of lost offsets comes first, since its error names the ranges.
        table_topics.require_same()
    return settings, losses, new_ids


def _save_topic_ids(spark: SparkSession, settings: Settings, path: str, new_ids: dict[str, str]) -> None:
    """Note ids in the checkpoint, once."""
    with storage_errors(settings.storage, path):
        lost_offsets.save_topic_ids(spark, new_ids, path)
    new_ids.clear()


def _run_for_resumed(spark: SparkSession, target: Target, hooks: Sequence[CommitHook]) -> None:
    """Call the hooks for the last committed batch, since the start may have written paused ranges."""
    batch_id = checkpoint.last_committed(spark, target.checkpoint)
    if batch_id != NONE:
        batch_hooks.run_hooks(hooks, target.start, CommittedBatch(spark, target.checkpoint, batch_id))


def _hooks(settings: Settings) -> list[CommitHook]:
    """Return the commit hooks of the configuration."""
    pipeline = settings.pipeline
    hooks: list[CommitHook] = []
    if settings.lineage is not None:
        require_extra("lineage", "openlineage.client")
        # Importing its client takes time, and other pipelines do not need it.
        from topiclake.monitoring.lineage import prepared

        hooks.append(prepared(settings, settings.lineage))
    if pipeline.consumer_group is not None:
        ledger = mount.resolve(settings.storage, pipeline.paused_path)
        client = kafka_client.client_settings(settings.kafka)
        paused = ledger if pipeline.has_table_for_each else None
        hooks.append(GroupCommit(pipeline.consumer_group, client, paused))
    return hooks


def _writer(
    spark: SparkSession,
    settings: Settings,
    target: Target,
    topics: Topics | None,
    before_table: BeforeTable | None,
) -> WriteBatch:
    """Prepare the tables for the query's batches, and return the function that writes the batches."""
    if not settings.pipeline.is_registered:
        values = DeclaredFormat.from_settings(settings.pipeline)
        with storage_errors(settings.storage, target.table):
            if before_table is not None:
                before_table()
            columns = declared_rows.columns(spark, values, target.schemas.layout)
            if target.changes is not None:
                target.changes.ensure(spark, target.table, columns, target.properties)
                return partial(change_batch.write, target, target.changes, values)
            if target.transform is not None:
                columns = target.transform.columns(spark, columns)
            delta.ensure_table(spark, target.table, columns, target.properties)
            snapshot = read_snapshot(spark, target.table)
            if snapshot is not None:
                target.require_fit(snapshot, columns)
            target = replace(target, snapshot=snapshot)
        return partial(declared_batch.write, target, values)
    # A micro-batch waits for an unavailable registry. The start of a query does not, since a person waits.
    waiting_schemas = target.schemas.waiting(settings.schema_registry)
    if topics is not None:
        # With a separate start id, the query does not use the state of this call, whose registry client does
        # not wait.
        isolated_topic.resume(spark, replace(topics, template=replace(target, start=uuid4().hex)))
        template = replace(target, schemas=waiting_schemas)
        return partial(multi_topic.write, replace(topics, template=template))
    prepared = replace(_prepared(spark, settings, target, before_table), schemas=waiting_schemas)
    if prepared.changes is not None:
        return partial(change_batch.write, prepared, prepared.changes, None)
    return partial(registered_batch.write, prepared)


def _prepared(
    spark: SparkSession, settings: Settings, target: Target, before_table: BeforeTable | None
) -> Target:
    """Create the table if it does not exist, also for an empty topic; return the target with its state."""
    with storage_errors(settings.storage, target.table):
        snapshot = target.snapshot or read_snapshot(spark, target.table)
        prepared = replace(target, is_new=snapshot is None, snapshot=snapshot or NO_TABLE)
        schemas = BatchSchemas(prepared, before_table)
        schemas.source.require_usable(schemas.current(spark))
        if target.schemas.plain_versions:
            target.schemas.plain_keys()
    # A table that was created here has other columns than this snapshot.
    return prepared if snapshot else replace(prepared, snapshot=None)
