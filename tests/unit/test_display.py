from datetime import datetime

import pytest
from pyspark.sql import DataFrame, Row

from workbench import display as module
from workbench.display import Display, DisplayError, as_text, html_table, text_table

COLUMNS = [("id", "bigint"), ("name", "string")]


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


class Stream(DataFrame):
    isStreaming = True  # noqa: N815

    def __new__(cls):
        return object.__new__(cls)

    def __init__(self):
        pass


def test_a_streaming_dataframe_is_refused_with_the_way_out():
    with pytest.raises(DisplayError, match=r"streaming DataFrame.*; try: write the stream to a table"):
        Display()(Stream())


class Rows(DataFrame):
    isStreaming = False  # noqa: N815

    def __new__(cls, *args):
        return object.__new__(cls)

    def __init__(self, rows):
        from pyspark.sql.types import StringType, StructField, StructType

        self.rows, self.asked = rows, 0
        self.__dict__["schema"] = StructType([StructField("v", StringType())])

    schema = None

    def limit(self, num):
        self.asked = num
        return self

    def collect(self):
        return [Row(v=row) for row in self.rows[: self.asked]]


@pytest.fixture
def shown(monkeypatch):
    published = []
    monkeypatch.setattr(module, "_publish", lambda *values, **options: published.append(values[0]))
    return published


def test_rows_are_capped_and_the_table_says_so(shown):
    Display()(Rows([f"row {n}" for n in range(500)]))
    (data,) = shown
    assert "first 100 rows" in data["text/html"]
    assert "row 99<" in data["text/html"]
    assert "row 100<" not in data["text/html"]


def test_a_secret_longer_than_a_cell_leaves_no_half(shown):
    secret = "s3cret" * 100
    Display(lambda text: text.replace(secret, "[REDACTED]"))(Rows([secret]))
    assert "s3cret" not in str(shown)
    assert "[REDACTED]" in shown[0]["text/html"]


def test_plotly_comes_once_and_from_no_network(shown):
    import plotly.graph_objects as go

    display = Display()
    display(go.Figure(go.Scatter(x=[1], y=[2])))
    display(go.Figure(go.Scatter(x=[1], y=[2])))
    first, second = (data["text/html"] for data in shown)
    assert len(first) > 1_000_000 > len(second)
    assert 'src="http' not in first
