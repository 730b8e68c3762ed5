"""A stream's micro-batches, printed as text in a notebook or a terminal."""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from topiclake.errors import ConfigError
from topiclake.sinks.start import cached
from topiclake.streaming import queries

#: As many as `DataFrame.show` has.
MOST_ROWS = 20


def start_console(
    rows: DataFrame,
    name: str,
    *,
    output_mode: str = "append",
    trigger: str = "availableNow",
    most_rows: int = MOST_ROWS,
) -> StreamingQuery:
    """Print each micro-batch of a stream: its number, its number of rows, and the first rows.

    Python prints them. The output of Spark's own console sink goes to the JVM's log, which no notebook shows.
    No checkpoint is kept: each start reads from the stream's starting offsets.

    Args:
        rows: A streaming DataFrame.
        name: Of the query.
        output_mode: Of an aggregation: `append`, `update` or `complete`.
        trigger: `availableNow`, or an interval such as `10 seconds`.
        most_rows: Most rows that are printed of a batch; long values are cut.

    Returns:
        The running query. If `await_caught_up` waits for it in the same cell, the output appears there.

    Raises:
        ConfigError: The mode is unknown, or `most_rows` is below 1.

    Example:
        >>> sensors = tl.read_values(spark, settings).select("sensor")
        >>> query = tl.start_console(sensors, "look", most_rows=1)
        >>> tl.await_caught_up(query, "availableNow")
        look, batch 0: 4 rows
        +------+
        |sensor|
        +------+
        |boiler|
        +------+
        only showing top 1 row
    """
    queries.require_output_mode(output_mode)
    if most_rows < 1:
        raise ConfigError(
            f"most_rows is {most_rows}", f"pass most_rows={MOST_ROWS}", parameter="most_rows", found=most_rows
        )
    stream = rows.writeStream.queryName(name).outputMode(output_mode)
    return queries.started(queries.triggered(stream.foreachBatch(partial(_print, name, most_rows)), trigger))


def _print(name: str, most_rows: int, batch: DataFrame, batch_id: int) -> None:
    with cached(batch) as count:
        print(f"{name}, batch {batch_id}: {count} rows")  # noqa: T201 (what it is for)
        if count:
            batch.show(most_rows)
