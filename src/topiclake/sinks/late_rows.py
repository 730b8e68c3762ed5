"""Rows that came too late for their windows, into a Delta table, each exactly once.

Spark drops such rows, and reports neither the rows nor their number: its progress counts partly aggregated
rows. But before a micro-batch begins, its checkpoint has the offsets and the watermark of the batch. So this
sink reads the same records once more, and writes the rows that Spark drops.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.errors import ConfigError
from topiclake.formats.declared import DeclaredFormat
from topiclake.kafka import source as kafka_source
from topiclake.local_frame import local_frame
from topiclake.sinks.start import cached, table_of_sink
from topiclake.sources import declared_rows
from topiclake.sources.layout import Layout
from topiclake.storage import mount
from topiclake.storage.failures import storage_errors
from topiclake.streaming import checkpoint, lost_offsets
from topiclake.streaming.sink import Sink, SinkBatch
from topiclake.streaming.windows import LATE_COLUMN, Windows, late_rows

#: If true, the default since Spark 3.5, a batch drops rows by the watermark of the batch before it. If false,
#: it drops rows by its own watermark (Spark's WatermarkPropagator).
_SEVERAL_STATES = "spark.sql.streaming.statefulOperator.allowMultiple"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LateBatches(Sink):
    """Writes the late rows of each micro-batch; can be pickled, for Spark Connect.

    Attributes:
        pipeline: Its name.
        table: The table, as Spark reads it.
        windows: The windows of the query.
        topic: The topic that the query reads.
        values: The declared format of the values.
        layout: The columns of rows in addition to those of their values.
        mode: `PERMISSIVE` or `FAILFAST`.
        fail_on_data_loss: Whether a batch fails if Kafka has deleted records that it has read.
        options: Options of Spark's Kafka source, without topics and offsets.
    """

    pipeline: str
    table: str
    windows: Windows
    topic: str
    values: DeclaredFormat
    layout: Layout
    mode: str
    fail_on_data_loss: bool
    options: Mapping[str, str] = field(repr=False)

    def destination(self) -> str:
        """Return the table."""
        return self.table

    def require_output_mode(self, output_mode: str) -> None:
        """Raise a ConfigError for a mode in which no row is too late."""
        if output_mode == "complete":
            raise ConfigError(
                "in output mode complete each row is counted, however late it comes: there are no late rows",
                "pass output_mode='append' or 'update', or omit late_batches",
                output_mode=output_mode,
            )

    def write(self, rows: DataFrame, batch: SinkBatch) -> None:
        """Write the rows that the query dropped from a batch, unless the table has them; `rows` lack them."""
        spark, path, batch_id = rows.sparkSession, batch.checkpoint, batch.number
        before, now = (
            checkpoint.planned(spark, path, planned_batch) for planned_batch in (batch_id - 1, batch_id)
        )
        ranges = checkpoint.range_of(spark, path, before, now, self.topic)
        if not ranges:
            return
        past = before if spark.conf.get(_SEVERAL_STATES, "true") == "true" else now
        late = late_rows(
            self._read(spark, ranges), self.windows, watermark_ms=past.watermark_ms, batch_id=batch_id
        )
        records_text = (
            f"records of topic {self.topic} that batch {batch_id} of pipeline {self.pipeline} has read"
        )
        losses = lost_offsets.data_loss_errors(
            f"{records_text}, before its late rows were kept",
            "set fail_on_data_loss=false, which keeps the late rows of the remaining records",
        )
        with losses, cached(late) as number:
            if number:
                _LOG.warning("%s: %d late rows, each with its window", records_text, number)
                writer = f"{batch.query_id}/late"
                delta.append_once(late, self.table, writer=writer, batch_id=batch_id, commit={})

    def columns(self, spark: SparkSession) -> StructType:
        """Return the table's columns."""
        rows = self._rows(local_frame(spark, [], kafka_source.RECORD_SCHEMA))
        return delta.nullable(late_rows(rows, self.windows, watermark_ms=0, batch_id=0))

    def _read(self, spark: SparkSession, ranges: Mapping[int, tuple[int, int]]) -> DataFrame:
        records = kafka_source.read_range(
            spark, self.options, {self.topic: ranges}, fail_on_data_loss=self.fail_on_data_loss
        )
        return self._rows(records)

    def _rows(self, records: DataFrame) -> DataFrame:
        return declared_rows.read(records, self.values, self.layout, mode=self.mode)


def late_batches(
    settings: Settings,
    spark: SparkSession,
    windows: Windows,
    *,
    path: str,
) -> LateBatches:
    """Return a sink of `start_sinks` that writes rows that came too late for their windows, exactly once.

    For `start_sinks(window_counts(read_values(spark, settings), windows), …)`. The table has a row once for
    each window that it came too late for. The sink reads the topic a second time.

    Args:
        settings: The topic, the store and the pipeline's name, as for `read_values`.
        spark: The session.
        windows: The windows of `window_counts`.
        path: The path or the name of the table, with the columns of the counted rows, and `_late
            STRUCT<start TIMESTAMP, end TIMESTAMP, watermark TIMESTAMP, batch_id BIGINT>`. It is created here
            if it does not exist.

    Raises:
        ConfigError: Values have a registered format, such as Avro, or the windows don't fit them.
        PlatformError: The table's log is not safe from a second driver.
        StorageError: The path cannot be used.

    Example:
        >>> windows = tl.Windows("at", keys=("sensor",))
        >>> sinks = {
        ...     "counts": tl.delta_batches(settings, spark, path="/mnt/datalake/counts"),
        ...     "late": tl.late_batches(settings, spark, windows, path="/mnt/datalake/late"),
        ... }
        >>> checkpoint = "/mnt/datalake/checkpoints/counts"
        >>> counts = tl.window_counts(tl.read_values(spark, settings), windows)
        >>> query = tl.start_sinks(counts, settings, sinks, checkpoint_path=checkpoint)
        >>> tl.await_caught_up(query, "availableNow")
    """
    pipeline = settings.pipeline
    table = table_of_sink(spark, settings, path)
    sink = LateBatches(
        settings.name,
        table,
        windows,
        topic=pipeline.topic,
        values=DeclaredFormat.from_settings(pipeline),
        layout=Layout.from_settings(pipeline),
        mode=pipeline.mode,
        fail_on_data_loss=pipeline.fail_on_data_loss,
        options=kafka_source.range_options(settings.kafka),
    )
    columns = sink.columns(spark)
    with storage_errors(settings.storage, table):
        delta.ensure_table(spark, table, columns, {})
    return sink


def late_counts(spark: SparkSession, settings: Settings, *, path: str) -> DataFrame:
    """Count the rows that came too late, by batch and window, in the table that `late_batches` writes.

    Args:
        spark: The session.
        settings: The store.
        path: The path or the name of the table.

    Returns:
        `batch_id BIGINT, start TIMESTAMP, end TIMESTAMP, count BIGINT`, in this order.

    Raises:
        StorageError: The table cannot be read.

    Example:
        >>> sink = tl.late_batches(settings, spark, tl.Windows("at"), path="/mnt/datalake/late_counts")
        >>> tl.late_counts(spark, settings, path="/mnt/datalake/late_counts").count()
        0
    """
    destination = mount.resolve_table(settings.storage, path)
    with storage_errors(settings.storage, destination):
        rows = delta.read(spark, destination)
    columns = [F.col(f"{LATE_COLUMN}.{name}") for name in ("batch_id", "start", "end")]
    return rows.groupBy(*columns).count().orderBy("batch_id", "start")
