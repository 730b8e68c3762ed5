"""A stream's result in the driver's memory, for SQL while it runs."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from topiclake.errors import require_choice
from topiclake.sinks.names import require_name
from topiclake.streaming import queries

#: Rows that fit into the memory of a driver easily, with some columns.
MOST_ROWS = 100_000


def start_memory(
    rows: DataFrame,
    name: str,
    *,
    output_mode: str = "complete",
    trigger: str = "availableNow",
    most_rows: int = MOST_ROWS,
) -> StreamingQuery:
    """Keep a stream's result as a temporary view, queried by its name while the stream runs.

    Nothing outlives the session: each start reads from the stream's starting offsets.

    Args:
        rows: A streaming DataFrame.
        name: Of the query and of the view.
        output_mode: `complete`: each batch replaces the whole result of an aggregation. `append`: rows are
            added when they are final. Spark's memory sink has no `update`.
        trigger: `availableNow`, or an interval such as `10 seconds`.
        most_rows: Most rows that the driver keeps; further rows are dropped.

    Returns:
        The running query; `await_caught_up` waits for it.

    Raises:
        ConfigError: The name is not valid for a view, or the mode is unknown.

    Example:
        >>> counts = tl.read_values(spark, settings).groupBy("sensor").count()
        >>> query = tl.start_memory(counts, "per_sensor")
        >>> tl.await_caught_up(query, "availableNow")
        >>> spark.sql("SELECT count FROM per_sensor WHERE sensor = 'boiler'").collect()
        [Row(count=3)]
    """
    require_name(name)
    require_choice("output_mode", output_mode, ("complete", "append"))
    writer = rows.limit(most_rows).writeStream.format("memory").queryName(name).outputMode(output_mode)
    return queries.triggered(writer, trigger).start()
