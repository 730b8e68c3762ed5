"""Windows over event time, for streaming and batch DataFrames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topiclake.errors import ConfigError

#: The column with the window for which a row arrived too late:
#: `STRUCT<start TIMESTAMP, end TIMESTAMP, watermark TIMESTAMP, batch_id BIGINT>`.
LATE_COLUMN = "_late"
_TICK = "_topiclake_tick"


@dataclass(frozen=True)
class Windows:
    """Windows of event time, and the rows that are counted in them.

    `window_counts` and `late_batches` share one object: rows that one leaves out, the other keeps. It is
    picklable, for Spark Connect.

    Attributes:
        time: The TIMESTAMP column with the time of the event.
        keys: Columns that rows are grouped by.
        length: Length of a window.
        slide: Interval between the starts of two windows; each row is in `length / slide` windows.
        start: Offset of the starts of the windows. Without it, windows are aligned to 1970-01-01 00:00 UTC,
            in every time zone of the session.
        watermark: Delay after the latest event with which a row may arrive and still be counted, in a stream.
        idle_timeout: A stream without new records closes no window. With a timeout, the clock also advances
            the watermark: windows that ended `idle_timeout` plus `watermark` ago close without new records.
            Use it only for topics of current events, since all older events would be late. Each trigger runs
            a batch then, also without records.
        counted: A function that derives the counted rows, each by itself, with columns and filters only. A
            stream and a batch differ in joins and `dropDuplicates`. None: all rows, without changes.

    Example:
        >>> windows = tl.Windows("at", keys=("sensor",), length="10 minutes", slide="5 minutes")
        >>> counts = tl.window_counts(tl.read_values(spark, settings), windows)
    """

    time: str
    keys: tuple[str, ...] = ()
    length: str = "10 minutes"
    slide: str = "5 minutes"
    start: str = "0 minutes"
    watermark: str = "10 minutes"
    idle_timeout: str | None = None
    counted: Callable[[DataFrame], DataFrame] | None = None


def window_counts(rows: DataFrame, windows: Windows) -> DataFrame:
    """Count rows in windows of event time.

    Args:
        rows: The rows to count, streaming or not.
        windows: The windows, and the keys.

    Returns:
        `start TIMESTAMP, end TIMESTAMP`, the keys, `count BIGINT`; one row for each window that has rows.

    Example:
        >>> windows = tl.Windows("at", length="10 minutes", slide="10 minutes")
        >>> tl.window_counts(tl.create_view(spark, settings), windows).orderBy("start").collect()[0]["count"]
        3
    """
    rows = _counted(rows, windows)
    if windows.idle_timeout is not None and rows.isStreaming:
        ticking = _with_ticks(rows, windows.time, windows.idle_timeout)
        timed = _without_ticks(ticking.withWatermark(windows.time, windows.watermark))
    else:
        timed = rows.withWatermark(windows.time, windows.watermark)
    window = F.window(windows.time, windows.length, windows.slide, windows.start)
    counts = timed.groupBy(window, *windows.keys).count()
    return counts.select("window.start", "window.end", *windows.keys, "count")


def late_rows(rows: DataFrame, windows: Windows, *, watermark_ms: int, batch_id: int) -> DataFrame:
    """Return the late rows of a micro-batch, which a stream drops: each with each window that had ended.

    Args:
        rows: The rows of the batch, not streaming.
        windows: The windows of the stream.
        watermark_ms: The watermark of the stream in that batch, in milliseconds since 1970.
        batch_id: Spark's number of the batch.

    Returns:
        The columns of the counted rows, and `_late` (`LATE_COLUMN`).

    Raises:
        ConfigError: The counted rows have a column `_late`.
    """
    rows = _counted(rows, windows)
    if LATE_COLUMN in rows.columns:
        raise ConfigError(
            f"the rows have a column {LATE_COLUMN}, which is a name of Topiclake's own",
            "use another name",
            column=LATE_COLUMN,
            reason="reserved",
        )
    watermark = F.timestamp_millis(F.lit(watermark_ms))
    window = F.window(windows.time, windows.length, windows.slide, windows.start)
    paired = rows.withColumn(LATE_COLUMN, window)
    start, end = (F.col(f"{LATE_COLUMN}.{name}") for name in ("start", "end"))
    late = F.struct(
        start, end, watermark.alias("watermark"), F.lit(batch_id).cast("bigint").alias("batch_id")
    )
    # As in Spark's WatermarkSupport, a window that ends exactly at the watermark has ended, too.
    return paired.where(end <= watermark).withColumn(LATE_COLUMN, late)


def _counted(rows: DataFrame, windows: Windows) -> DataFrame:
    return rows if windows.counted is None else windows.counted(rows)


def _with_ticks(rows: DataFrame, time: str, idle_timeout: str) -> DataFrame:
    """Add one row each second whose time is `idle_timeout` ago; a repeated batch gets the same rows."""
    clock = rows.sparkSession.readStream.format("rate").option("numPartitions", "1").load()
    ago = F.col("timestamp") - F.expr(f"INTERVAL {idle_timeout}")
    ticks = clock.select(ago.alias(time), F.lit(True).alias(_TICK))
    return rows.withColumn(_TICK, F.lit(False)).unionByName(ticks, allowMissingColumns=True)


def _without_ticks(rows: DataFrame) -> DataFrame:
    # The filter is non-deterministic: Spark would move any other one before the watermark.
    return rows.where(~F.when(F.spark_partition_id() >= 0, F.col(_TICK))).drop(_TICK)


def not_ahead(rows: DataFrame, time: str, arrival: str, *, ahead: str = "1 hour") -> DataFrame:
    """Drop rows whose event time is later than their arrival by more than `ahead`.

    Otherwise one producer whose clock is a year fast would advance the watermark and close all windows.

    Args:
        rows: Rows with both TIMESTAMP columns.
        time: Column with the time of the event.
        arrival: Column with the time at which Kafka stored the record, such as `_kafka.timestamp`.
        ahead: Tolerance for fast clocks.

    Example:
        >>> readings = tl.read_values(spark, settings)
        >>> counts = tl.window_counts(tl.not_ahead(readings, "at", "_kafka.timestamp"), tl.Windows("at"))
    """
    return rows.where(F.col(time) <= F.col(arrival) + F.expr(f"INTERVAL {ahead}"))
