"""Windows over event time: streaming or batch DataFrame → DataFrame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topiclake.errors import ConfigError

#: The column that says for which window a row came too late:
#: `STRUCT<start TIMESTAMP, end TIMESTAMP, watermark TIMESTAMP, batch_id BIGINT>`.
LATE_COLUMN = "_late"
_TICK = "_topiclake_tick"


@dataclass(frozen=True)
class Windows:
    """Windows of event time, which need not begin at the full hour, and what is counted in them.

    One object for `window_counts` and `late_batches`: what one leaves out is what the other keeps. Can be
    pickled, for Spark Connect.

    Attributes:
        time: The TIMESTAMP column with the time of the event.
        keys: Columns that are counted apart.
        length: Of a window.
        slide: From one window's begin to that of the next one; each row is in `length / slide` windows.
        start: From the full hour to a window's begin. Windows count from 1970-01-01 00:00 UTC, whatever the
            session's time zone is.
        watermark: How much later than the latest event a row may come and still be counted, in a stream.
        idle_timeout: A stream that brings nothing new closes no window. With a timeout the clock goes on for
            it: an event counts as past when its time is `idle_timeout` and `watermark` ago, whatever has come
            since. For topics whose events are of today: of older ones all would be late. Each trigger is a
            batch then, also without records.
        counted: Makes what is counted of the rows, each by itself: columns and filters, no join and no
            `dropDuplicates`, which a stream and a batch do differently. None: the rows as they are.

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
        rows: What is counted, a stream or not.
        windows: In which windows, and by which keys.

    Returns:
        `start TIMESTAMP, end TIMESTAMP`, the keys, `count BIGINT`; one row for each window with rows in it.

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
    """Return what a stream leaves out of a micro-batch: each row with each window that had ended.

    Args:
        rows: Those of the batch; no stream.
        windows: In which windows it counts.
        watermark_ms: What the stream took for past, in milliseconds since 1970.
        batch_id: Of the batch.

    Returns:
        The columns of what is counted, and `_late` (`LATE_COLUMN`).

    Raises:
        ConfigError: What is counted has a column `_late`.
    """
    rows = _counted(rows, windows)
    if LATE_COLUMN in rows.columns:
        raise ConfigError(
            f"the rows have a column {LATE_COLUMN}, which is a name of Topiclake's own",
            "another name",
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
    # As Spark's WatermarkSupport has it: also a window that ends at the watermark itself is past.
    return paired.where(end <= watermark).withColumn(LATE_COLUMN, late)


def _counted(rows: DataFrame, windows: Windows) -> DataFrame:
    return rows if windows.counted is None else windows.counted(rows)


def _with_ticks(rows: DataFrame, time: str, idle_timeout: str) -> DataFrame:
    """Add a row a second whose time is `idle_timeout` ago; a batch that is repeated has the same ones."""
    clock = rows.sparkSession.readStream.format("rate").option("numPartitions", "1").load()
    ago = F.col("timestamp") - F.expr(f"INTERVAL {idle_timeout}")
    ticks = clock.select(ago.alias(time), F.lit(True).alias(_TICK))
    return rows.withColumn(_TICK, F.lit(False)).unionByName(ticks, allowMissingColumns=True)


def _without_ticks(rows: DataFrame) -> DataFrame:
    # Non-deterministic: else Spark would filter before it takes the watermark.
    return rows.where(~F.when(F.spark_partition_id() >= 0, F.col(_TICK))).drop(_TICK)


def not_ahead(rows: DataFrame, time: str, arrival: str, *, ahead: str = "1 hour") -> DataFrame:
    """Leave out rows whose event lies further ahead of its arrival than `ahead`.

    One clock that is a year fast would otherwise move the watermark, and close the windows of all others.

    Args:
        rows: With both columns, TIMESTAMP.
        time: The time of the event.
        arrival: When Kafka took the record, such as `_kafka.timestamp`.
        ahead: How far a clock may be ahead.

    Example:
        >>> readings = tl.read_values(spark, settings)
        >>> counts = tl.window_counts(tl.not_ahead(readings, "at", "_kafka.timestamp"), tl.Windows("at"))
    """
    return rows.where(F.col(time) <= F.col(arrival) + F.expr(f"INTERVAL {ahead}"))
