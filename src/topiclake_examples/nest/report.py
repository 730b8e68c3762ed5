"""The report of the counts of sightings in a compacted topic: as a table and as a chart."""

from __future__ import annotations

import plotly.graph_objects as go
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topiclake_examples.parameters import whole_number

_KEY = "zip_code STRING, start TIMESTAMP, end TIMESTAMP"
#: Bars of a chart.
_MOST_HOURS = 24 * 31


def sightings_report(records: DataFrame, *, more_than: int | str = 1000) -> DataFrame:
    """Return zip codes and hours with many sightings.

    Args:
        records: The newest record of each key of `sighting_records`, as `read_compacted` returns them. Other
            records are skipped.
        more_than: Counts above this number are in the report; may be text, as widgets hold it.

    Returns:
        `zip_code STRING, start TIMESTAMP, end TIMESTAMP, count BIGINT`, the earliest hour first.

    Raises:
        ConfigError: `more_than` is not a number.
    """
    least = whole_number("more_than", more_than)
    key = F.from_json(F.col("key").cast("string"), _KEY)
    counts = records.select(
        key.alias("key"), F.expr("try_cast(CAST(value AS STRING) AS BIGINT)").alias("count")
    )
    return (
        counts.where((F.col("count") > least) & F.col("key.start").isNotNull())
        .select("key.*", "count")
        .orderBy("start", "zip_code")
    )


def sightings_chart(report: DataFrame) -> str:
    """Draw a report: a bar for each hour, parted by zip code.

    Returns:
        HTML for `displayHTML`, which needs no network.
    """
    shown = report.select("zip_code", F.date_format("start", "yyyy-MM-dd HH:mm").alias("hour"), "count")
    rows = shown.limit(_MOST_HOURS).collect()
    if not rows:
        return "<p>No hour has enough sightings: nothing to draw.</p>"
    figure = go.Figure()
    for zip_code in sorted({row["zip_code"] or "" for row in rows}):
        of_zip = [row for row in rows if (row["zip_code"] or "") == zip_code]
        hours, counts = [row["hour"] for row in of_zip], [row["count"] for row in of_zip]
        figure.add_trace(go.Bar(name=zip_code or "unknown", x=hours, y=counts))
    figure.update_xaxes(type="category")
    figure.update_layout(
        barmode="stack", height=360, template="plotly_white", legend_title="zip code",
        xaxis={"title": "hour, in the session's time zone", "categoryorder": "category ascending"},
        yaxis_title="sightings", margin={"t": 30, "b": 60, "l": 70, "r": 20},
    )  # fmt: skip
    return str(figure.to_html(full_html=False, include_plotlyjs=True, config={"displayModeBar": False}))
