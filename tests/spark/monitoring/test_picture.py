"""The columns of a table choose its picture."""

from __future__ import annotations

import logging

import pytest

import topiclake as tl
from tests.support.local_rows import local_rows


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        ([(48.1, 11.5), (None, 1.0)], "Latitude DOUBLE, lon DOUBLE", "1 positions"),
        ([(1.5, "2026-01-01")], "celsius DOUBLE, day STRING", "No picture: no coordinates"),
        ([("a",), ("a",), ("b",)], "kind STRING", "rows by kind"),
        ([("<b>a",), ("b",)], "`<i>k` STRING", "rows by &lt;i&gt;k"),
        ([("a", 3), ("b", 9)], "kind STRING, n INT", "n by kind"),
        ([("a", 3), ("a", 9), ("b", 1)], "kind STRING, n INT", "rows by kind"),
        ([], "kind STRING", "No picture: no coordinates"),
    ],
)
def test_columns_choose_the_picture(spark, rows, columns, expected):
    drawn = tl.draw_table(local_rows(spark, rows, columns))
    assert expected in drawn.replace("\\u0026", "&").replace("\\u003c", "<").replace("\\u003e", ">")
    assert "<b>a" not in drawn.replace("\\u003c", "<")


def test_numbers_are_drawn_over_time(spark):
    drawn = tl.draw_table(spark.sql("SELECT timestamp'2026-01-01 00:00:00' AS at, 1 AS n, 2 AS `m.x`"))
    assert "the newest 1 rows" in drawn
    assert '"name":"m.x"' in drawn


def test_an_axis_has_the_name_of_a_single_number(spark):
    drawn = tl.draw_table(spark.sql("SELECT timestamp'2026-01-01 00:00:00' AS at, 1 AS celsius"))
    assert '"yaxis":{"title":{"text":"celsius"}}' in drawn


def test_a_picture_that_fails_is_a_warning(spark, caplog):
    with caplog.at_level(logging.WARNING):
        drawn = tl.draw_table(spark.sql("SELECT string(raise_error('no')) AS kind"))
    assert drawn == "<p>No picture: SparkRuntimeException.</p>"
    assert "the table has no picture" in caplog.text
