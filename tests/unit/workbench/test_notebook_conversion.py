import random
from datetime import datetime, timezone
from pathlib import Path

import nbformat
import pytest

from topiclake.errors import TopiclakeError
from workbench.notebook.conversion import DATABRICKS_METADATA, to_notebook, to_source
from workbench.notebook.files import read_notebook
from workbench.notebook.source import FIRST_LINE
from workbench.runner.report import RunFacts, save_run

PROJECT = Path(__file__).parents[3]
NOTEBOOKS = sorted((PROJECT / "notebooks").rglob("*.py"))
MARKER = "\n\n# COMMAND ----------\n\n"

ODD_FILES = {
    "nothing but the first line": FIRST_LINE,
    "the first line and its end": f"{FIRST_LINE}\n",
    "blanks behind the first line": f"{FIRST_LINE}  \nx = 1\n",
    "no newline at the end": f"{FIRST_LINE}\nx = 1{MARKER}y = 2",
    "many newlines at the end": f"{FIRST_LINE}\nx = 1\n\n\n\n",
    "blank lines at odd places": f"{FIRST_LINE}\n\n\n\nx = 1\n\n\n\n\n# COMMAND ----------\ny = 2\n",
    "markers close by": f"{FIRST_LINE}\n# COMMAND ----------\nx = 1\n# COMMAND ----------\n",
    "lines of blanks": f"{FIRST_LINE}\n  \nx = 1\n\t{MARKER}  \n",
    "a marker at the end": f"{FIRST_LINE}\nx = 1\n\n# COMMAND ----------",
    "blanks behind a marker": f"{FIRST_LINE}\nx = 1\n\n# COMMAND ----------  \t\n\ny = 1\n",
    "empty cells": f"{FIRST_LINE}\n{MARKER}{MARKER}{MARKER}",
    "an empty first cell": f"{FIRST_LINE}\n\n# COMMAND ----------\n\nx = 1\n",
    "no cell but a marker": f"{FIRST_LINE}\n# COMMAND ----------\n",
    "a byte order mark": f"\ufeff{FIRST_LINE}\nx = 1\n",
    "Windows": f"{FIRST_LINE}\nx = 1{MARKER}# MAGIC %md\n# MAGIC\n# MAGIC b\n".replace("\n", "\r\n"),
    "Windows with a byte order mark": f"\ufeff{FIRST_LINE}\r\nx = 1\r\n",
    "Windows in one line alone": f"{FIRST_LINE}\nx = 1\r\ny = 2{MARKER}# MAGIC %sql\r\n# MAGIC SELECT 1\n",
    "an old Mac's line end in a string": f"{FIRST_LINE}\nx = '\r'\n",
    "titles": f"{FIRST_LINE}\n# DBTITLE 1,A  b \n\nx = 1{MARKER}# DBTITLE 0,hidden\n# MAGIC %sql\n# MAGIC x",
    "odd titles": f"{FIRST_LINE}\n# DBTITLE 2,two\nx{MARKER}# DBTITLE 1,\ny{MARKER}# DBTITLE 1,alone\n",
    "text on the magic's line": f"{FIRST_LINE}\n# MAGIC %md # Title\n# MAGIC text\n",
    "blanks behind a magic": f"{FIRST_LINE}\n# MAGIC %md   \n# MAGIC text  \n",
    "MAGIC lines without text": f"{FIRST_LINE}\n# MAGIC %md\n# MAGIC\n# MAGIC \n# MAGIC a\n# MAGIC\n",
    "a blank line among MAGIC lines": f"{FIRST_LINE}\n# MAGIC %md\n# MAGIC a\n\n# MAGIC b\n",
    "a magic without text": f"{FIRST_LINE}\n# MAGIC %sql{MARKER}# MAGIC %md{MARKER}# MAGIC %sh -e\n",
    "the language itself": f"{FIRST_LINE}\n# MAGIC %python\n# MAGIC x = 1{MARKER}# MAGIC %python x = 2\n",
    "a sandbox": f"{FIRST_LINE}\n# MAGIC %md-sandbox\n# MAGIC <b>a</b>\n",
    "commands": f'{FIRST_LINE}\n# MAGIC %run  ./other $a="b" {MARKER}# MAGIC %fs ls /\n',
    "a shell": f"{FIRST_LINE}\n# MAGIC %sh ls -l{MARKER}# MAGIC %sh -e\n# MAGIC ls{MARKER}# MAGIC %sh -e ls",
    "packages": f"{FIRST_LINE}\n# MAGIC %pip install a\n# MAGIC\n# MAGIC print(1)\n",
    "a magic without MAGIC": f"{FIRST_LINE}\n%pip install x{MARKER}%%sql\nSELECT 1\n",
    "other writing": f'{FIRST_LINE}\nx = "größer € 日本 \U0001f600 \x0c \x85 \u2028"{MARKER}# MAGIC %md é\n',
    "markers that are none": f"{FIRST_LINE}\n# COMMAND --------\nx = '''\n # COMMAND ----------\n'''\n",
}


@pytest.fixture
def there_and_back(parse):
    """To Jupyter's format, through its JSON, and back; with what is done to the notebook in between."""

    def made(content, edit=lambda notebook: None):
        notebook = nbformat.reads(nbformat.writes(to_notebook(parse(content))), as_version=4)
        edit(notebook)
        nbformat.validate(notebook)
        return to_source(notebook)

    return made


def kept(notebook):
    return [cell.metadata.workbench.get("lines") for cell in notebook.cells]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_projects_notebooks_come_back_with_the_same_bytes(there_and_back, path):
    assert there_and_back(path.read_bytes()) == path.read_bytes()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_files_as_databricks_writes_them_need_nothing_in_the_metadata(path):
    assert not any(kept(to_notebook(read_notebook(path))))


@pytest.mark.parametrize("name", ODD_FILES)
def test_odd_files_come_back_with_the_same_bytes(there_and_back, name):
    content = ODD_FILES[name].encode()
    assert there_and_back(content) == content


PIECES = [
    *("x = 1", "# MAGIC %md", "# MAGIC %md  a", "# MAGIC", "# MAGIC ", "# MAGIC b", "", " ", "\t", "é"),
    *("# COMMAND ----------", "# COMMAND ---------- ", "# DBTITLE 1,t", "# DBTITLE 0, t ", "# MAGIC %sql"),
    *("# MAGIC %sh -e", "# MAGIC %python", "# MAGIC %pip list", "%pip list", "%%sql", "SELECT 1", "x\r"),
]


def test_a_thousand_random_files_come_back_with_the_same_bytes_or_are_refused(there_and_back):
    chance, done = random.Random(20261121), 0
    for _ in range(1000):
        lines = [FIRST_LINE, *chance.choices(PIECES, k=chance.randrange(9))]
        content = chance.choice(["\n", "\n", "\r\n"]).join(lines).encode()
        try:
            back = there_and_back(content)
        except TopiclakeError:
            continue
        assert back == content
        done += 1
    assert done > 300


def test_an_executed_notebook_comes_back_too(parse, tmp_path):
    content = ODD_FILES["Windows with a byte order mark"].encode()
    facts = RunFacts("notebook.py", {"a": "b"}, datetime.now(timezone.utc), 1.0, "succeeded")
    executed, _ = save_run(to_notebook(parse(content)), facts, tmp_path)
    assert to_source(nbformat.read(executed, as_version=4)) == content


EDITED = f"""\
{FIRST_LINE}
# MAGIC %md # Old

# COMMAND ----------
x = 1

# COMMAND ----------

# DBTITLE 1,Rows
# MAGIC %sql   SELECT 1
""".encode()


def test_a_changed_cell_is_written_anew_and_the_others_keep_their_bytes(there_and_back):
    def edit(notebook):
        notebook.cells[2].source = "%%sql\nSELECT 2\n\nFROM t"

    changed = "# DBTITLE 1,Rows\n# MAGIC %sql\n# MAGIC SELECT 2\n# MAGIC\n# MAGIC FROM t\n"
    assert there_and_back(EDITED, edit).decode() == EDITED.decode().partition("# DBTITLE")[0] + changed


@pytest.mark.parametrize(
    ("metadata", "title"), [({"title": "New", "showTitle": False}, "# DBTITLE 0,New\n"), ({}, "")]
)
def test_a_changed_title_is_written(there_and_back, metadata, title):
    def edit(notebook):
        notebook.cells[2].metadata[DATABRICKS_METADATA] = metadata

    assert there_and_back(EDITED, edit).decode().endswith(f"\n\n{title}# MAGIC %sql\n# MAGIC SELECT 1\n")


def test_a_notebook_that_was_made_in_jupyter_becomes_source_format(tmp_path):
    new = nbformat.v4
    notebook = new.new_notebook(
        cells=[
            new.new_markdown_cell("# Title\n\nwörds"),
            new.new_code_cell("x = 1\n\ny = 2"),
            new.new_code_cell("%%sql\nSELECT 1"),
            new.new_code_cell("%%sh -e\nls"),
            new.new_code_cell('%run ./other $a="b"'),
            new.new_code_cell(""),
            new.new_raw_cell("raw"),
        ]
    )
    path = tmp_path / "made.py"
    path.write_bytes(to_source(notebook))
    assert path.read_text() == MARKER.join(
        [
            f"{FIRST_LINE}\n# MAGIC %md\n# MAGIC # Title\n# MAGIC\n# MAGIC wörds",
            "x = 1\n\ny = 2",
            "# MAGIC %sql\n# MAGIC SELECT 1",
            "# MAGIC %sh -e\n# MAGIC ls",
            '# MAGIC %run ./other $a="b"',
            "",
            "# MAGIC %md\n# MAGIC raw\n",
        ]
    )
    cells = read_notebook(path).cells
    assert [cell.language for cell in cells] == ["md", "python", "sql", "sh", "run", "python", "md"]
    assert [cell.code for cell in cells[1:5]] == [cell.source for cell in notebook.cells[1:5]]


def test_cells_that_were_moved_removed_and_added_stay_a_notebook(there_and_back, parse):
    def edit(notebook):
        first, _, last = notebook.cells
        notebook.cells = [last, nbformat.v4.new_code_cell("new"), first]

    cells = parse(there_and_back(EDITED, edit)).cells
    assert [(cell.language, cell.source) for cell in cells] == [
        ("sql", "SELECT 1"),
        ("python", "new"),
        ("md", "# Old"),
    ]


def test_a_notebook_without_cells_is_the_first_line():
    assert to_source(nbformat.v4.new_notebook()) == f"{FIRST_LINE}\n".encode()
