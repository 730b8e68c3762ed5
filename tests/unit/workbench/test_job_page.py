"""The page with jobs and runs: what it shows, and to whom."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from workbench.jobs.bundle_model import Job
from workbench.jobs.history import History
from workbench.jobs.owners import own_record
from workbench.jobs.page import JobsPage
from workbench.jobs.run_records import NewRun
from workbench.jobs.store import Store

TASKS = [{"task_key": "a", "notebook_task": {"notebook_path": "/n.py"}}]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[JobsPage]:
    store = Store(tmp_path / "jobs.db")
    history = History(store)
    saved = tmp_path / "runs" / "n.html"
    saved.parent.mkdir()
    saved.write_text("<p>the notebook</p>")
    (tmp_path / "secret.html").write_text("secret")
    job = Job.model_validate({"tasks": TASKS, "description": "<b>bold</b>"})
    run = store.begin(NewRun("<j>", json.dumps({"tasks": TASKS})))
    for number, path in ((1, saved), (2, tmp_path / "secret.html")):
        history.begin_attempt(run.id, "a", number, own_record())
        history.end_attempt(run.id, "a", number, state="SUCCESS", page=str(path))
    store.end(run.id, "SUCCESS", '"<quoted>')
    made = JobsPage(history, lambda: {"j": job}, saved.parent)
    yield made
    made.close()


def test_with_its_token_it_shows_jobs_runs_and_notebooks(page: JobsPage) -> None:
    session = requests.Session()
    shown = session.get(page.url, timeout=120)
    assert shown.status_code == 200
    assert "token" not in shown.url
    assert re.search(r"<td>SUCCESS|>SUCCESS</span></td><td>\d\.\d s</td>", shown.text)
    assert "&lt;j&gt;" in shown.text
    assert "<b>bold" not in shown.text
    assert "<quoted>" not in shown.text
    notebook = session.get(f"{shown.url}1/a/1", timeout=120)
    assert notebook.text == "<p>the notebook</p>"
    assert notebook.headers["Content-Security-Policy"] == "sandbox allow-scripts"


@pytest.mark.parametrize(
    "path", ["1/a/2", "1/a/3", "1/b/1", "x/a/1", "9/a/1", "etc/passwd", "../secret.html"]
)
def test_nothing_but_saved_notebooks_is_served(page: JobsPage, path: str) -> None:
    session = requests.Session()
    root = session.get(page.url, timeout=120).url
    assert session.get(root + path, timeout=120).status_code == 404


@pytest.mark.parametrize("given", ["", "?token=", "?token=wrong", "?token=%C3%A4"])
def test_without_its_token_it_shows_nothing(page: JobsPage, given: str) -> None:
    root = page.url.split("?")[0]
    for path in ("", "1/a/1"):
        answer = requests.get(root + path + given, timeout=120, headers={"Cookie": "workbench_jobs=wrong"})
        assert answer.status_code == 401
        assert "notebook</p>" not in answer.text


def test_another_name_for_this_machine_is_refused(page: JobsPage) -> None:
    assert requests.get(page.url, timeout=120, headers={"Host": "evil.example"}).status_code == 403


def test_it_listens_on_loopback_only(page: JobsPage) -> None:
    assert page._server.server_address[0] == "127.0.0.1"
