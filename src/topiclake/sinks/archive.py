"""Topics into Parquet files: a static plan, started again when a record has a new schema.

Spark's file sink writes each batch once (`_spark_metadata` lists the valid files) and renames nothing, which
suits object stores. It has no quarantine: a record that cannot be decoded ends the query. The error names the
record, and the batch is not committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, DecodeError, TopiclakeError
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import source as kafka_source
from topiclake.local_frame import local_frame
from topiclake.session import require_avro_limits, require_redaction
from topiclake.sinks import parquet_folder
from topiclake.sources.layout import KAFKA_COLUMN
from topiclake.sources.static_schemas import StaticSchemas
from topiclake.sources.topic_schemas import TopicSchemas
from topiclake.storage import mount
from topiclake.storage.access import renewed_key
from topiclake.storage.failures import storage_errors
from topiclake.streaming import checkpoint, lost_offsets, progress, queries


@dataclass(frozen=True)
class ArchiveSummary:
    """The content of an archive, and the restarts of this run.

    Attributes:
        query_id: Id of the streaming query; the same in each run with this checkpoint.
        path: Folder of the Parquet files, as Spark reads it.
        rows: Rows in it.
        columns: Its columns.
        restarts: How often this run started the stream again because of a new schema.
    """

    query_id: str
    path: str
    rows: int
    columns: list[str]
    restarts: int

    def to_json(self, indent: int | None = None) -> str:
        """Return it as the exit value of a notebook."""
        return json.dumps(asdict(self), indent=indent)

    def counts(self, spark: SparkSession) -> DataFrame:
        """Return the rows as a table with the columns of `RunSummary.counts`."""
        rows = [("in the archive", self.rows, self.path)]
        return local_frame(spark, rows, "result STRING, records BIGINT, path STRING")


@dataclass
class Archive:
    """A stream from one topic into Parquet files; while a caller waits for it, a new schema restarts it.

    If the query fails and the credential was renewed since its start, the stream is restarted, too.

    Attributes:
        spark: The session.
        settings: The configuration.
        path: Folder of the Parquet files, as Spark reads it.
        checkpoint: Folder of the stream's checkpoint.
        schemas: The schemas that decode the records.
        query: The query that runs now, or ran last.
        restarts: How often a new schema restarted it. Each restart adds a schema, so their number is limited.
    """

    spark: SparkSession
    settings: Settings
    path: str
    checkpoint: str
    schemas: StaticSchemas
    restarts: int = 0
    query: StreamingQuery = field(init=False)
    _renewed_at_start: int = field(init=False)

    def __post_init__(self) -> None:
        self.query = self._start()

    def await_caught_up(self) -> None:
        """Wait until the records that Kafka held are archived.

        Raises:
            DecodeError: A record cannot be decoded; names topic, partition, offset and reason.
            TopiclakeError: The query failed for another reason.
        """
        self._wait(lambda query: progress.await_caught_up(query, self.settings.pipeline.trigger))

    def keep_running(self, seconds: float | str) -> None:
        """Keep running for some seconds, or until the query ends; raises as `progress.keep_running` does."""
        self._wait(lambda query: progress.keep_running(query, seconds))

    def stop(self) -> None:
        """Stop the query; the next start resumes at the same offsets."""
        self.query.stop()

    def rows(self) -> DataFrame:
        """Return the archived rows, with columns in the order of the schemas and the layout, and `_kafka`."""
        if not parquet_folder.has_files(self.spark, self.path):
            return local_frame(self.spark, [], self.schemas.columns())
        files = self.spark.read.option("mergeSchema", "true").parquet(self.path)
        # Spark returns them in the order of the first file that it reads.
        column_names = [name for name in self.schemas.columns().fieldNames() if name in files.columns]
        return files.select(*map(delta.quoted, dict.fromkeys([*column_names, *files.columns])))

    def create_view(self) -> DataFrame:
        """Create a temporary view of the archived rows, without `_kafka`, and return it."""
        view_rows = self.rows().drop(KAFKA_COLUMN)
        view_rows.createOrReplaceTempView(self.settings.pipeline.view)
        return view_rows

    def summary(self) -> ArchiveSummary:
        """Count the archived rows."""
        archived = self.rows()
        return ArchiveSummary(
            str(self.query.id), self.path, archived.count(), archived.columns, self.restarts
        )

    def _wait(self, wait: Callable[[StreamingQuery], None]) -> None:
        while True:
            try:
                wait(self.query)
            except DecodeError as error:
                self._learn(error)
                self.query = self._start()
            except TopiclakeError:
                # Spark's file sink hands its executors the settings with which the query started.
                if self._renewed() == self._renewed_at_start:
                    raise
                self.query = self._start()
            else:
                return

    def _renewed(self) -> int:
        """Return when the store's credential was last renewed."""
        return int(self.spark.conf.get(renewed_key(self.settings.storage.source), None) or 0)

    def _start(self) -> StreamingQuery:
        self._renewed_at_start = self._renewed()
        while True:
            stream = self._stream()
            try:
                query = queries.start(stream, self.settings, self.spark, self.checkpoint)
            except DecodeError as error:
                self._learn(error)
            else:
                describe = partial(lost_offsets.describe_loss, self.spark, self.settings, self.checkpoint)
                progress.on_data_loss(query, describe)
                return query

    def _learn(self, error: DecodeError) -> None:
        self.schemas.learn(error)
        self.restarts += 1

    def _stream(self) -> DataStreamWriter:
        settings = self.settings
        records = kafka_source.read_topic(self.spark, settings.kafka, settings.pipeline)
        writer = self.schemas.rows(records).writeStream.queryName(settings.name).format("parquet")
        return writer.option("checkpointLocation", self.checkpoint).option("path", self.path)


def start_archive(spark: SparkSession, settings: Settings) -> Archive:
    """Start the stream from the pipeline's topic into Parquet files below `table_path`.

    Args:
        spark: The session.
        settings: The configuration; its mode has to be FAILFAST.

    Returns:
        The running archive.

    Raises:
        TopicNotFoundError, SubjectNotFoundError: It does not exist; names existing ones.
        ConfigError, KafkaError, SchemaRegistryError, StorageError: Something cannot be used.
        DecodeError: The unfinished batch of an earlier run has a record that cannot be decoded.

    Example:
        >>> trips = tl.load_settings("trips", {"env": "local"}, conf=conf)
        >>> archive = tl.start_archive(spark, trips)
        >>> archive.await_caught_up()
    """
    settings = settings.only_topic()
    if settings.pipeline.mode != "FAILFAST":
        raise ConfigError(
            "Parquet files have no quarantine: a bad record ends the stream",
            "set mode=FAILFAST",
            parameter="mode",
            found=settings.pipeline.mode,
        )
    schemas, pipeline = TopicSchemas.from_settings(settings), settings.pipeline
    table, checkpoint_path = (
        mount.resolve(settings.storage, path) for path in (pipeline.location, pipeline.checkpoint_path)
    )
    kafka_admin.require_topics(settings.kafka, pipeline, waits=pipeline.wait_for_topic)
    require_avro_limits(spark)
    require_redaction(spark)
    for location in (table, checkpoint_path):
        mount.require_writable(location)
    parquet_folder.require_own(spark, settings.storage, table, checkpoint_path, key="table_path")
    with storage_errors(settings.storage, checkpoint_path):
        position = checkpoint.position(spark, checkpoint_path)
        ids = lost_offsets.topic_ids(spark, checkpoint_path)
        losses, new_ids = lost_offsets.check_lost_offsets(settings, checkpoint_path, position, ids)
        lost_offsets.note_losses(spark, settings.name, checkpoint_path, losses)
    # An unavailable registry is an error at the start, where a user waits. A running stream waits for it.
    schemas.plain_keys()
    static_schemas = StaticSchemas(spark, schemas.waiting(settings.schema_registry))
    with storage_errors(settings.storage, checkpoint_path):
        lost_offsets.save_topic_ids(spark, new_ids, checkpoint_path)
    return Archive(spark, settings, table, checkpoint_path, static_schemas)
