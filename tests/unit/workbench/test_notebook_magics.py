"""The kernel's workspace in a shell of this process: no kernel is started, and no JVM."""

import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from topiclake.errors import ConfigError
from workbench.dbutils import NotebookExit
from workbench.host.redaction import Redactor
from workbench.kernel import magics as notebook_magics
from workbench.kernel.kernel import Workspace
from workbench.kernel.magics import CommandError
from workbench.kernel.messages import Context
from workbench.notebook.files import read_notebook
from workbench.notebook.inclusion import inclusions
from workbench.notebook.parameters import check_parameters, widget_names
from workbench.notebook.source import NotebookSourceError

CELL = "\n\n# COMMAND ----------\n\n"


@pytest.fixture
def write(tmp_path):
    def written(name, *cells):
        path = tmp_path / "notebooks" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# Databricks notebook source\n{CELL.join(cells)}\n")
        return path

    return written


@pytest.fixture
def notebook(tmp_path, write, monkeypatch):
    """Run cells as the runner would, in one shell; return what the shell holds then."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    shell.run_line_magic("colors", "NoColor")
    monkeypatch.chdir(tmp_path)

    def ran(*cells, parameters=None, **names):
        path = write("main", *cells)
        context = Context(str(path), str(tmp_path / "home"), str(tmp_path), parameters or {})
        Workspace(context, shell, Redactor()).install()
        shell.set_custom_exc((), None)
        shell.push(names)
        source = read_notebook(path)
        check_parameters(source, parameters or {})
        for cell in source.runnable:
            shell.run_cell(cell.code).raise_error()
        return shell.user_ns

    return ran


class Spark:
    """Takes SQL as a session would."""

    columns = ()

    def sql(self, text, **options):
        self.asked = (text, options)
        return self


def test_run_shares_the_namespace_both_ways(notebook, write):
    write(
        "other",
        "def double(x):\n    return 2 * x * factor",
        "# MAGIC %md text",
        "# MAGIC %python\n# MAGIC y = 1",
    )
    names = notebook("factor = 10", "# MAGIC %run ./other", "x = double(y)")
    assert names["x"] == 20


def test_run_gives_its_values_to_the_widgets_of_the_other_notebook(notebook, write):
    write("other", "dbutils.widgets.text('name', 'default')\nseen = dbutils.widgets.get('name')")
    names = notebook('# MAGIC %run ./other $name="a value"', "after = dbutils.widgets.get('name')")
    assert (names["seen"], names["after"]) == ("a value", "a value")


def test_a_widget_that_was_there_before_run_keeps_its_own_value(notebook, write):
    write("other", "dbutils.widgets.text('name', 'default')\nseen = dbutils.widgets.get('name')")
    names = notebook(
        "dbutils.widgets.text('name', 'own')",
        "# MAGIC %run ./other $name='given'",
        "after = dbutils.widgets.get('name')",
    )
    assert (names["seen"], names["after"]) == ("given", "own")


def test_a_widget_that_an_included_notebook_removes_is_gone(notebook, write):
    write("other", "dbutils.widgets.removeAll()\ndbutils.widgets.text('new', '')")
    names = notebook(
        "dbutils.widgets.text('name', 'own')", "# MAGIC %run ./other", "left = dbutils.widgets.getAll()"
    )
    assert names["left"] == {"new": ""}


def test_a_cell_of_an_included_notebook_that_is_no_python_is_named_with_its_line(notebook, write):
    path = write("other", "x = 1", "y = 2\nz ==")
    with pytest.raises(SyntaxError) as caught:
        notebook("# MAGIC %run ./other")
    assert (caught.value.filename, caught.value.lineno) == (
        str(path),
        path.read_text().split("\n").index("z ==") + 1,
    )


def test_a_parameter_of_the_run_reaches_the_widget_of_an_included_notebook(notebook, write):
    write("other", "dbutils.widgets.text('name', 'default')")
    names = notebook("# MAGIC %run ./other", "x = dbutils.widgets.get('name')", parameters={"name": "given"})
    assert names["x"] == "given"


def test_a_dollar_stays_what_it_is_though_a_variable_has_the_name(notebook, write):
    write("other", "dbutils.widgets.text('name', 'default')\nseen = dbutils.widgets.get('name')")
    names = notebook("name = 'a variable'", "# MAGIC %run ./other $name=given")
    assert names["seen"] == "given"


def test_a_relative_path_belongs_to_the_notebook_that_says_it(notebook, write):
    write("lib/first", "# MAGIC %run ./second", "# MAGIC %run ../third")
    write("lib/second", "second = 'lib'")
    write("second", "second = 'wrong'")
    write("third", "third = 'up'")
    names = notebook("# MAGIC %run ./lib/first", "# MAGIC %run ./third.py")
    assert (names["second"], names["third"]) == ("lib", "up")


def test_a_failure_in_an_included_notebook_has_its_own_file_and_line(notebook, write):
    path = write("other", "# MAGIC %md text", "x = 1\n1 / 0")
    with pytest.raises(ZeroDivisionError) as caught:
        notebook("# MAGIC %run ./other")
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(path), path.read_text().split("\n").index("1 / 0") + 1)


def test_an_exit_in_an_included_notebook_ends_the_whole_run(notebook, write):
    write("other", "dbutils.notebook.exit('value')")
    with pytest.raises(NotebookExit, match="value"):
        notebook("# MAGIC %run ./other", "raise Exception('not reached')")


def test_a_notebook_that_failed_is_no_part_of_a_circle_afterwards(notebook, write):
    write("other", "if fail:\n    raise KeyError('x')")
    names = notebook(
        "fail = True\ntry:\n    get_ipython().run_line_magic('run', './other')\n"
        "except KeyError:\n    fail = False",
        "# MAGIC %run ./other",
    )
    assert names["fail"] is False


def test_notebooks_that_include_each_other_are_named_in_order(write):
    main = write("main", "# MAGIC %run ./a")
    write("a", "# MAGIC %run ./b")
    write("b", "# MAGIC %run ../notebooks/main")
    with pytest.raises(NotebookSourceError, match=r"main\.py → a\.py → b\.py → main\.py") as raised:
        list(inclusions(read_notebook(main)))
    assert raised.value.fields == {"chain": ("main.py", "a.py", "b.py", "main.py"), "reason": "circle"}


def test_a_circle_that_appears_while_the_notebook_runs_is_refused(notebook, write):
    write("other", "get_ipython().run_line_magic('run', './main')")
    with pytest.raises(NotebookSourceError) as raised:
        notebook("# MAGIC %run ./other")
    assert raised.value.fields == {"chain": ("main.py", "other.py", "main.py"), "reason": "circle"}


def test_one_notebook_may_be_included_twice(write):
    main = write("main", "# MAGIC %run ./a", "# MAGIC %run ./b")
    write("a", "# MAGIC %run ./b")
    write("b", "x = 1")
    assert [one.source.path.stem for one in inclusions(read_notebook(main))] == ["a", "b", "b"]


def test_what_cannot_run_in_an_included_notebook_is_refused_before_anything_runs(write):
    main = write("main", "# MAGIC %run ./other")
    write("other", "x = 1", "# MAGIC %scala\n# MAGIC val x = 1")
    with pytest.raises(NotebookSourceError, match=r"other\.py, cell 2, line 6: %scala ") as raised:
        check_parameters(read_notebook(main), {})
    assert (raised.value.fields["language"], raised.value.fields["reason"]) == ("scala", "language")


def test_an_included_notebook_that_does_not_exist_is_named_with_the_cell(write):
    main = write("main", "x = 1", "# MAGIC %run ./none")
    with pytest.raises(ConfigError, match=r"main\.py, cell 2, line 6: .*/notebooks/none\.py") as raised:
        check_parameters(read_notebook(main), {})
    assert raised.value.fields["notebook"] == str(main.with_name("none.py"))
    assert raised.value.fields["location"].endswith("main.py, cell 2, line 6")
    assert raised.value.fields["reason"] == "missing"


def test_a_value_that_no_widget_of_the_included_notebook_takes_is_refused(write):
    main = write("main", "dbutils.widgets.text('mine', '')", '# MAGIC %run ./other $nmae="x"')
    write("other", "dbutils.widgets.text('name', '')")
    assert widget_names(read_notebook(main)) == {"mine", "name"}
    with pytest.raises(ConfigError, match=r"main\.py, cell 2, line 6: .*; try: use \$name=x") as raised:
        check_parameters(read_notebook(main), {})
    location = raised.value.fields.pop("location")
    assert location.endswith("main.py, cell 2, line 6")
    assert raised.value.fields == {"notebook": "other.py", "widget": "nmae", "allowed": ("name",)}


@pytest.mark.parametrize(
    "cell",
    [
        "w = dbutils.widgets\nw.text('env', 'dev')",
        "helper(dbutils)",
        "define = dbutils.widgets.text\ndefine('env', 'dev')",
        "getattr(dbutils, 'widgets').text('env', 'dev')",
        "x ==",
    ],
)
def test_where_the_text_does_not_tell_all_widgets_no_parameter_is_refused(write, cell):
    source = read_notebook(write("main", "dbutils.widgets.text('mine', '')", cell))
    assert widget_names(source) is None
    check_parameters(source, {"env": "prod"})


@pytest.mark.parametrize(
    "beside",
    [
        "!ls",
        "x = !ls",
        "if True:\n    %pip list",
        "x = dbutils.widgets.get('mine')",
        "f(dbutils.secrets.get)",
        "import topiclake as tl\ntl.mount(dbutils, 1)",
    ],
)
def test_widgets_beside_commands_and_other_uses_of_dbutils_are_known(write, beside):
    source = read_notebook(write("main", f"dbutils.widgets.text('mine', '')\n{beside}"))
    assert widget_names(source) == {"mine"}


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ('./other $a="b c" $d=e', {"a": "b c", "d": "e"}),
        ("./other  $a = 'b'", {"a": "b"}),
        ('"./other"', {}),
        ('./other $a=""', {"a": ""}),
    ],
)
def test_values_of_run_are_read(write, line, values):
    main = write("main", f"# MAGIC %run {line}")
    write("other", "x = 1")
    (one,) = inclusions(read_notebook(main))
    assert one.values == values


@pytest.mark.parametrize(
    "line", ["", "./other a=b", "./other $a", './other $a="b', "./other $a=$b", '"./other']
)
def test_a_run_that_is_written_otherwise_is_refused_with_its_cell(write, line):
    main = write("main", f"# MAGIC %run {line}")
    write("other", "x = 1")
    with pytest.raises(NotebookSourceError, match=r"main\.py, cell 1, line 2: '%run.*; try") as raised:
        list(inclusions(read_notebook(main)))
    assert raised.value.fields["reason"] == "unreadable"


def test_sql_has_the_widgets_that_it_names_and_leaves_its_result(notebook):
    spark = Spark()
    names = notebook(
        "dbutils.widgets.text('who', 'me')\ndbutils.widgets.text('table', 't')",
        "dbutils.widgets.text('other', '')",
        "# MAGIC %sql\n# MAGIC SELECT 'at 12:30', x::int FROM IDENTIFIER(:table) WHERE who = :who AND $other",
        other="a variable",
        spark=spark,
    )
    text = "SELECT 'at 12:30', x::int FROM IDENTIFIER(:table) WHERE who = :who AND $other"
    assert (spark.asked[0].strip(), spark.asked[1]) == (text, {"args": {"table": "t", "who": "me"}})
    assert names["_sqldf"] is spark


def test_sql_without_markers_is_passed_as_it_is(notebook):
    spark = Spark()
    notebook("dbutils.widgets.text('int', 'x')", "# MAGIC %sql SELECT x FROM t", spark=spark)
    assert spark.asked == ("SELECT x FROM t\n", {})


def test_the_shell_shows_its_output_and_no_exit_code_matters(notebook, capfd):
    notebook(
        "# MAGIC %sh\n# MAGIC echo one\n# MAGIC false\n# MAGIC echo two >&2\n# MAGIC exit 3",
        "# MAGIC %sh echo $0",
    )
    out, err = capfd.readouterr()
    assert (out, err) == ("one\nbash\n", "two\n")


def test_the_shell_with_e_ends_at_the_first_failure_and_fails_the_cell(notebook, capfd):
    with pytest.raises(CommandError) as raised:
        notebook("# MAGIC %sh -e\n# MAGIC echo one\n# MAGIC (exit 7)\n# MAGIC echo two")
    assert raised.value.fields == {"command": "sh", "status": 7}
    assert capfd.readouterr().out.startswith("one\n")
    notebook("# MAGIC %sh -e echo fine")
    assert capfd.readouterr().out == "fine\n"


def test_fs_calls_dbutils_and_shows_its_result(notebook, tmp_path, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("workbench.display.show._publish", lambda data, raw: shown.append(data["text/plain"]))
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "a b.txt").write_text("text")
    notebook(
        f"_ = dbutils.fs.mount('{tmp_path}/lake', '/mnt/x')",
        "# MAGIC %fs ls /mnt/x",
        '# MAGIC %fs head "/mnt/x/a b.txt" 2',
        "# MAGIC %fs put /mnt/x/b/c.txt 42 true",
        "# MAGIC %fs rm -r /mnt/x/b",
    )
    assert capsys.readouterr().out.splitlines() == ["te", "True", "True"]
    head, _, row, count = shown.pop().split("\n")
    assert [name.strip() for name in head.split("|")] == ["path", "name", "size", "modificationTime"]
    assert [value.strip() for value in row.split("|")][:3] == ["dbfs:/mnt/x/a b.txt", "a b.txt", "4"]
    assert (count, shown) == ("(1 row)", [])
    assert [path.name for path in (tmp_path / "lake").iterdir()] == ["a b.txt"]


def test_fs_alone_lists_the_methods(notebook, capsys):
    notebook("# MAGIC %fs")
    assert "\nls(path): " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("lss /", "there is no method 'lss'; there are .*ls.*; try: use ls"),
        ("ls", r"%fs ls: missing a required argument: 'path'; try: dbutils.fs.help\(\"ls\"\)"),
        ("ls / / /", "too many positional arguments"),
        ("head /x many", "invalid literal for int"),
        ("_resolve /", "there is no method '_resolve'"),
    ],
)
def test_a_wrong_fs_command_is_named(notebook, line, cause):
    with pytest.raises(ConfigError, match=cause):
        notebook(f"# MAGIC %fs {line}")


@pytest.fixture
def commands(monkeypatch):
    """The commands that were run, in place of running them; constraints stand in place of their file."""
    ran = []

    def run(command):
        ran.append([Path(word).read_text() if word.endswith(".txt") else word for word in command])
        return 1 if "broken" in command else 0

    monkeypatch.setattr(notebook_magics, "_run", run)
    return ran


def test_pip_installs_into_this_python_and_changes_nothing_that_is_there(notebook, commands, capsys):
    names = notebook("# MAGIC %pip install -q 'some-package>=1'\n# MAGIC x = 1")
    (command,) = commands
    assert command[:-1] == [sys.executable, "-m", "pip", "install", "-q", "some-package>=1", "--constraint"]
    assert f"\npytest=={pytest.__version__}\n" in f"\n{command[-1]}"
    assert f"Installed into {sys.prefix}" in capsys.readouterr().out
    assert names["x"] == 1


def test_a_pip_that_fails_fails_the_cell(notebook, commands):
    with pytest.raises(CommandError) as raised:
        notebook("# MAGIC %pip install broken")
    assert raised.value.fields == {"command": "pip", "status": 1}


@pytest.mark.parametrize("line", ["uninstall -y pyspark", "", "cache purge"])
def test_other_pip_commands_are_refused(notebook, commands, line):
    with pytest.raises(ConfigError, match="; try: use one of install, list") as raised:
        notebook(f"# MAGIC %pip {line}")
    assert (raised.value.fields["command"], raised.value.fields["line"]) == ("pip", line)
    assert commands == []


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("%sql\nSELECT 1", "SELECT 1"),
        ("%sql SELECT 2", "SELECT 2"),
        ("%%sql\nSELECT 3\n", "SELECT 3\n"),
        ("%%sql DELETE FROM t WHERE\nid = 4", "DELETE FROM t WHERE\nid = 4\n"),
    ],
)
def test_sql_is_typed_as_on_databricks_or_as_in_jupyter(notebook, typed, asked):
    spark = Spark()
    shell = notebook(spark=spark)["get_ipython"]()
    shell.run_cell(typed).raise_error()
    assert spark.asked == (asked, {})


def test_other_cells_are_typed_as_on_databricks(notebook, capfd):
    names = notebook("x = 0")
    shell = names["get_ipython"]()
    for typed in ("%python\nx = 1", "%sh\necho from a shell", "%md\n# words, 'not code", "%time y = 2"):
        shell.run_cell(typed).raise_error()
    assert (names["x"], names["y"]) == (1, 2)
    assert "from a shell" in capfd.readouterr().out


def test_a_cell_in_a_language_that_does_not_run_here_says_so(notebook):
    shell = notebook("x = 0")["get_ipython"]()
    with pytest.raises(NotebookSourceError, match=r"^%scala .*; try: use one of") as raised:
        shell.run_cell("%scala\nval x = 1").raise_error()
    assert (raised.value.fields["language"], raised.value.fields["reason"]) == ("scala", "language")
