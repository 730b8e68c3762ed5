"""Tiny notebooks, run for real; a few of them start Spark."""

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import nbclient
import nbformat
import psutil
import pytest
from rich.console import Console

from tests.support.waiting import children, has_ended, remaining, wait_until
from topiclake.errors import ConfigError
from workbench.commands import cli
from workbench.host.java import OPTIONS_VARIABLE
from workbench.kernel.messages import KERNEL_COMMAND
from workbench.kernel.process import INTERRUPTED_GRACE_SECONDS
from workbench.runner.client import Client
from workbench.runner.execution import CellFailedError, KernelDiedError
from workbench.runner.report import save_run
from workbench.runner.runner import early_kernel, run_notebook

REPOSITORY = Path(__file__).parents[2]
CELL = "\n# COMMAND ----------\n"
SECRET = "s3cr<et>\"&'x/+ 1"


@dataclass(frozen=True)
class Home:
    folder: Path
    project: Path

    @property
    def runs(self):
        return self.folder / "runs"


@pytest.fixture
def home(tmp_path):
    project = tmp_path / "project"
    (project / "notebooks").mkdir(parents=True)
    (project / "jars").symlink_to(REPOSITORY / "jars")
    return Home(tmp_path / "home", project)


@pytest.fixture
def terminal():
    return io.StringIO()


@pytest.fixture
def write(home):
    def written(*cells):
        path = home.project / "notebooks" / "tiny.py"
        path.write_text("# Databricks notebook source\n" + CELL.join(cells) + "\n")
        return path

    return written


@pytest.fixture
def run(home, write, terminal):
    def ran(*cells, parameters=None, environment=None):
        console = Console(file=terminal, width=200)
        return run_notebook(write(*cells), parameters or {}, home, environment or {}, console)

    return ran


def saved(home):
    (folder,) = home.runs.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["tiny.html", "tiny.ipynb"]
    return folder / "tiny.ipynb", folder / "tiny.html"


#: Files by `dbutils` and by Spark: one place, with and without a mount, also for a table of Delta.
SAME_FILES = """\
dbutils.fs.put("dbfs:/in/a.txt", "same")
assert spark.read.text("dbfs:/in/a.txt").first()[0] == "same"
dbutils.fs.mount("file://{folder}", "/mnt/lake")
df.write.format("delta").save("dbfs:/mnt/lake/t")
assert spark.read.format("delta").load("file:{folder}/t").count() == 3
assert "_delta_log/" in [each.name for each in dbutils.fs.ls("/mnt/lake/t")]
dbutils.fs.unmount("/mnt/lake")
"""


@pytest.mark.slow("a cold JVM")
def test_a_notebook_with_text_python_and_sql_runs_on_spark_and_returns_its_exit_value(
    run, home, terminal, tmp_path
):
    before = children()
    result = run(
        "# MAGIC %md\n# MAGIC # Heading here",
        "# DBTITLE 1,Make <rows>\nimport os, sys\n"
        "df = spark.range(3).selectExpr('id', \"'<b>' AS name\")\n"
        "df.createOrReplaceTempView('rows')\nprint(os.getcwd())\ndisplay(df)",
        "# MAGIC %sql\n# MAGIC SELECT sum(id) AS total FROM rows",
        SAME_FILES.format(folder=tmp_path / "lake"),
        "from pyspark.sql import functions as F\n"
        "worker = F.udf(lambda _: __import__('sys').executable, 'string')\n"
        "assert df.select(worker('id')).first()[0] == sys.executable\n"
        "from pyspark import SparkContext\n"
        "jvm = f'/proc/{SparkContext._gateway.proc.pid}'\n"
        "assert 'jars/target/spark.jsa' in open(f'{jvm}/maps').read()\n"
        "assert '-Da=b c' in open(f'{jvm}/cmdline').read().split(chr(0))\n"
        "dbutils.notebook.exit(str(_sqldf.first()['total']))",
        "raise Exception('not reached')",
        environment={OPTIONS_VARIABLE: "-Xss8m '-Da=b c'"},
    )
    assert result.exit_value == "3"
    page = result.html.read_text()
    for expected in (
        "Heading here",
        "Make &lt;rows&gt;",
        "<small>bigint</small>",
        "<td>&lt;b&gt;</td>",
        "succeeded",
    ):
        assert expected in page
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//|@import|url\(["']?https?:|import\(""", page) == []
    cells = nbformat.read(result.ipynb, as_version=4).cells
    assert "total\n-----\n3" in cells[2].outputs[0].data["text/plain"]
    assert cells[5].outputs == []
    assert (home.folder / "dbfs" / "in" / "a.txt").read_text() == "same"
    output = terminal.getvalue()
    assert str(REPOSITORY) not in output
    assert "[2/6] Make <rows>" in output
    assert [line for line in output.splitlines() if "WARN" in line] == []
    assert remaining(before) == set()


def test_a_notebook_that_never_names_spark_starts_no_jvm(run, terminal):
    result = run("import psutil\nprint('children:', psutil.Process().children())")
    assert "      children: []\n" in terminal.getvalue()
    assert result.exit_value == ""


def test_the_working_directory_is_the_notebooks_folder_and_parameters_reach_widgets(run, home, terminal):
    run(
        "import os\ndbutils.widgets.text('who', 'nobody')\nprint(os.getcwd(), dbutils.widgets.get('who'))",
        parameters={"who": "me"},
    )
    assert f"{home.project / 'notebooks'} me\n" in terminal.getvalue()
    assert "who=me" in saved(home)[1].read_text()


def test_a_failing_cell_is_named_with_number_title_reason_and_place(run, home, terminal):
    with pytest.raises(CellFailedError) as caught:
        run(
            "def divide(x):\n    return 1 / x",
            "# MAGIC %md\n# MAGIC text",
            "# DBTITLE 1,The division\n\nprint('before')\ndivide(0)",
            "print('after')",
        )
    page = saved(home)[1]
    lines = str(caught.value).split("\n")
    cause = "tiny.py, cell 3 'The division' failed: ZeroDivisionError: division by zero"
    assert (caught.value.cause, lines[0]) == (cause, f"{cause} [TL-NOTEBOOK-003]")
    assert [line.strip() for line in lines[1:]] == [
        f"{home.project}/notebooks/tiny.py:11 in <module>",
        "divide(0)",
        f"{home.project}/notebooks/tiny.py:3 in divide",
        "return 1 / x",
        f"saved: {page}",
    ]
    assert "ZeroDivisionError" in page.read_text()
    assert "✗ [3/4] The division" in terminal.getvalue()
    assert "after" not in terminal.getvalue()


def test_an_expected_error_is_one_sentence(run):
    with pytest.raises(CellFailedError) as caught:
        run("from topiclake.errors import KafkaError\nraise KafkaError('no broker', 'make services-up')")
    first, second = str(caught.value).split("\n")
    assert first.endswith("failed: no broker; try: make services-up [TL-KAFKA-001]")
    assert second.startswith("  saved: ")


def test_a_syntax_error_is_a_failed_cell(run):
    with pytest.raises(CellFailedError, match=r"cell 2 'y = 1' failed: SyntaxError: ") as caught:
        run("x = 1", "y = 1\nx ==")
    first, place, code, _ = str(caught.value).split("\n")
    assert ".py, line" not in first
    assert place.strip().endswith("notebooks/tiny.py:5 in <module>")
    assert code.strip() == "x =="


@pytest.mark.parametrize(
    "show",
    [
        "print(token); print(repr(token), [token])\n"
        "import sys; print(token, file=sys.stderr)\n"
        "import html; displayHTML(html.escape(token))\n"
        "print(token[:5], end='', flush=True); print(token[5:])\n"
        "import os; os.write(1, b'x' * 996 + token.encode())\n"
        "display(token); displayHTML(f'<b>{token}</b>'); token",
        "raise Exception(token)",
        "raise Exception({'nested': token})",
        "dbutils.notebook.exit(token)",
    ],
)
def test_a_secret_is_in_nothing_that_a_run_leaves(run, home, terminal, show):
    shown = ""
    try:
        result = run(
            "token = dbutils.secrets.get('s', 'k')",
            show,
            environment={"TOPICLAKE_SECRET_S_K": SECRET},
        )
        shown = repr(result)
    except CellFailedError as error:
        shown = repr(error)
    left = [terminal.getvalue(), shown, *(path.read_text() for path in saved(home))]
    assert any("[REDACTED]" in text for text in left)
    for text in left:
        assert "s3cr" not in text


def test_a_parameter_that_no_widget_takes_is_refused_before_anything_runs(run, home):
    with pytest.raises(ConfigError, match="has no widget 'topics'; it has topic; try: use -p topic=x"):
        run("dbutils.widgets.text('topic', 'gps')", parameters={"topics": "x"})
    assert not home.runs.exists()


@pytest.mark.thorough("refused parameters are tested next to it")
def test_a_parameter_that_no_widget_took_is_named_behind_the_last_cell(run, terminal):
    """Where the text cannot tell the widgets, the run can."""
    given = {"topic": "x", "topics": "y"}
    run(
        "name = 'topic'",
        "dbutils.widgets.text(name, 'gps')\nprint(dbutils.widgets.getAll())",
        parameters=given,
    )
    assert "{'topic': 'x', 'topics': 'y'}" in terminal.getvalue()
    assert "no widget has the parameter topics\n" in terminal.getvalue()


@pytest.mark.thorough("a further end of a kernel")
def test_a_kernel_that_dies_is_named_with_its_signal_and_saved(run, home):
    with pytest.raises(KernelDiedError, match=r"tiny.py: the Python kernel died in cell 2 .*signal SIGKILL"):
        run("x = 1", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert "died" in saved(home)[1].read_text()


@pytest.mark.thorough("a further place that a secret could reach")
def test_the_last_words_of_a_kernel_hold_no_secret(run, home, terminal):
    with pytest.raises(KernelDiedError) as caught:
        run(
            "import os, time\ntoken = dbutils.secrets.get('s', 'k')",
            "os.write(2, token.encode() + b'\\n')\ntime.sleep(1)\nos.write(2, token.encode())\nos._exit(3)",
            environment={"TOPICLAKE_SECRET_S_K": SECRET},
        )
    assert "exit code 3" in str(caught.value)
    assert "[REDACTED]" in terminal.getvalue()
    for text in (str(caught.value), terminal.getvalue(), *(path.read_text() for path in saved(home))):
        assert "s3cr" not in text


def test_a_kernel_that_cannot_start_is_named_with_its_last_words(run, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "ipykernel.py").write_text("raise ImportError('broken package')")
    with pytest.raises(KernelDiedError, match=r"before the first cell \(exit code 1: .*broken package"):
        run("x = 1", environment={"PYTHONPATH": str(tmp_path / "broken")})


def test_processes_that_a_cell_leaves_behind_are_ended(run, terminal):
    run(
        "import subprocess\n"
        "for own_session in (False, True):\n"
        "    made = subprocess.Popen(['sleep', '600'], start_new_session=own_session)\n"
        "    print('pid:', made.pid)"
    )
    pids = [int(pid) for pid in re.findall(r"pid: (\d+)", terminal.getvalue())]
    assert len(pids) == 2
    assert all(map(has_ended, pids))


@pytest.mark.slow("a cold JVM")
def test_an_early_kernel_has_spark_before_the_first_cell(write, home, terminal):
    notebook = write("print('spark' in dir())", "print(spark.range(3).count(), 'rows')")
    with early_kernel(notebook, {}, home, {}) as kernel:
        done = run_notebook(notebook, {}, home, {}, Console(file=terminal), kernel=kernel)
        assert all(map(has_ended, kernel_processes()))
    assert re.findall("True|3 rows", terminal.getvalue()) == ["True", "3 rows"]
    assert saved(home) == (done.ipynb, done.html)


def test_spark_that_cannot_start_early_fails_the_cell_that_needs_it(write, home, terminal):
    notebook, options = (
        write("print('first')", "spark.range(3).count()"),
        {OPTIONS_VARIABLE: "-agentlib:missing"},
    )
    with (
        early_kernel(notebook, {}, home, options) as kernel,
        pytest.raises(CellFailedError, match=r"cell 2 'spark\.range"),
    ):
        run_notebook(notebook, {}, home, options, Console(file=terminal), kernel=kernel)
    assert "first" in terminal.getvalue()


def test_an_early_kernel_that_runs_nothing_ends(write, home):
    with early_kernel(write("1 + 1"), {}, home, {}):
        started = kernel_processes()
    assert started
    assert all(map(has_ended, started))


def kernel_processes():
    """Return the ids of the kernels that run below this process, and of their children."""
    below = psutil.Process().children(recursive=True)
    kernels = [process for process in below if KERNEL_COMMAND[2] in process.cmdline()]
    return {each.pid for kernel in kernels for each in (kernel, *kernel.children(recursive=True))}


RUNNER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_runner import Home
from workbench.kernel import process
from workbench.runner import execution
from workbench.runner.runner import run_notebook
# A busy machine needs longer until the kernel has ended, and its last output is read.
process.INTERRUPTED_GRACE_SECONDS = execution.LAST_OUTPUT_SECONDS = {grace}
run_notebook(Path({notebook!r}), {{}}, Home(Path({folder!r}), Path({project!r})), {{}})
"""


@pytest.fixture
def start(home, write):
    """Start a runner in its own process; return it and the kernel's processes once the cell says `ready`."""
    started = []

    def run_in_process(*cells, grace=INTERRUPTED_GRACE_SECONDS):
        code = RUNNER.format(
            grace=grace,
            tests=str(Path(__file__).parent),
            notebook=str(write(*cells)),
            folder=str(home.folder),
            project=str(home.project),
        )
        runner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(runner)
        assert any(line.strip() == "ready" for line in runner.stdout)
        return runner, psutil.Process(runner.pid).children(recursive=True)

    yield run_in_process
    for runner in started:
        runner.kill()
        runner.wait()
        runner.stdout.close()


def test_ctrl_c_ends_kernel_and_jvm_and_saves_the_page(start, home):
    runner, processes = start(
        "display(spark.readStream.format('rate').load(), streamName='live')\nprint('ready')\n"
        "spark.range(10**15).selectExpr('sum(id % 7)').collect()",
        grace=60.0,
    )
    assert any("java" in process.name() for process in processes)
    runner.send_signal(signal.SIGINT)
    runner.wait(240)
    assert runner.returncode == -signal.SIGINT
    assert all(has_ended(process.pid) for process in processes)
    page = saved(home)[1].read_text()
    assert "interrupted" in page
    assert "<b>live</b> stopped" in page


def test_a_kernel_that_has_ended_is_not_waited_for_if_its_report_was_read_before():
    async def ended():
        client = Client(nbformat.v4.new_notebook())
        client.create_kernel_manager()
        await client.async_start_new_kernel()
        await client.async_start_new_kernel_client()
        await client.km.shutdown_kernel(now=False)
        while (await client.kc.iopub_channel.get_msg(timeout=60))["msg_type"] != "shutdown_reply":
            pass
        await asyncio.wait_for(client.receive_last_updates(), 60)
        client.kc.stop_channels()

    asyncio.run(ended())


@pytest.mark.thorough("one Ctrl-C is tested")
def test_an_interrupted_run_names_its_page_in_one_line(write, home):
    shown = io.StringIO()
    notebook = write(f"import os, time\nos.kill({os.getpid()}, 2)\ntime.sleep(600)")
    with pytest.raises(KeyboardInterrupt):
        run_notebook(notebook, {}, home, {}, Console(file=shown, width=20))
    assert shown.getvalue().endswith(f"\n  saved: {saved(home)[1]}\n")


@pytest.mark.thorough("one Ctrl-C is tested")
def test_a_second_ctrl_c_waits_until_the_page_is_saved(write, home, terminal, monkeypatch):
    def interrupted(*given):
        os.kill(os.getpid(), signal.SIGINT)
        return save_run(*given)

    monkeypatch.setattr("workbench.runner.runner.save_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_notebook(write("1 + 1"), {}, home, {}, Console(file=terminal))
    assert "succeeded" in saved(home)[1].read_text()


@pytest.fixture
def only_the_last_cell_has_a_limit(monkeypatch):
    """What comes before takes as long as the machine needs."""
    limited = nbclient.NotebookClient._get_timeout
    monkeypatch.setattr(
        nbclient.NotebookClient,
        "_get_timeout",
        lambda client, cell: limited(client, cell) if cell is client.nb.cells[-1] else None,
    )


@pytest.mark.thorough("a further way to end a run")
@pytest.mark.usefixtures("only_the_last_cell_has_a_limit")
def test_a_cell_that_takes_too_long_is_stopped_with_its_spark_job_and_streams(
    write, home, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("WORKBENCH_HOME", str(home.folder))
    before, out = children(), tmp_path / "out"
    notebook = write(
        "import time\n"
        f"stream = spark.readStream.format('rate').load().writeStream.format('parquet')\n"
        f"query = stream.option('checkpointLocation', '{tmp_path}/checkpoint').start('{out}')\n"
        "while not sum(batch.numInputRows for batch in query.recentProgress): time.sleep(0.1)",
        "spark.range(0, 10**14, 1, 1).selectExpr('sum(id % 7)').collect()",
    )
    assert cli.main(["run", str(notebook), "--cell-timeout", "3"]) == 1
    printed = capsys.readouterr()
    assert "tiny.py, cell 2 'spark.range(0, 10" in printed.err
    assert "did not end within 3 s and was stopped" in printed.err
    assert "a larger --cell-timeout" in printed.err
    assert "did not end within 3 s" in saved(home)[1].read_text()
    assert remaining(before) == set()
    written = len(list(out.glob("*.parquet")))
    time.sleep(2)
    assert len(list(out.glob("*.parquet"))) == written > 0


@pytest.mark.thorough("a further way to end a run")
def test_sigterm_ends_a_cell_that_ignores_interrupts(start, home):
    runner, processes = start(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready')\ntime.sleep(600)",
        grace=2.0,
    )
    runner.terminate()
    runner.wait(120)
    assert runner.returncode == 128 + signal.SIGTERM
    assert all(has_ended(process.pid) for process in processes)
    assert "interrupted" in saved(home)[1].read_text()


def test_a_kernel_does_not_outlive_a_killed_runner(start):
    runner, processes = start("import time\nprint('ready')\ntime.sleep(600)")
    os.kill(runner.pid, signal.SIGKILL)
    wait_until(lambda: all(has_ended(process.pid) for process in processes), 120)
