"""Source format in real kernels: what magics show, and what they leave."""

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from rich.console import Console

from tests.support.waiting import has_ended, wait_until
from topiclake.config.notebook import KEYS
from topiclake.errors import ConfigError
from workbench.host.home import Home
from workbench.notebook.conversion import to_source
from workbench.notebook.files import read_notebook
from workbench.notebook.parameters import widget_names
from workbench.notebook.source import FIRST_LINE, NotebookSourceError
from workbench.runner.execution import CellFailedError
from workbench.runner.runner import run_notebook

REPOSITORY = Path(__file__).parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").rglob("*.py"))
CELL = "\n\n# COMMAND ----------\n\n"


@pytest.fixture
def home(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "jars").symlink_to(REPOSITORY / "jars")
    return Home(tmp_path / "home", tmp_path / "project")


@pytest.fixture
def write(home):
    def written(name, *cells):
        path = home.project / "notebooks" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{FIRST_LINE}\n{CELL.join(cells)}\n")
        return path

    return written


@pytest.fixture
def terminal():
    return io.StringIO()


@pytest.fixture
def run(home, write, terminal):
    def ran(*cells, parameters=None, environment=None):
        path = write("main", *cells)
        console = Console(file=terminal, width=200)
        return run_notebook(path, parameters or {}, home, environment or {}, console)

    return ran


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_code_cell_of_a_notebook_has_at_most_five_lines(path):
    cell = next(cell for cell in read_notebook(path).runnable if cell.language == "python")
    lines = [line for line in cell.source.splitlines() if line.strip()]
    assert len(lines) <= 5
    assert any("tl.notebook_settings(dbutils, " in line for line in lines)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_header_of_a_notebook_lists_its_parameters(path):
    header = path.read_text("utf-8").partition("# COMMAND")[0]
    rows = re.findall(r"^# MAGIC \| (`.*?) \|", header, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    parameters = widget_names(read_notebook(path))
    assert listed == (parameters - (KEYS - listed) if "pipeline" in listed else parameters)


def test_magics_show_what_they_do_without_the_secret(run, write, home, terminal, tmp_path):
    write(
        "lib/other",
        "dbutils.widgets.text('who', '')\nprint('included for', dbutils.widgets.get('who'))\ny = 1",
    )
    (home.project / "a.txt").write_text("first\n")
    result = run(
        '# MAGIC %run ./lib/other $who="me"',
        "token = dbutils.secrets.get('s', 'k')\n_ = dbutils.fs.mount('" + str(home.project) + "', '/mnt/x')",
        "# MAGIC %sh\n# MAGIC echo shell $TOPICLAKE_SECRET_S_K\n# MAGIC env\n# MAGIC false",
        "# MAGIC %fs ls /mnt/x",
        "# MAGIC %fs head /mnt/x/a.txt",
        "# MAGIC %pip show pyspark",
        "# MAGIC %python\n# MAGIC dbutils.notebook.exit(str(y))",
        environment={
            "TOPICLAKE_SECRET_S_K": "s3cret",
            "TOPICLAKE_SECRET_S_NEVER": "s3cret-that-nobody-fetched",
        },
    )
    assert result.exit_value == "1"
    output = terminal.getvalue()
    shown = "TOPICLAKE_SECRET_S_NEVER=[REDACTED]"
    for line in ("included for me", "shell [REDACTED]", shown, "first", "Name: pyspark"):
        assert f"      {line}\n" in output
    executed = nbformat.read(result.ipynb, as_version=4)
    assert "dbfs:/mnt/x/a.txt" in executed.cells[3].outputs[0].data["text/plain"]
    for text in (output, result.ipynb.read_text(), result.html.read_text()):
        assert "s3cret" not in text
    assert to_source(executed) == (home.project / "notebooks" / "main.py").read_bytes()


def test_a_failure_in_an_included_notebook_is_told_with_both_places(run, write, home):
    write("other", "# MAGIC %md text", "def divide(x):\n    return 1 / x\n\ndivide(0)")
    with pytest.raises(CellFailedError) as caught:
        run("x = 1", "# MAGIC %run ./other")
    lines = [line.strip() for line in str(caught.value).split("\n")]
    folder = home.project / "notebooks"
    assert lines[:-1] == [
        "main.py, cell 2 '%run ./other' failed: ZeroDivisionError: division by zero [TL-NOTEBOOK-003]",
        f"{folder}/main.py:6 in <module>",
        "# MAGIC %run ./other",
        f"{folder}/other.py:9 in <module>",
        "divide(0)",
        f"{folder}/other.py:7 in divide",
        "return 1 / x",
    ]


def test_a_shell_that_fails_with_e_fails_its_cell(run):
    with pytest.raises(
        CellFailedError, match=r"cell 1 'exit 3' failed: the shell ended with exit code 3; try"
    ):
        run("# MAGIC %sh -e\n# MAGIC exit 3")


@pytest.mark.parametrize(
    ("cells", "kind", "cause"),
    [
        (["# MAGIC %run ./main"], NotebookSourceError, r"in a circle: main\.py → main\.py"),
        (["# MAGIC %run ./none"], ConfigError, r"main\.py, cell 1, line 2: .*none\.py does not exist"),
        (
            ["x = 1", "# MAGIC %r\n# MAGIC x"],
            NotebookSourceError,
            r"main\.py, cell 2, line 6: %r cells do not run",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(run, home, cells, kind, cause):
    with pytest.raises(kind, match=cause):
        run(*cells)
    assert not home.runs.exists()


RUNNER = """
from pathlib import Path
from workbench.host.home import Home
from workbench.runner.runner import run_notebook
run_notebook(Path({notebook!r}), {{}}, Home(Path({folder!r}), Path({project!r})), {{}})
"""


@pytest.mark.thorough("a run without another one in it is stopped in test_runner")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_stops_a_run_stops_the_notebook_that_it_runs_too(write, home, number):
    write("other", "import time\nprint('ready')\ntime.sleep(60)")
    notebook = write("main", "dbutils.notebook.run('other', 0)")
    code = RUNNER.format(notebook=str(notebook), folder=str(home.folder), project=str(home.project))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as runner:
        assert "ready" in (line.strip() for line in runner.stdout)
        processes = psutil.Process(runner.pid).children(recursive=True)
        assert len(processes) == 3  # a kernel, the other run, its kernel
        os.kill(runner.pid, number)
        wait_until(lambda: all(has_ended(process.pid) for process in processes), 120)
    if number != signal.SIGKILL:
        assert "interrupted" in next(home.runs.glob("*-main-*/main.html")).read_text()
    assert "interrupted" in next(home.runs.glob("*-other-*/other.html")).read_text()
