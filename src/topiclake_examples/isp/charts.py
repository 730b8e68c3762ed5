"""Pictures of counts: bars that a stream draws again with each micro-batch, and a pie for each window."""

from __future__ import annotations

import html
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

#: Bars of a chart.
MOST_BARS = 20
#: Pies of a picture.
MOST_PIES = 12
_BAR = "background:#3b82f6;height:12px"


def start_live_chart(counts: DataFrame, category: str, *, trigger: str = "availableNow") -> StreamingQuery:
    """Draw the counts of a stream as bars below the cell, again with each micro-batch.

    Args:
        counts: A streaming DataFrame with the category and `count BIGINT`, one row for each category.
        category: The column whose values are the bars.
        trigger: `availableNow`, or an interval such as `10 seconds`.

    Returns:
        The running query. `tl.await_caught_up` in the same cell waits for it.
    """
    from IPython.display import display

    show: Any = display  # it has no types
    handle = show(_Html("<p>Waiting for the first micro-batch.</p>"), display_id=True)

    def draw(batch: DataFrame, number: int) -> None:
        bars = _Html(f"<p>{html.escape(category)}, micro-batch {number}</p>{bar_chart(batch, category)}")
        if handle is not None:
            handle.update(bars)

    options: Any = {"availableNow": True} if trigger == "availableNow" else {"processingTime": trigger}
    writer = counts.writeStream.queryName(f"chart_by_{category}").outputMode("complete")
    return writer.foreachBatch(draw).trigger(**options).start()


def bar_chart(counts: DataFrame, category: str) -> str:
    """Draw counts as bars, the highest first.

    Args:
        counts: The category and `count BIGINT`; no stream.
        category: The column whose values are the bars.

    Returns:
        HTML without a script, so that an update is small.
    """
    rows = counts.orderBy(F.desc("count"), category).limit(MOST_BARS).collect()
    highest = max((row["count"] for row in rows), default=1)
    bars = (
        f"<tr><td>{html.escape(str(row[category]))}</td><td>{row['count']:,}</td>"
        f'<td><div style="{_BAR};width:{360 * row["count"] / highest:.0f}px"></div></td></tr>'
        for row in rows
    )
    return f'<table style="font-size:13px">{"".join(bars)}</table>'


def window_pies(counts: DataFrame, category: str = "zip") -> go.Figure:
    """Draw a pie for each of the earliest windows.

    Args:
        counts: `start TIMESTAMP, end TIMESTAMP`, the category and `count BIGINT`; no stream.
        category: The column whose values are the slices.

    Returns:
        A figure for `display`.
    """
    window = F.concat_ws(" to ", F.date_format("start", "HH:mm"), F.date_format("end", "HH:mm"))
    rows = counts.select(window.alias("window"), category, "count").orderBy("start", category).collect()
    windows = list(dict.fromkeys(row["window"] for row in rows))[:MOST_PIES]
    columns = 4
    lines = max(1, -(-len(windows) // columns))
    grid = [[{"type": "domain"}] * columns] * lines
    figure = make_subplots(rows=lines, cols=columns, specs=grid, subplot_titles=windows)
    for position, name in enumerate(windows):
        slices = [row for row in rows if row["window"] == name]
        labels, values = [str(row[category]) for row in slices], [row["count"] for row in slices]
        # Equal categories have equal colours in all pies.
        pie = go.Pie(labels=labels, values=values, sort=False, textinfo="none")
        figure.add_trace(pie, row=position // columns + 1, col=position % columns + 1)
    return figure.update_layout(height=220 * lines, template="plotly_white", margin={"t": 40, "b": 20})


class _Html:
    """HTML as Jupyter and Databricks show it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _repr_html_(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "<HTML>"
