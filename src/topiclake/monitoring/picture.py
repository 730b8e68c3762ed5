"""A picture of a table, chosen by its columns: a map, numbers over time, or counts by category.

Plotly reads a few tags in texts, so each text of a table is escaped.
"""

from __future__ import annotations

import html
import logging
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, NumericType, StringType, TimestampType

from topiclake.delta import table as delta

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LOG = logging.getLogger(__name__)
#: Rows that the driver reads at most.
POINTS = 5_000
#: A column with more values is not a category.
CATEGORIES = 50
_LATITUDES = ("latitude", "lat")
_LONGITUDES = ("longitude", "lon", "lng", "long")


def draw_table(table: DataFrame) -> str:
    """Draw the rows of a table, as its columns allow.

    Coordinates become a map, numbers with a time become lines, a column of few texts becomes bars. A picture
    that fails is a warning in the log.

    Returns:
        HTML for `displayHTML`; a sentence if no column can be drawn.

    Example:
        >>> "celsius" in tl.draw_table(tl.create_view(spark, settings))
        True
    """
    try:
        figure = _figure(table)
    except Exception as error:  # noqa: BLE001 (a picture must not fail a run)
        _LOG.warning("the table has no picture: %s", error)
        return f"<p>No picture: {type(error).__name__}.</p>"
    if figure is None:
        return "<p>No picture: no coordinates, no numbers with a time, no categories.</p>"
    return str(figure.to_html(full_html=False, include_plotlyjs=True, config={"displayModeBar": False}))


def _figure(table: DataFrame) -> Figure | None:
    fields = table.schema.fields
    numbers = [field.name for field in fields if isinstance(field.dataType, NumericType)]
    latitude, longitude = _first(numbers, _LATITUDES), _first(numbers, _LONGITUDES)
    if latitude and longitude:
        return _map(table, latitude, longitude)
    times = [field.name for field in fields if isinstance(field.dataType, TimestampType | DateType)]
    if times and numbers:
        return _lines(table, times[0], numbers[:3])
    return _bars(table, [field.name for field in fields if isinstance(field.dataType, StringType)], numbers)


def _first(names: list[str], candidates: tuple[str, ...]) -> str | None:
    return next((name for name in names if name.lower() in candidates), None)


def _map(table: DataFrame, latitude: str, longitude: str) -> Figure:
    import plotly.graph_objects as go

    rows = table.select(_column(longitude), _column(latitude)).dropna().limit(POINTS).collect()
    figure = go.Figure(go.Scatter(x=[row[0] for row in rows], y=[row[1] for row in rows], mode="markers"))
    figure.update_xaxes(title_text=f"{longitude} (degrees)")
    # A degree of longitude is shorter than a degree of latitude, except at the equator: this is a sketch.
    figure.update_yaxes(title_text=f"{latitude} (degrees)", scaleanchor="x")
    return _titled(figure, f"{len(rows):,} positions")


def _lines(table: DataFrame, time: str, numbers: list[str]) -> Figure:
    import plotly.graph_objects as go

    newest = table.select(_column(time), *map(_column, numbers)).dropna(subset=[time])
    rows = sorted(newest.orderBy(_column(time).desc()).limit(POINTS).collect(), key=lambda row: row[0])
    figure, times = go.Figure(), [row[0] for row in rows]
    for position, number in enumerate(numbers, start=1):
        values: list[Any] = [row[position] for row in rows]
        figure.add_trace(go.Scatter(x=times, y=values, mode="markers", name=html.escape(number)))
    figure.update_xaxes(title_text=html.escape(time))
    if len(numbers) == 1:
        # A figure with one trace has no legend.
        figure.update_yaxes(title_text=html.escape(numbers[0]))
    return _titled(figure, f"the newest {len(rows):,} rows")


def _bars(table: DataFrame, texts: list[str], numbers: list[str]) -> Figure | None:
    """Draw the rows by the text with the fewest values; the first number, if each row has another text."""
    import plotly.graph_objects as go

    if not texts:
        return None
    distinct = [F.approx_count_distinct(_column(name)).alias(name) for name in texts]
    *counts, rows = table.agg(*distinct, F.count("*")).collect()[0]
    few = [(count, name) for count, name in zip(counts, texts, strict=True) if 1 < count <= CATEGORIES]
    if not few:
        return None
    count, category = min(few, key=itemgetter(0))
    number = numbers[0] if numbers and count == rows else None
    length = F.count("*") if number is None else F.max(_column(number))
    bars = table.groupBy(_column(category)).agg(length.alias("length"))
    longest = bars.orderBy(F.desc("length")).limit(20).collect()
    figure = go.Figure(go.Bar(x=[html.escape(str(bar[0])) for bar in longest], y=[bar[1] for bar in longest]))
    figure.update_xaxes(title_text=html.escape(category), type="category")
    return _titled(figure, f"{html.escape(number or 'rows')} by {html.escape(category)}")


def _column(name: str) -> Any:  # noqa: ANN401 (Column, classic or Connect)
    return F.col(delta.quoted(name))


def _titled(figure: Figure, title: str) -> Figure:
    return figure.update_layout(
        title=title, height=360, template="plotly_white", margin={"t": 50, "b": 50, "l": 70, "r": 20}
    )
