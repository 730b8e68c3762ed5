"""Files as JupyterLab sees them; no server, no kernel."""

import asyncio
import json
import os
import stat
from pathlib import Path

import nbformat
import pytest
from tornado.web import HTTPError
from traitlets.config import Config

from workbench.lab.contents import Contents
from workbench.notebook.conversion import DATABRICKS_METADATA
from workbench.notebook.source import FIRST_LINE

PROJECT = Path(__file__).parents[3]
NOTEBOOKS = sorted((PROJECT / "notebooks").rglob("*.py"))
MARKER = "\n\n# COMMAND ----------\n\n"
TWO_CELLS = f"{FIRST_LINE}\n# MAGIC %md # A  \n# MAGIC text{MARKER}# DBTITLE 1,One\nx = 1{MARKER}x\n"
#: What the runner refuses, and an editor must not.
FOREIGN = f"{FIRST_LINE}\n# MAGIC %scala  \n# MAGIC val x = 1{MARKER}# MAGIC %r{MARKER}# MAGIC %md\nloose\n"

new = nbformat.v4


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "notebooks").mkdir()
    config = Config({"Checkpoints": {"root_dir": str(tmp_path / "checkpoints")}})
    folders = {"root_dir": str(tmp_path / "notebooks"), "outputs_folder": str(tmp_path / "outputs")}
    return Lab(Contents(**folders, config=config), tmp_path / "notebooks")


class Lab:
    """JupyterLab's side of the contents."""

    def __init__(self, contents, folder):
        self.contents, self.folder = contents, folder

    def __getattr__(self, verb):
        return lambda *args, **named: asyncio.run(getattr(self.contents, verb)(*args, **named))

    def write(self, name, content):
        (self.folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    def open(self, name):
        """Through JSON, as a browser has it."""
        model = self.get(name)
        assert model["type"] == "notebook"
        return nbformat.from_dict(json.loads(json.dumps(model["content"])))

    def save_as(self, name, notebook):
        return self.save({"type": "notebook", "format": "json", "content": notebook}, name)

    def edit(self, name, change):
        notebook = self.open(name)
        change(notebook)
        return self.save_as(name, notebook)

    def text(self, name):
        return (self.folder / name).read_bytes().decode()


def show(cell, text):
    """Give a cell an output, as running it does."""
    page = new.new_output("display_data", {"text/html": f"<b>{text}</b>"})
    cell.outputs, cell.execution_count, cell.metadata["trusted"] = [page], 1, True


def shown(notebook):
    return [[out.data["text/html"] for out in cell.get("outputs", [])] for cell in notebook.cells]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_of_the_project_that_is_opened_and_saved_has_the_same_bytes(lab, path):
    lab.write("a.py", path.read_bytes())
    os.utime(lab.folder / "a.py", (1, 1))
    lab.edit("a.py", lambda notebook: None)
    assert (lab.folder / "a.py").read_bytes() == path.read_bytes()
    assert (lab.folder / "a.py").stat().st_mtime == 1


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_cells_that_cannot_run_here_are_shown_and_keep_their_bytes(lab, ending):
    lab.write("a.py", FOREIGN.replace("\n", ending))
    assert [cell.source for cell in lab.open("a.py").cells] == [
        "%scala  \nval x = 1",
        "%r",
        "# MAGIC %md\nloose",
    ]
    lab.edit("a.py", lambda notebook: None)
    assert lab.text("a.py") == FOREIGN.replace("\n", ending)
    lab.edit("a.py", lambda notebook: notebook.cells[0].update(source="%scala\nval y = 2"))
    assert "# MAGIC %scala\n# MAGIC val y = 2\n" in lab.text("a.py").replace("\r\n", "\n")


def test_edits_are_written_and_the_other_cells_keep_their_bytes(lab):
    def change(notebook):
        notebook.cells[2].source = "y"
        notebook.cells[1].metadata[DATABRICKS_METADATA]["title"] = "Two"
        notebook.cells.append(new.new_markdown_cell("new"))
        notebook.cells.append(new.new_code_cell("%%sql\nSELECT 1"))
        notebook.cells.append(new.new_code_cell("%%time\nx"))

    lab.write("a.py", TWO_CELLS)
    lab.edit("a.py", change)
    assert lab.text("a.py") == MARKER.join(
        [
            f"{FIRST_LINE}\n# MAGIC %md # A  \n# MAGIC text",
            "# DBTITLE 1,Two\nx = 1",
            "y",
            "# MAGIC %md\n# MAGIC new",
            "# MAGIC %sql\n# MAGIC SELECT 1",
            "# MAGIC %%time\n# MAGIC x\n",
        ]
    )
    assert [cell.source for cell in lab.open("a.py").cells][-3:] == ["new", "%%sql\nSELECT 1", "%%time\nx"]


def test_a_cell_can_be_deleted(lab):
    lab.write("a.py", TWO_CELLS)
    lab.edit("a.py", lambda notebook: notebook.cells.pop(1))
    assert lab.text("a.py") == TWO_CELLS.replace(f"{MARKER}# DBTITLE 1,One\nx = 1", "")


def test_a_file_keeps_its_mode_and_a_link_goes_on_leading_to_it(lab):
    lab.write("a.py", TWO_CELLS)
    (lab.folder / "a.py").chmod(0o754)
    (lab.folder / "link.py").symlink_to("a.py")
    lab.edit("link.py", lambda notebook: notebook.cells.pop())
    assert (lab.folder / "link.py").is_symlink()
    assert stat.S_IMODE((lab.folder / "a.py").stat().st_mode) == 0o754
    assert not lab.text("a.py").endswith("x\n")
    assert sorted(os.listdir(lab.folder)) == ["a.py", "link.py"]


def test_a_change_on_disk_is_seen_by_hash_and_time(lab):
    lab.write("a.py", TWO_CELLS)
    before = lab.get("a.py", content=False, require_hash=True)
    assert before["hash"] == lab.get("a.py", require_hash=True)["hash"]
    lab.write("a.py", TWO_CELLS + "\n")
    os.utime(lab.folder / "a.py", (9e9, 9e9))
    after = lab.get("a.py", content=False, require_hash=True)
    assert after["hash"] != before["hash"]
    assert after["last_modified"] > before["last_modified"]


def test_outputs_come_back_and_stay_out_of_the_file(lab):
    lab.write("a.py", TWO_CELLS)
    lab.edit("a.py", lambda notebook: show(notebook.cells[2], "seen"))
    assert lab.text("a.py") == TWO_CELLS
    again = lab.open("a.py")
    assert shown(again) == [[], [], ["<b>seen</b>"]]
    assert [cell.metadata.get("trusted") for cell in again.cells[1:]] == [True, True]
    assert stat.S_IMODE((lab.folder.parent / "outputs" / "a.py.ipynb").stat().st_mode) == 0o600


def test_outputs_belong_to_a_cells_text(lab):
    lab.write("a.py", TWO_CELLS)
    lab.edit("a.py", lambda notebook: [show(cell, cell.source) for cell in notebook.cells[1:]])
    lab.write("a.py", f"{FIRST_LINE}\nnew{MARKER}x{MARKER}x = 2\n")
    assert shown(lab.open("a.py")) == [[], ["<b>x</b>"], []]


def test_html_that_was_not_made_here_is_not_trusted(lab):
    lab.write("a.py", TWO_CELLS)
    kept = lab.folder.parent / "outputs" / "a.py.ipynb"
    lab.edit("a.py", lambda notebook: show(notebook.cells[2], "seen"))
    kept.write_text(kept.read_text().replace("seen", "<script>alert()</script>"))
    assert [cell.metadata.get("trusted") for cell in lab.open("a.py").cells[1:]] == [False, False]


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"nbformat": 4, "cells": [{}]}'])
def test_damaged_outputs_are_as_good_as_none(lab, damage):
    lab.write("a.py", TWO_CELLS)
    lab.edit("a.py", lambda notebook: show(notebook.cells[2], "seen"))
    (lab.folder.parent / "outputs" / "a.py.ipynb").write_text(damage)
    assert shown(lab.open("a.py")) == [[], [], []]


def test_outputs_follow_a_renamed_notebook_and_go_with_a_deleted_one(lab, monkeypatch):
    monkeypatch.setattr(lab.contents, "delete_to_trash", False)
    (lab.folder / "sub").mkdir()
    lab.write("sub/a.py", TWO_CELLS)
    lab.edit("sub/a.py", lambda notebook: show(notebook.cells[2], "seen"))
    lab.rename("sub", "other")
    lab.rename("other/a.py", "b.py")
    assert shown(lab.open("b.py"))[2] == ["<b>seen</b>"]
    lab.delete("b.py")
    assert not list((lab.folder.parent / "outputs").rglob("*.ipynb"))


def test_a_plain_module_is_a_text_file(lab):
    lab.write("a.py", TWO_CELLS)
    lab.write("module.py", "x = 1\n")
    assert {entry["name"]: entry["type"] for entry in lab.get("")["content"]} == {
        "a.py": "notebook",
        "module.py": "file",
    }
    assert lab.get("module.py")["content"] == "x = 1\n"
    assert lab.get("a.py", type="file", format="text")["content"] == TWO_CELLS


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"x = 1\n", "its first line is not '# Databricks notebook source'"),
        (f"{FIRST_LINE}\n".encode() + b"\xff\n", "is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_notebook_is_told_in_a_sentence(lab, content, said):
    lab.write("a.py", content)
    with pytest.raises(HTTPError, match=said) as error:
        lab.get("a.py", type="notebook")
    assert error.value.status_code == 400


def test_a_new_notebook_is_in_source_format(lab):
    assert lab.new_untitled("", "notebook")["path"] == "Untitled.py"
    assert lab.new_untitled("", "notebook")["path"] == "Untitled1.py"
    assert lab.text("Untitled.py") == f"{FIRST_LINE}\n"
    assert lab.new_untitled("", "notebook", ".ipynb")["path"] == "Untitled.ipynb"
    assert lab.new_untitled("", "file", ".py")["type"] == "file"


def test_a_copy_has_the_same_bytes(lab):
    lab.write("a.py", TWO_CELLS.replace("\n", "\r\n"))
    assert lab.copy("a.py")["name"] == "a-Copy1.py"
    assert lab.text("a-Copy1.py") == lab.text("a.py")


def test_a_notebook_is_converted_when_its_ending_changes(lab):
    lab.write("a.py", TWO_CELLS)
    lab.rename("a.py", "b.ipynb")
    assert [cell.source for cell in nbformat.read(lab.folder / "b.ipynb", 4).cells][1:] == ["x = 1", "x"]
    lab.rename("b.ipynb", "c.py")
    assert lab.text("c.py") == TWO_CELLS
    assert os.listdir(lab.folder) == ["c.py"]


def test_a_checkpoint_brings_back_what_was_saved_and_is_not_beside_the_notebook(lab):
    (lab.folder / "sub").mkdir()
    lab.write("sub/a.py", TWO_CELLS)
    checkpoint = lab.create_checkpoint("sub/a.py")["id"]
    lab.edit("sub/a.py", lambda notebook: notebook.cells.clear())
    assert lab.text("sub/a.py") == f"{FIRST_LINE}\n"
    lab.restore_checkpoint(checkpoint, "sub/a.py")
    assert lab.text("sub/a.py") == TWO_CELLS
    assert os.listdir(lab.folder / "sub") == ["a.py"]
