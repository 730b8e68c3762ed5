"""What `display` makes of Spark's own pictures and of pandas, on a real session."""

from __future__ import annotations

from tests.support.local_rows import local_rows
from workbench.display.show import Display


def test_a_dataframe_draws_itself_where_a_picture_is_asked_for(spark, shown):
    counts = local_rows(spark, [("a", 1), ("b", 5)], "device STRING, count BIGINT")
    Display()(counts.plot.bar(x="device", y="count"))
    (picture,) = shown
    assert '"x":["a","b"]' in picture["text/html"]
    assert "device=%{x}" in picture["text/html"]


def test_rows_as_pandas_are_shown_as_jupyter_shows_them(spark, shown):
    rows = spark.range(3).toPandas()
    Display()(rows)
    assert shown[0] is rows
