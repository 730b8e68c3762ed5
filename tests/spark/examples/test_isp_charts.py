"""Pictures of counts by zip code, provider and window."""

from datetime import datetime

from tests.support.local_rows import local_rows
from topiclake_examples.isp.charts import MOST_PIES, bar_chart, window_pies


def test_bars_are_ordered_and_escaped_and_the_highest_is_the_widest(spark):
    rows = [("<b>", 5), ("Bay Cable", 20), (None, 1)]
    chart = bar_chart(local_rows(spark, rows, "isp STRING, count BIGINT"), "isp")
    assert chart.index("Bay Cable") < chart.index("&lt;b&gt;") < chart.index("None")
    assert "<b>" not in chart
    assert chart.index("width:360px") < chart.index("width:90px") < chart.index("width:18px")


def test_counts_without_rows_have_no_bars(spark):
    assert "<td>" not in bar_chart(local_rows(spark, [], "isp STRING, count BIGINT"), "isp")


def test_each_window_has_a_pie_and_the_earliest_come_first(spark):
    moments = [datetime(2026, 1, 2, hour, minute) for hour in (3, 4) for minute in range(2, 60, 5)]
    rows = [(start, start.replace(second=30), zip_code, 7) for start in moments for zip_code in ("1", "2")]
    counts = local_rows(spark, rows, "start TIMESTAMP, end TIMESTAMP, zip STRING, count BIGINT")
    figure = window_pies(counts)
    assert len(figure.data) == MOST_PIES < len(moments)
    assert figure.layout.annotations[0].text == "03:02 to 03:02"
    assert (figure.data[0].labels, figure.data[0].values) == (("1", "2"), (7, 7))
