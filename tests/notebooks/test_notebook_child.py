"""`dbutils.notebook.run`: the other notebook has a kernel of its own; none of them starts a JVM."""

import os
import subprocess

import pytest

from tests.support.stand_in import stand_in
from tests.support.waiting import children, has_ended, remaining, wait_until
from topiclake.errors import ConfigError
from workbench.dbutils import DBUtils, WorkflowException
from workbench.notebook.source import FIRST_LINE


@pytest.fixture
def notebook(tmp_path):
    return DBUtils(tmp_path / "home", tmp_path, folder=lambda: tmp_path / "notebooks").notebook


@pytest.fixture
def write(tmp_path):
    def written(*cells):
        path = tmp_path / "notebooks" / "lib" / "other.py"
        path.parent.mkdir(parents=True)
        path.write_text("\n# COMMAND ----------\n".join([f"{FIRST_LINE}\n{cells[0]}", *cells[1:]]))

    return written


def pages(tmp_path):
    return [path.read_text() for path in (tmp_path / "home" / "runs").glob("*/other.html")]


def test_another_notebook_gets_its_arguments_and_returns_its_exit_value(notebook, write, tmp_path, capfd):
    write(
        "dbutils.widgets.text('who', 'nobody')\nimport os\nprint('in', os.getcwd())",
        "dbutils.notebook.exit('hello ' + dbutils.widgets.get('who') + ' é')",
        "raise Exception('not reached')",
    )
    assert notebook.run("./lib/other", 60, {"who": "me"}) == "hello me é"
    assert f"in {tmp_path}/notebooks/lib\n" in capfd.readouterr().out
    (page,) = pages(tmp_path)
    assert "succeeded" in page


def test_a_notebook_that_fails_is_an_exception_with_its_cell_and_page(notebook, write, tmp_path):
    write("x = 1", "1 / 0")
    with pytest.raises(
        WorkflowException, match=r"other\.py, cell 2 '1 / 0' failed: ZeroDivisionError"
    ) as caught:
        notebook.run("lib/other.py", 0)
    assert f"saved: {tmp_path}/home/runs/" in str(caught.value)


@pytest.mark.thorough("a cell that takes too long is stopped in test_runner")
def test_a_notebook_that_takes_too_long_is_stopped_with_its_kernel(notebook, write, tmp_path, monkeypatch):
    pid = tmp_path / "pid"
    write(f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")

    class Clocked(subprocess.Popen):
        """Its 8 seconds are over as soon as the cell runs."""

        def wait(self, timeout=None):
            if timeout != 8:
                return super().wait(timeout)
            wait_until(lambda: pid.exists() and pid.read_text())
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr("workbench.dbutils.notebook.subprocess", stand_in(subprocess, Popen=Clocked))
    before = children()
    with pytest.raises(
        WorkflowException, match=r"other\.py did not end within 8 s and was stopped; try: pass a larger"
    ):
        notebook.run("lib/other", 8)
    assert has_ended(int(pid.read_text()))
    assert remaining(before) == set()
    assert "interrupted" in pages(tmp_path)[0]


def test_an_argument_that_no_widget_takes_is_an_exception_and_nothing_runs(notebook, write, tmp_path):
    write("dbutils.widgets.text('who', 'nobody')")
    with pytest.raises(
        WorkflowException, match=r"other\.py has no widget 'whom'; it has who; try: use -p who=x"
    ):
        notebook.run("lib/other", 60, {"whom": "x"})
    assert not (tmp_path / "home" / "runs").exists()


def test_a_process_that_ends_without_a_result_is_an_exception(notebook, write, monkeypatch, tmp_path):
    write("x = 1")
    (tmp_path / "broken" / "workbench").mkdir(parents=True)
    (tmp_path / "broken" / "workbench" / "__init__.py").write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'broken'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(WorkflowException, match=r"the run of other\.py ended with exit code 3"):
        notebook.run("lib/other", 60)


def test_an_argument_that_is_no_string_and_a_notebook_that_is_not_there_are_refused(notebook, write):
    write("x = 1")
    with pytest.raises(ConfigError, match=r"argument 'n' of lib/other is 5, not a string; try: pass '5'"):
        notebook.run("lib/other", 60, {"n": 5})
    with pytest.raises(ConfigError, match=r"notebook .*/notebooks/none\.py does not exist"):
        notebook.run("./none", 60)


def test_a_secret_that_is_handed_on_is_in_nothing_that_the_other_run_leaves(
    write, tmp_path, capfd, monkeypatch
):
    secret = "s3cr<et>\"&'x/+ 1"
    monkeypatch.setenv("TOPICLAKE_SECRET_S_K", secret)
    dbutils = DBUtils(tmp_path / "home", tmp_path, folder=lambda: tmp_path / "notebooks")
    write(
        "dbutils.widgets.text('pw', '')\npw = dbutils.widgets.get('pw')\nprint(pw)",
        "import psutil\nme = psutil.Process()\nlines = [one.cmdline() for one in (me, *me.parents())]\n"
        "assert not any(pw in part for line in lines for part in line)",
        f"assert pw == {secret[:8]!r} + {secret[8:]!r}",
        "dbutils.notebook.exit(pw)",
    )
    asked = {"pw": dbutils.secrets.get("s", "k")}
    assert dbutils.notebook.run("lib/other", 60, asked) == "[REDACTED]"
    shown = capfd.readouterr()
    saved = [path.read_text() for path in (tmp_path / "home" / "runs").glob("*/other.*")]
    assert len(saved) == 2
    for text in (shown.out, *saved):
        assert "[REDACTED]" in text
    for text in (shown.out, shown.err, *saved):
        assert "cr<et>\"&'x" not in text
        assert secret not in text
    with pytest.raises(WorkflowException, match=r"try: use -p pw=\[REDACTED\]"):
        dbutils.notebook.run("lib/other", 60, {"pww": asked["pw"]})
