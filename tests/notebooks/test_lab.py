"""JupyterLab as a user has it: a real server, a real browser, a real kernel with Spark."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import requests
from playwright.sync_api import Page, expect, sync_playwright

PROJECT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
FIRST_LINE = "# Databricks notebook source"
MARKER = "\n\n# COMMAND ----------\n\n"
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/lab\?token=(\w+)")
#: Spark starts in the first cell that needs it.
SPARK_MILLISECONDS = 90_000

STORY = MARKER.join(
    [
        f"{FIRST_LINE}\n# MAGIC %md # A story",
        'dbutils.widgets.text("rows", "3")',
        "# MAGIC %run ./included",
        "# DBTITLE 1,Rows\n# MAGIC %sql\n# MAGIC SELECT id * 7 AS sevenfold FROM range(:rows)",
        "rate = spark.readStream.format('rate').load()\n"
        "query = rate.writeStream.format('memory').queryName('seen').start()",
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

    def ask(self, verb: str, path: str, **named) -> requests.Response:
        port, token = self.address.groups()
        named.setdefault("headers", {"Authorization": f"token {token}"})
        return requests.request(verb, f"http://127.0.0.1:{port}/api/{path}", timeout=60, **named)

    def end(self, number: signal.Signals) -> None:
        """Send a signal, and see that everything has ended a little later."""
        everything = [psutil.Process(self.process.pid).children(recursive=True)]
        self.process.send_signal(number)
        assert self.process.wait(40) == 0, "".join(self.said)
        _, alive = psutil.wait_procs(everything[0], timeout=5)
        assert alive == []


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


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
        if lab.process.poll() is None:
            lab.process.terminate()
            lab.process.wait(60)


@pytest.fixture
def page():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1280, "height": 1000})
        browser.close()


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

    def add(self, code: str) -> None:
        """Write a new cell below the selected one, and run it."""
        self.panel.get_by_role("button", name="Insert a cell below").click()
        self.page.keyboard.press("Enter")
        self.page.keyboard.insert_text(code)
        self.page.keyboard.press("Control+Enter")


def test_a_notebook_is_opened_run_interrupted_and_saved(start, project, page) -> None:
    lab = start("-p", "rows=2")
    page.goto(lab.address[0])
    notebook = Notebook(page)
    page.locator(".jp-DirListing-item", has_text="story.py").dblclick()
    expect(notebook.cell(1)).to_contain_text("A story")
    expect(page).to_have_title(re.compile("story.*Topiclake"))

    notebook.menu("Run", "Run All Cells")
    expect(notebook.output(6)).to_contain_text("included: yes app: story", timeout=SPARK_MILLISECONDS)
    expect(notebook.output(4).locator("td")).to_have_text(["0", "7"])

    notebook.add("spark.range(10 ** 13).selectExpr('sum(hash(id))').collect()")
    expect(notebook.cell(7)).to_contain_text("[*]")
    notebook.panel.get_by_role("button", name="Interrupt the kernel").click()
    expect(notebook.output(7)).to_contain_text("the cell was interrupted")
    notebook.add("[q.name for q in spark.streams.active], sql('SELECT 6 * 7 AS n').first().n")
    expect(notebook.output(8)).to_contain_text("(['seen'], 42)")
    notebook.add("for q in spark.streams.active: q.stop()\nspark.streams.active")
    expect(notebook.output(9)).to_contain_text("[]")

    page.keyboard.press("Control+s")
    added = (
        "spark.range(10 ** 13).selectExpr('sum(hash(id))').collect()",
        "[q.name for q in spark.streams.active], sql('SELECT 6 * 7 AS n').first().n",
        "for q in spark.streams.active: q.stop()\nspark.streams.active",
    )
    story = project / "notebooks" / "story.py"
    wait_until(lambda: story.read_text() == STORY + MARKER[1:] + MARKER.join(added) + "\n")
    lab.end(signal.SIGINT)


def test_a_module_opens_as_text_and_what_is_no_notebook_says_so(start, page) -> None:
    lab = start()
    page.goto(lab.address[0])
    page.locator(".jp-DirListing-item", has_text="module.py").dblclick()
    expect(page.locator(".jp-FileEditor")).to_contain_text("x = 1")


def test_two_labs_run_side_by_side_and_leave_nothing_in_the_users_home(start, tmp_path) -> None:
    labs = [start(), start()]
    assert labs[0].address[1] != labs[1].address[1]
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
    for lab in labs:
        lab.end(signal.SIGTERM)
    assert not list((tmp_path / "user").glob("**/*"))
    assert not list((tmp_path / "home" / "lab").glob("server-*"))
