"""Streams into Kafka topics: at least once, each record with an id by which a consumer drops duplicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from topiclake.config.settings import Settings
from topiclake.errors import ConfigError
from topiclake.kafka import writer as kafka_writer
from topiclake.kafka.writer import Writer
from topiclake.storage import mount
from topiclake.streaming import queries
from topiclake.streaming.sink import Sink, SinkBatch


@dataclass(frozen=True)
class TopicBatches(Sink):
    """Produces micro-batches; can be pickled, for Spark Connect.

    Attributes:
        writer: The writer to Kafka.
        records: Function that makes records of a batch's rows.
    """

    writer: Writer
    records: Callable[[DataFrame], DataFrame] | None

    def destination(self) -> str | None:
        """Return the topic, or None if there are several."""
        return self.writer.topic and f"topic {self.writer.topic}"

    def require_output_mode(self, output_mode: str) -> None:
        """Raise a ConfigError if an updated row would have the id of the earlier one."""
        if self.writer.id_columns and output_mode != "append":
            raise ConfigError(
                f"id_columns and output_mode {output_mode}: an updated row would have the earlier one's id",
                "omit id_columns",
                output_mode=output_mode,
            )

    def write(self, rows: DataFrame, batch: SinkBatch) -> None:
        """Produce a batch."""
        records = rows if self.records is None else self.records(rows)
        kafka_writer.require_columns(records, self.writer.topic, self.writer.id_columns)
        self.writer.write(records, f"{batch.query_id}/{batch.number}")


def topic_batches(
    settings: Settings,
    *,
    topic: str | None = None,
    records: Callable[[DataFrame], DataFrame] | None = None,
    id_columns: Sequence[str] = (),
) -> TopicBatches:
    """Return a sink of `start_sinks` that produces each micro-batch, at least once.

    Args:
        settings: The broker and the pipeline's name.
        topic: The topic of all records; None: the column `topic` names it.
        records: Function that makes records for `write_topic` of the rows, such as `count_records`.
        id_columns: As for `write_topic`.

    Raises:
        TopicNotFoundError: `topic` does not exist.
        KafkaError: The broker cannot be used.

    Example:
        >>> tl.ensure_topic(settings.kafka, "measured-json", 1)
        1
        >>> sink = tl.topic_batches(
        ...     settings,
        ...     topic="measured-json",
        ...     records=lambda rows: rows.selectExpr("sensor AS key", "to_json(struct(*)) AS value"),
        ... )
    """
    return TopicBatches(Writer.from_settings(settings, topic, id_columns), records)


def start_topic_writer(
    records: DataFrame,
    settings: Settings,
    *,
    checkpoint_path: str,
    topic: str | None = None,
    id_columns: Sequence[str] = (),
    output_mode: str = "append",
) -> StreamingQuery:
    """Start producing the records of a streaming DataFrame, with the pipeline's trigger.

    Args:
        records: As for `write_topic`. Without `id_columns` a micro-batch that is repeated has to have the
            same records again, so they must not use `rand()` or `uuid()`.
        settings: The broker, the trigger and the pipeline's name.
        checkpoint_path: A dedicated folder.
        topic: The topic of all records; None: the column `topic` names it.
        id_columns: Columns whose values no two records share. The id of a record is a hash of them.
        output_mode: Of an aggregation: `append` sends final rows, `update` the rows that a micro-batch
            changed, `complete` all rows with each micro-batch.

    Raises:
        ConfigError: As `write_topic`; or the mode is unknown. Or, with `id_columns`, it is not `append`: an
            updated row would have the id of the earlier one.
        TopicNotFoundError, KafkaError: As `write_topic`.
        StorageError: The checkpoint cannot be written.

    Example:
        >>> tl.ensure_topic(settings.kafka, "hot", 1)
        1
        >>> hot = tl.read_values(spark, settings).where("celsius > 80")
        >>> query = tl.start_topic_writer(
        ...     hot.selectExpr("sensor AS key", "to_json(struct(celsius, at)) AS value"),
        ...     settings,
        ...     topic="hot",
        ...     checkpoint_path="/mnt/datalake/checkpoints/hot",
        ... )
        >>> tl.await_caught_up(query, "availableNow")
    """
    queries.require_output_mode(output_mode)
    kafka_writer.require_columns(records, topic, id_columns)
    sink = topic_batches(settings, topic=topic, id_columns=id_columns)
    sink.require_output_mode(output_mode)
    location = mount.resolve(settings.storage, checkpoint_path)
    mount.require_writable(location)
    return queries.start_sink(
        records,
        settings,
        sink,
        name=f"{settings.name}_to_{topic or 'kafka'}",
        location=location,
        output_mode=output_mode,
    )
