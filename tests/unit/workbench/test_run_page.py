"""The page of a run: facts and exit value as one small table, and no JSON below it."""

import json
import re
from datetime import datetime, timezone

import nbformat
import pytest

from workbench.kernel.messages import EXIT_MIME_TYPE
from workbench.runner.report import EXIT_CHARACTERS, RunFacts, as_page, exit_rows

EXIT = {
    "rows_written": 993,
    "quarantined": {},
    "table": {"path": "file:/lake/gps", "version": 1, "rows": 993},
    "preview": [{"device": 1, "note": None}] * 5,
    "audit": None,
}


def page(exit_value):
    """Return the page of a notebook whose last cell exits with this value."""
    v4 = nbformat.v4
    output = v4.new_output(
        "display_data",
        {EXIT_MIME_TYPE: {"value": exit_value}, "text/plain": f"Notebook exited: {exit_value}"},
    )
    cells = [
        v4.new_code_cell("print(1)", outputs=[v4.new_output("stream", text="printed")]),
        v4.new_code_cell("exit()", outputs=[output]),
    ]
    facts = RunFacts("n.py", {}, datetime.now(timezone.utc), 1.0, "succeeded", exit_value)
    return as_page(v4.new_notebook(cells=cells), facts)


def header(html):
    """Return the rows of the first table by name."""
    table = html.partition("<table>")[2].partition("</table>")[0]
    return dict(re.findall(r"<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>", table))


def test_an_exit_value_is_rows_of_the_table_on_top_and_nowhere_else_on_the_page():
    html = page(json.dumps(EXIT))
    shown = header(html)
    assert list(shown)[4:] == ["Result", "rows_written", "quarantined", "table", "preview"]
    assert (shown["Result"], shown["rows_written"], shown["quarantined"]) == ("succeeded", "993", "none")
    assert shown["table"] == "path: file:/lake/gps, version: 1, rows: 993"
    assert shown["preview"] == "5 entries"
    assert "printed" in html
    assert "Notebook exited" not in html
    assert html.count("rows_written") == 1


@pytest.mark.parametrize(
    ("exit_value", "rows"),
    [
        ("", {}),
        ("12 rows <b>", {"Exit value": "12 rows <b>"}),
        ("993", {"Exit value": "993"}),
        ('["a", "b"]', {"Exit value": "[a, b]"}),
        ('{"ok": true, "seconds": null, "topics": [], "partitions": [{"a": 1}]}',
         {"ok": "true", "topics": "none", "partitions": "1 entry"}),
    ],
)  # fmt: skip
def test_each_exit_value_has_its_rows(exit_value, rows):
    assert exit_rows(exit_value) == rows


def test_a_key_of_the_exit_value_hides_no_fact_of_the_run():
    table = page(json.dumps({"Result": "all good"})).partition("</table>")[0]
    assert ">succeeded<" in table
    assert ">all good<" in table


def test_a_long_exit_value_is_cut_and_is_no_html():
    shown = header(page(json.dumps({"<i>\n\n# x": "<b>" * 900})))
    assert shown["&lt;i&gt;<br/># x"].startswith("&lt;b&gt;")
    assert len(exit_rows("x" * 900)["Exit value"]) == EXIT_CHARACTERS
