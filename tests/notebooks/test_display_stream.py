"""Streams that a notebook shows, in what a run leaves."""

import io
import json
import re
from pathlib import Path

import nbformat
import pytest
from rich.console import Console

from tests.support.waiting import children, remaining
from workbench.host.home import Home
from workbench.notebook.source import FIRST_LINE
from workbench.runner.execution import CellFailedError
from workbench.runner.runner import run_notebook

PROJECT = Path(__file__).parents[2]
CELL = "\n# COMMAND ----------\n"
UNTIL = """
import time
def until(condition):
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
"""
RATES = "spark.readStream.format('rate').option('rowsPerSecond', 20).load()"


@pytest.fixture
def run(tmp_path, warm_jvm):
    """Run a notebook's cells; afterwards no process and no checkpoint is left."""
    before, temporary = children(), tmp_path / "temporary"
    temporary.mkdir()

    def ran(*cells, console=None, **variables):
        notebook = tmp_path / "live.py"
        notebook.write_text(FIRST_LINE + "\n" + CELL.join(cells) + "\n")
        home = Home(tmp_path / "home", PROJECT)
        variables |= warm_jvm.environment() | {"TMPDIR": str(temporary)}
        return run_notebook(notebook, {}, home, variables, console or Console(file=io.StringIO()))

    yield ran
    assert remaining(before) == set()
    assert list(temporary.iterdir()) == []


def outputs(folder):
    """The outputs of each cell as plain text, and the page."""
    (saved,) = folder.glob("home/runs/*/live.ipynb")
    cells = nbformat.read(saved, as_version=4).cells
    plain = ["\n".join(one.get("data", one).get("text/plain", "") for one in cell.outputs) for cell in cells]
    plain = [text.strip() for text in plain]
    return plain, saved.with_suffix(".html").read_text()


@pytest.mark.thorough("the state of a stream is drawn in test_display_stream of Spark")
def test_a_run_leaves_the_last_state_of_each_stream_that_it_showed(run, tmp_path):
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "1.json").write_text("\n".join(json.dumps({"id": n}) for n in range(130)))
    written = io.StringIO()
    result = run(
        UNTIL,
        f"display({RATES}, streamName='stopped', processingTime='500 milliseconds')",
        "until(lambda: spark.streams.active[0].lastProgress)\n"
        "assert [query.name for query in spark.streams.active] == ['stopped']\n"
        "import os, tempfile\n"
        "(folder,) = [one.path for one in os.scandir(tempfile.gettempdir()) if 'display' in one.name]\n"
        "spark.streams.active[0].stop()\n"
        # As Spark's maintenance of state does it that comes behind the end of a query.
        "until(lambda: not os.path.exists(folder))\n"
        "os.makedirs(folder + '/state')",
        f"display(spark.readStream.schema('id LONG').json('file:{tmp_path}/input'), trigger='availableNow')",
        f"counts = {RATES}.selectExpr('value % 2 AS rest').groupBy('rest').count()\n"
        "display(counts.orderBy('rest'), streamName='active')",
        "dbutils.notebook.exit('done')",
        console=Console(file=written, force_terminal=True, width=120, height=70),
    )
    assert result.exit_value == "done"
    live, last = written.getvalue(), written.getvalue().rpartition("stream stopped: ")[2]
    assert live.index("stream stopped: running, ") < live.index("stream active: running, batch ")
    assert last.startswith("stopped, batch ")
    for words in ("stream display_query_1: ended, batch 0", "stream active: stopped, batch ", "rest | count"):
        assert words in last
    (_, stopped, _, files, active, _), page = outputs(tmp_path)
    assert stopped.startswith("stream stopped: stopped, batch ")
    assert "\nprocessing rate " in stopped
    assert files.startswith("stream display_query_1: ended, batch 0, 130 rows in it, ")
    assert "\nid\n---\n129\n128\n" in files
    assert files.endswith("(first 20 rows)")
    assert active.startswith("stream active: stopped, batch ")
    assert "rest | count\n---- | -----\n0    | " in active
    assert page.count('role="img"') == 9
    assert "first 100 rows" in page
    assert page.count("waiting for the first micro-batch") == 0
    assert len(page) < 1_000_000


@pytest.mark.thorough("tests/spark/workbench/test_display_stream has the parts")
def test_a_stream_that_fails_fails_the_run_and_says_so_in_its_output(run, tmp_path):
    with pytest.raises(CellFailedError) as caught:
        run(
            "token = dbutils.secrets.get('s', 'k')",
            f"failing = {RATES}.selectExpr(f\"raise_error('no {{token}}')\")\n"
            "display(failing, streamName='failing')\n"
            f"display({RATES}, streamName='other')",
            UNTIL,
            "import os\nfrom pathlib import Path\n"
            "until(lambda: len(list(Path(os.environ['TMPDIR']).glob('workbench-display-*'))) == 1)",
            TOPICLAKE_SECRET_S_K="s3cr-et",
        )
    assert "live.py: the displayed stream failing failed: " in str(caught.value)
    assert "no [REDACTED]" in str(caught.value)
    (_, shown, *_), page = outputs(tmp_path)
    assert "query failing failed: " in shown
    assert "; try: python -m workbench logs spark\n" in shown
    assert "stream other: stopped, batch " in shown
    assert "s3cr" not in str(caught.value) + page
    assert "Traceback" not in page


WATCHED = f"""import topiclake as tl
rates = {RATES}
query = rates.writeStream.format("noop").queryName("<b>").trigger(processingTime="1 second").start()
tl.show_progress(query)"""
STOPPED = """until(lambda: len(query.recentProgress) > 3)
query.stop()
tl.await_caught_up(query, "availableNow")"""
FAILED = """wrong = rates.selectExpr("raise_error('no ' || value)")
failing = wrong.writeStream.format("noop").queryName("f").start()
tl.show_progress(failing)
try:
    tl.await_caught_up(failing, "availableNow")
except Exception as error:
    print(type(error))"""


@pytest.mark.thorough("progress is drawn in test_display_stream of Spark")
def test_progress_is_drawn_in_place_and_each_end_is_told(run, tmp_path):
    written = io.StringIO()
    terminal = Console(file=written, force_terminal=True, width=200, height=70)
    run(UNTIL, WATCHED, STOPPED, FAILED, console=terminal)
    (_, drawn, _, failed), page = outputs(tmp_path)
    assert re.fullmatch(r"<b>: ended, batch \d+: \d+ records in [\d.,]+ m?s \([\d.,]+ rows/s\)", drawn), drawn
    assert failed.startswith("f: failed: ")
    assert "topiclake.errors.IngestError" in written.getvalue()
    assert "&lt;b&gt;: ended, batch " in page
    assert page.count('role="img"') >= 3
    # On a terminal, the newest batch is a line.
    assert len(set(re.findall(r"<b>: running, batch \d+", written.getvalue()))) >= 2
