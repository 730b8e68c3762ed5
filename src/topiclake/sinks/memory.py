"""A stream's result in the driver's memory, for SQL while it runs."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from topiclake.errors import require_choice
from topiclake.sinks.names import require_name
from topiclake.streaming import queries

#: A driver holds so many rows of some columns with ease.
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
        output_mode: `complete`: the whole result of a count, anew with each batch; `append`: the rows as they
            become final. Spark's memory sink has no `update`.
        trigger: `availableNow`, or an interval such as `10 seconds`.
        most_rows: What the driver keeps; further rows are left out.

    Returns:
        The running query; `await_caught_up` waits for it.

    Raises:
        ConfigError: The name is no name of a view, or the mode is another one.

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
