from collections import namedtuple
from datetime import datetime

import pytest
from pyspark.sql import Row

from workbench.display.show import PLOTLY_MIME_TYPE, Display, DisplayError
from workbench.display.table import Redaction, as_text, fitting, html_table, text_table
from workbench.host.redaction import Redactor

COLUMNS = [("id", "bigint"), ("name", "string")]
Named = namedtuple("Named", ["v"])


def test_names_types_and_values_are_escaped():
    table = html_table([("<a>", "struct<b:int>")], [["<script>"]], more=False)
    assert "<script>" not in table
    assert "&lt;a&gt;" in table
    assert "struct&lt;b:int&gt;" in table
    assert "<small>1 row</small>" in table


def test_null_is_told_from_the_word_and_numbers_stand_right():
    table = html_table(COLUMNS, [["1", None], ["2", "null"]], more=True)
    assert '<td class="null">null</td>' in table
    assert "<td>null</td>" in table
    assert '<td class="number">1</td>' in table
    assert "first 2 rows" in table


def test_the_plain_table_is_aligned_and_says_how_much_it_shows():
    assert text_table(COLUMNS, [["1", "a\nb"], ["10", None]], more=False) == (
        "id | name\n-- | ----\n1  | a b\n10 | null\n(2 rows)"
    )
    assert text_table(COLUMNS, [["1", "a"]] * 30, more=False).endswith("(first 20 rows)")
    assert text_table(COLUMNS, [], more=False).endswith("(0 rows)")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (bytearray(b"\x00\xff"), "00 ff"),
        (datetime(2024, 1, 2, 3, 4, 5, 600000), "2024-01-02 03:04:05.600000"),
        (Row(a=1, b=Row(c=None)), "{a: 1, b: {c: null}}"),
        ([1.5, {"k": False}], "[1.5, {k: false}]"),
    ],
)
def test_values_are_written_as_a_reader_expects(value, text):
    assert as_text(value) == text


def test_a_table_ends_at_its_cap_of_characters_but_shows_one_row():
    rows = [["x" * 300]] * 50
    shown, more = fitting(rows, characters=3_000)
    assert (len(shown), more) == (10, True)
    assert fitting(rows, characters=1) == (rows[:1], True)
    assert fitting(rows) == (rows, False)


def test_rows_are_capped_and_the_table_says_so(shown):
    Display()([Named(f"row {n}") for n in range(500)])
    (data,) = shown
    assert "first 100 rows" in data["text/html"]
    assert "row 99<" in data["text/html"]
    assert "row 100<" not in data["text/html"]


def test_a_secret_longer_than_a_cell_leaves_no_half(shown):
    secret = "s3cret" * 100
    Display(Redaction(lambda text: text.replace(secret, "[REDACTED]")))([Named(secret)])
    assert "s3cret" not in str(shown)
    assert "[REDACTED]" in shown[0]["text/html"]


@pytest.mark.parametrize("before", ["", "s3cret-and-more "])
def test_a_secret_that_spark_cut_leaves_no_half(before):
    redactor = Redactor()
    redactor.remember("s3cret-and-more")
    redaction = Redaction(redactor.redact, redactor.open_end)
    value = f"{before}x s3cret-an"
    assert "s3cret" not in redaction.cell(value, len(value))
    assert "s3cret" in redaction.cell(value, len(value) + 1), "a whole value is shown as it is"


def test_the_name_of_a_column_holds_no_half_secret_either():
    secret = "s3cret" * 20
    redaction = Redaction(lambda text: text.replace(secret, "[REDACTED]"))
    columns = redaction.columns([(f"concat(x, {secret})", f"struct<{secret}:int>")])
    assert columns == [("concat(x, [REDACTED])", "struct<[REDACTED]:int>")]


def test_options_of_a_stream_are_refused_for_anything_else():
    with pytest.raises(DisplayError, match="display accepts streamName for streaming DataFrames only"):
        Display()([Named("x")], streamName="x")


def test_where_figures_are_drawn_none_brings_plotly(shown):
    import plotly.graph_objects as go

    Display(draws_plotly=True)(go.Figure(go.Scatter(x=[1], y=[2])))
    (data,) = shown
    assert data.keys() == {PLOTLY_MIME_TYPE, "text/plain"}
    assert data[PLOTLY_MIME_TYPE]["data"][0]["x"] == [1]


def test_plotly_comes_once_and_from_no_network(shown):
    import plotly.graph_objects as go

    display = Display()
    display(go.Figure(go.Scatter(x=[1], y=[2])))
    display(go.Figure(go.Scatter(x=[1], y=[2])))
    first, second = (data["text/html"] for data in shown)
    assert len(first) > 1_000_000 > len(second)
    assert 'src="http' not in first
