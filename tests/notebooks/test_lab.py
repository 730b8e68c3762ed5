"""JupyterLab as a user has it: a real server, a real browser, a real kernel with Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import requests
from playwright.sync_api import Page, expect

from tests.support.waiting import has_ended, wait_until

PROJECT = Path(__file__).parents[2]
FIRST_LINE = "# Databricks notebook source"
MARKER = "\n\n# COMMAND ----------\n\n"
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/lab\?token=(\w+)")
#: Spark starts in the first cell that needs it.
SPARK_MILLISECONDS = 240_000

STORY = MARKER.join(
    [
        f"{FIRST_LINE}\n# MAGIC %md # A story",
        'dbutils.widgets.text("rows", "3")\n'
        "import signal\n"
        "spark.range(1).count(), signal.getsignal(signal.SIGINT) is signal.default_int_handler",
        "# MAGIC %run ./included",
        "# DBTITLE 1,Rows\n# MAGIC %sql\n# MAGIC SELECT id * 7 AS sevenfold FROM range(:rows)",
        "rate = spark.readStream.format('rate').option('rowsPerSecond', 5).load()\n"
        "display(rate, streamName='seen', processingTime='1 second')",
        'print("included:", from_included, "app:", spark.conf.get("spark.app.name"))\n',
    ]
)


@dataclass
class Lab:
    """A running `python -m workbench lab`."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def read(self) -> None:
        self.said.extend(self.process.stdout)

    @property
    def address(self) -> re.Match[str]:
        wait_until(lambda: ADDRESS.search("".join(self.said)) or self.process.poll() is not None)
        found = ADDRESS.search("".join(self.said))
        assert found, "".join(self.said)
        return found

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.address[1]}/"

    def ask(self, verb: str, path: str, **named) -> requests.Response:
        named.setdefault("headers", {"Authorization": f"token {self.address[2]}"})
        return requests.request(verb, f"{self.origin}api/{path}", timeout=120, **named)

    def end(self, number: signal.Signals) -> None:
        """Send a signal, and see that everything has ended a little later."""
        everything = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        assert self.process.wait(120) == 0, "".join(self.said)
        wait_until(lambda: all(has_ended(process.pid) for process in everything), 120)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "project" / "notebooks").mkdir(parents=True)
    (tmp_path / "project" / "jars").symlink_to(PROJECT / "jars")
    (tmp_path / "project" / "conf").symlink_to(PROJECT / "conf")
    notebooks = tmp_path / "project" / "notebooks"
    (notebooks / "story.py").write_text(STORY)
    (notebooks / "included.py").write_text(f"{FIRST_LINE}\nfrom_included = 'yes'\n")
    (notebooks / "module.py").write_text("x = 1\n")
    return tmp_path / "project"


@pytest.fixture
def start(project, tmp_path):
    started: list[Lab] = []

    def run(*options: str, home: str = "home") -> Lab:
        environment = {**os.environ, "WORKBENCH_HOME": str(tmp_path / home), "HOME": str(tmp_path / "user")}
        process = subprocess.Popen(
            [sys.executable, "-m", "workbench", "lab", "--no-browser", *options],
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lab = Lab(process)
        started.append(lab)
        threading.Thread(target=lab.read, daemon=True).start()
        return lab

    yield run
    for lab in started:
        lab.process.kill()
        lab.process.wait()


class Notebook:
    """A notebook in the browser."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.panel = page.locator(".jp-NotebookPanel")

    def cell(self, number: int):
        return self.panel.locator(f'.jp-Cell[data-windowed-list-index="{number - 1}"]')

    def output(self, number: int):
        return self.cell(number).locator(".jp-OutputArea-output")

    def menu(self, name: str, entry: str) -> None:
        self.page.get_by_role("menuitem", name=name, exact=True).click()
        self.page.get_by_role("menuitem", name=entry, exact=True).click()

    def press(self, name: str) -> None:
        self.panel.get_by_role("toolbar", name="main area toolbar").get_by_role("button", name=name).click()

    def add(self, code: str) -> None:
        """Write a new cell below the selected one, and run it."""
        self.press("Insert a cell below")
        # JupyterLab makes a cell's editor when it comes into view: keys pressed before are lost.
        editor = self.panel.locator(".jp-Cell.jp-mod-active .cm-content")
        expect(editor).to_have_text("")
        editor.click()
        expect(editor).to_be_focused()
        self.page.keyboard.insert_text(code)
        expect(editor).to_contain_text(code.splitlines()[-1])
        self.page.keyboard.press("Control+Enter")


INTERRUPTED = """\
import threading
tracker = spark.sparkContext.statusTracker()
def tell():
    while not tracker.getJobIdsForGroup('cell 6'): pass
    print('it runs')
threading.Thread(target=tell).start()
spark.range(10 ** 13).selectExpr('sum(hash(id))').collect()"""
JOBS = """\
jobs = ['RUNNING']
while jobs == ['RUNNING']:
    jobs = [tracker.getJobInfo(job).status for job in tracker.getJobIdsForGroup('cell 6')]
jobs, [query.name for query in spark.streams.active], sql('SELECT 6 * 7 AS n').first().n"""
STOP = "for query in spark.streams.active: query.stop()"


@pytest.mark.root("Debian's chromium")
def test_a_notebook_is_opened_run_interrupted_and_saved(start, project, page, tmp_path) -> None:
    lab, asked = start("-p", "rows=2"), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(lab.address[0])
    notebook = Notebook(page)
    page.locator(".jp-DirListing-item", has_text="story.py").dblclick()
    expect(notebook.cell(1)).to_contain_text("A story")
    expect(page).to_have_title("story.py - Topiclake")
    expect(page.get_by_text("Topiclake | Idle")).to_be_visible()
    assert page.locator(".jp-mod-dirty").count() == 0

    notebook.menu("Run", "Run All Cells")
    expect(notebook.output(6)).to_contain_text("included: yes app: story", timeout=SPARK_MILLISECONDS)
    expect(notebook.output(2).last).to_have_text("(1, True)")
    expect(notebook.output(4).locator("td")).to_have_text(["0", "7"])
    expect(notebook.panel).not_to_contain_text("incubator")
    line = notebook.output(5).locator("polyline").first
    expect(line).to_have_attribute("points", re.compile(r"\S+ \S+"))
    drawn = line.get_attribute("points")
    expect(line).not_to_have_attribute("points", drawn)

    notebook.add(INTERRUPTED)
    expect(notebook.output(7)).to_have_text(["it runs"])
    notebook.press("Interrupt the kernel")
    interrupted = ["it runs", "KeyboardInterrupt: the cell was interrupted"]
    expect(notebook.output(7)).to_have_text(interrupted)
    notebook.add(JOBS)
    expect(notebook.output(8)).to_have_text("(['FAILED'], ['seen'], 42)")
    kept = tmp_path / "home" / "lab" / "outputs" / "story.py.ipynb"

    def saved() -> bool:
        # The stream goes on drawing, so that the page is clean for a moment only.
        page.keyboard.press("Control+s")
        page.wait_for_timeout(500)
        return kept.is_file() and "'seen'], 42" in kept.read_text("utf-8")

    wait_until(saved)
    page.reload()
    expect(notebook.output(6)).to_contain_text("included: yes app: story")
    drawn = line.get_attribute("points")
    expect(line).not_to_have_attribute("points", drawn)

    notebook.cell(8).locator(".jp-InputPrompt").click()
    notebook.add(STOP)
    expect(notebook.output(5)).to_contain_text("stopped")
    page.keyboard.press("Control+s")
    written = STORY + MARKER[1:] + MARKER.join([INTERRUPTED, JOBS, STOP]) + "\n"
    wait_until(lambda: (project / "notebooks" / "story.py").read_text() == written)
    assert [url for url in asked if not url.startswith((lab.origin, "data:", "blob:"))] == []
    lab.end(signal.SIGINT)


@pytest.mark.root("Debian's chromium")
def test_pictures_are_drawn_after_a_reload_and_other_files_open_as_they_are(
    start, project, page, tmp_path
) -> None:
    figures = [
        "import plotly.graph_objects as go\ndisplay(go.Figure(go.Scatter(y=[1, 3, 2])))",
        "display(go.Figure(go.Bar(y=[2, 1])))",
    ]
    (project / "notebooks" / "story.py").write_text(MARKER.join([f"{FIRST_LINE}\n{figures[0]}", figures[1]]))
    (project / "notebooks" / "broken.py").write_bytes(f"{FIRST_LINE}\n\xff\n".encode("latin-1"))
    lab, asked = start(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(lab.address[0])
    notebook = Notebook(page)
    page.locator(".jp-DirListing-item", has_text="story.py").dblclick()
    expect(page.get_by_text("Topiclake | Idle")).to_be_visible()
    notebook.menu("Run", "Run All Cells")
    for number in (1, 2):
        expect(notebook.output(number).locator(".main-svg").first).to_be_visible()
    # The first one that was drawn is drawn anew: nothing may depend on what it brought along.
    notebook.cell(1).locator(".jp-InputPrompt").click()
    page.keyboard.press("Control+Enter")
    expect(notebook.cell(1).locator(".jp-InputPrompt")).to_have_text("[3]:")
    kept = tmp_path / "home" / "lab" / "outputs" / "story.py.ipynb"

    def saved_with_both_images() -> bool:
        # An image is made of a figure a while after it was drawn, perhaps while the page is saved.
        page.keyboard.press("Control+s")
        page.wait_for_timeout(500)
        return kept.is_file() and kept.read_text("utf-8").count('"image/png"') == len(figures)

    wait_until(saved_with_both_images)
    page.mouse.move(0, 0)
    page.reload()
    for number in (1, 2):
        # As an image, until the mouse comes near.
        picture = notebook.output(number).locator("img")
        expect(picture).to_be_visible()
        assert picture.evaluate("image => image.naturalWidth") > 300
        notebook.output(number).hover()
        expect(notebook.output(number).locator(".main-svg").first).to_be_visible()
    # A module is text, and a file that cannot be read is an error.
    page.locator(".jp-DirListing-item", has_text="module.py").dblclick()
    expect(page.locator(".jp-FileEditor")).to_contain_text("x = 1")
    page.locator(".jp-DirListing-item", has_text="broken.py").dblclick()
    expect(page.get_by_role("dialog")).to_contain_text("is not UTF-8 text")
    assert [url for url in asked if not url.startswith((lab.origin, "data:", "blob:"))] == []
    lab.end(signal.SIGHUP)


@pytest.mark.thorough("two servers at once")
def test_two_labs_run_side_by_side_and_leave_nothing_in_the_users_home(start, tmp_path) -> None:
    labs = [start(), start()]
    assert labs[0].address[1] != labs[1].address[1]
    refused = start("--port", labs[0].address[1])
    assert refused.process.wait(120) == 1
    wait_until(lambda: f"port {labs[0].address[1]} is taken; try:" in "".join(refused.said))
    for lab in labs:
        assert lab.ask("GET", "contents", headers={}).status_code == 403
        session = {
            "path": "story.py",
            "name": "story.py",
            "type": "notebook",
            "kernel": {"name": "topiclake"},
        }
        assert lab.ask("POST", "sessions", json=session).status_code == 201
        assert list(lab.ask("GET", "kernelspecs").json()["kernelspecs"]) == ["topiclake"]
    connections = list((tmp_path / "home" / "lab").glob("server-*/runtime/kernel-*.json"))
    assert ["curve_secretkey" in json.loads(file.read_text()) for file in connections] == [True, True]
    for lab in labs:
        lab.end(signal.SIGTERM)
    assert not list((tmp_path / "user").glob("**/*"))
    assert not list((tmp_path / "home" / "lab").glob("server-*"))
