import json

import pytest

from topiclake.errors import ConfigError
from workbench.notebook.conversion import DATABRICKS_METADATA, to_notebook
from workbench.notebook.files import read_notebook
from workbench.notebook.inclusion import find_notebook
from workbench.notebook.parameters import check_parameters, widget_names
from workbench.notebook.source import NotebookSourceError

NOTEBOOK = """\
# Databricks notebook source
# MAGIC %md
# MAGIC # Tracks
# MAGIC
# MAGIC of *devices*

# COMMAND ----------

# DBTITLE 1,Read the <table>
rows = 3

print(rows)  # MAGIC in a comment stays

# COMMAND ----------

# DBTITLE 0,Hidden
# MAGIC %sql SELECT 1
# MAGIC   AS one

# COMMAND ----------

# COMMAND ----------

# MAGIC %python
# MAGIC x = 1
"""


def test_cells_have_their_language_text_title_number_and_line(parse):
    cells = parse(NOTEBOOK).cells
    assert [(c.number, c.language, c.line, c.title, c.title_shown, c.source) for c in cells] == [
        (1, "md", 3, "", False, "# Tracks\n\nof *devices*"),
        (2, "python", 10, "Read the <table>", True, "rows = 3\n\nprint(rows)  # MAGIC in a comment stays"),
        (3, "sql", 17, "Hidden", False, "SELECT 1\n  AS one"),
        (4, "python", 21, "", False, ""),
        (5, "python", 25, "", False, "x = 1"),
    ]


def test_a_cells_line_is_the_line_of_the_file_that_holds_its_first_words(parse):
    lines = NOTEBOOK.split("\n")
    for cell in parse(NOTEBOOK).runnable:
        assert cell.source.split("\n")[0] in lines[cell.line - 1]


def test_the_notebook_has_one_cell_for_one_cell_and_keeps_titles(parse):
    cells = to_notebook(parse(NOTEBOOK)).cells
    assert [cell.cell_type for cell in cells] == ["markdown", "code", "code", "code", "code"]
    assert cells[2].source == "%%sql\nSELECT 1\n  AS one"
    assert cells[1].metadata[DATABRICKS_METADATA] == {"title": "Read the <table>", "showTitle": True}
    assert cells[1].metadata["workbench"] == {"number": 2, "line": 10, "language": "python"}


def test_only_cells_with_code_are_run(parse):
    assert [cell.number for cell in parse(NOTEBOOK).runnable] == [2, 3, 5]


def test_windows_line_ends_and_a_byte_order_mark_are_read_alike(tmp_path):
    path = tmp_path / "notebook.py"
    path.write_bytes(b"\xef\xbb\xbf" + NOTEBOOK.replace("\n", "\r\n").encode())
    assert [cell.number for cell in read_notebook(path).runnable] == [2, 3, 5]


JUPYTER = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"application/vnd.databricks.v1+notebook": {"widgets": {}}},
    "cells": [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["# Tracks\n", "of *devices*"]},
        {
            "cell_type": "code",
            "id": "b",
            "metadata": {DATABRICKS_METADATA: {"title": "Read", "showTitle": True}},
            "execution_count": 1,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": ["3\n"]}],
            "source": ['dbutils.widgets.text("topic", "")\n', "rows = 3"],
        },
        {
            "cell_type": "code",
            "id": "c",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": "%sql\nSELECT 1",
        },
    ],
}


@pytest.fixture
def jupyter(tmp_path):
    path = tmp_path / "notebook.ipynb"
    path.write_text(json.dumps(JUPYTER))
    return path


def test_a_jupyter_notebook_has_the_same_cells(jupyter):
    source = read_notebook(jupyter)
    assert [(c.number, c.language, c.title, c.source) for c in source.cells] == [
        (1, "md", "", "# Tracks\nof *devices*"),
        (2, "python", "Read", 'dbutils.widgets.text("topic", "")\nrows = 3'),
        (3, "sql", "", "SELECT 1"),
    ]
    assert source.path == jupyter
    assert widget_names(source) == {"topic"}


def test_a_notebook_is_named_without_its_suffix(jupyter):
    assert find_notebook("./notebook", jupyter.parent) == jupyter
    (jupyter.parent / "notebook.py").write_text(NOTEBOOK)
    assert find_notebook("./notebook", jupyter.parent).suffix == ".py"


@pytest.mark.parametrize("content", [b"", b"[1]", b"{}", b'{"nbformat": 4, "cells": [{}]}', b"\xff"])
def test_a_file_that_is_no_jupyter_notebook_is_refused(jupyter, content):
    jupyter.write_bytes(content)
    with pytest.raises(NotebookSourceError, match=r"notebook\.ipynb is not a Jupyter notebook") as raised:
        read_notebook(jupyter)
    assert raised.value.fields == {"notebook": str(jupyter), "reason": "no_notebook"}


@pytest.mark.parametrize("text", ["", "print(1)\n", "-- Databricks notebook source\nSELECT 1\n"])
def test_a_file_without_the_first_line_is_refused_by_name(parse, text):
    with pytest.raises(NotebookSourceError, match=r"notebook\.py ") as raised:
        parse(text)
    assert raised.value.fields["reason"] == "no_notebook"


@pytest.mark.parametrize("magic", ["scala", "r", "tensorboard"])
def test_an_unsupported_cell_is_named_with_file_cell_and_line(parse, magic):
    text = f"# Databricks notebook source\nx = 1\n# COMMAND ----------\n# MAGIC %{magic} y\n"
    with pytest.raises(NotebookSourceError, match=r"notebook\.py, cell 2, line 4: ") as raised:
        parse(text)
    fields = {name: raised.value.fields[name] for name in ("line", "language", "reason")}
    assert fields == {"line": 4, "language": magic, "reason": "language"}
    assert raised.value.fields["location"].endswith("notebook.py, cell 2")


COMMANDS = """\
# Databricks notebook source
# MAGIC %run ./other $name="value"

# COMMAND ----------

# MAGIC %sh -e
# MAGIC ls -l
# MAGIC false

# COMMAND ----------

# MAGIC %sh ls

# COMMAND ----------

# MAGIC %fs ls /mnt/x

# COMMAND ----------

# MAGIC %pip install a
# MAGIC print("installed")
"""


def test_commands_keep_their_magic_and_the_shell_its_flag(parse):
    cells = parse(COMMANDS).cells
    assert [(cell.language, cell.line, cell.arguments, cell.code) for cell in cells] == [
        ("run", 2, "", '%run ./other $name="value"'),
        ("sh", 7, "-e", "%%sh -e\nls -l\nfalse"),
        ("sh", 12, "", "%%sh\nls"),
        ("fs", 16, "", "%fs ls /mnt/x"),
        ("pip", 20, "", '%pip install a\nprint("installed")'),
    ]


@pytest.mark.parametrize("magic", ["run ./other", "fs ls /"])
def test_a_command_with_more_below_it_is_refused_with_its_cell(parse, magic):
    name = magic.split()[0]
    with pytest.raises(NotebookSourceError, match=r"cell 1, line 2: .*; try") as raised:
        parse(f"# Databricks notebook source\n# MAGIC %{magic}\n# MAGIC x = 1\n")
    assert (raised.value.fields["language"], raised.value.fields["reason"]) == (name, "not_alone")


def test_python_below_a_magic_is_refused_with_its_line(parse):
    with pytest.raises(NotebookSourceError, match="cell 1, line 3: ") as raised:
        parse("# Databricks notebook source\n# MAGIC %md text\nx = 1\n")
    assert (raised.value.fields["line"], raised.value.fields["reason"]) == (3, "no_magic")


def test_a_missing_notebook_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file") as raised:
        read_notebook(tmp_path / "none.py")
    assert raised.value.fields == {"notebook": str(tmp_path / "none.py"), "reason": "unreadable"}


WIDGETS = """\
# Databricks notebook source
dbutils.widgets.text("topic", "gps")
dbutils.widgets.dropdown(name="mode", defaultValue="a", choices=["a"])
"""


def test_widgets_are_found_in_the_text(parse):
    assert widget_names(parse(WIDGETS)) == {"topic", "mode"}


def test_a_parameter_that_no_widget_takes_is_refused_with_those_that_exist(parse):
    check_parameters(parse(WIDGETS), {"topic": "x"})
    with pytest.raises(ConfigError, match="; try: use -p topic=x") as raised:
        check_parameters(parse(WIDGETS), {"topics": "x"})
    assert raised.value.fields == {
        "notebook": "notebook.py",
        "widget": "topics",
        "allowed": ("mode", "topic"),
        "location": "",
    }


def test_a_computed_widget_name_makes_every_parameter_possible(parse):
    source = parse(WIDGETS + "dbutils.widgets.text(prefix + 'x', '')\n")
    assert widget_names(source) is None
    check_parameters(source, {"anything": "x"})


CALL = """\
# Databricks notebook source
import topiclake as tl
settings = tl.notebook_settings(dbutils, "topic", "mode", pipeline="gps", live=["no", "yes"])
"""


def test_the_parameters_of_notebook_settings_are_found_in_the_text(parse):
    assert widget_names(parse(CALL)) == {"env", "topic", "mode", "live"}
    imported = CALL.replace("import topiclake as tl", "from topiclake import notebook_settings as load")
    imported = imported.replace("tl.notebook_settings", "load")
    assert widget_names(parse(imported)) == {"env", "topic", "mode", "live"}
    with pytest.raises(ConfigError, match="; try: use -p topic=x") as raised:
        check_parameters(parse(CALL), {"topci": "x"})
    assert raised.value.fields["allowed"] == ("env", "live", "mode", "topic")


@pytest.mark.parametrize("pipeline", ['pipeline=["gps"], ', ""])
def test_where_the_pipeline_is_a_parameter_each_key_of_a_pipeline_is(parse, pipeline):
    source = parse(CALL.replace('pipeline="gps", ', pipeline))
    check_parameters(source, {"pipeline": "orders", "tombstones": "skip", "storage": "/x", "live": "yes"})
    with pytest.raises(ConfigError, match="; try: use -p tombstones=skip"):
        check_parameters(source, {"tombstone": "skip"})


@pytest.mark.parametrize(
    ("literal", "computed"),
    [
        ('"topic"', "topic"),
        ('"topic"', "*keys"),
        ('pipeline="gps"', "pipeline=name"),
        ('live=["no", "yes"]', "**own"),
    ],
)
def test_a_computed_parameter_of_notebook_settings_makes_every_parameter_possible(parse, literal, computed):
    assert widget_names(parse(CALL.replace(literal, computed))) is None
