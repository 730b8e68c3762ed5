"""The dashboard's tab of jobs and runs: what it shows, and to whom."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from workbench.dashboard.serving import dashboard_during
from workbench.host.home import Home
from workbench.jobs.background import record_scheduler
from workbench.jobs.executor import open_store
from workbench.jobs.history import History
from workbench.jobs.owners import own_record
from workbench.jobs.run_records import NewRun

TASKS = [{"task_key": "a", "notebook_task": {"notebook_path": "/n.py"}}]
BUNDLE = """\
bundle: {name: lake}
variables: {place: {default: here}}
targets: {local: {default: true}, azure: {variables: {place: there}}}
resources:
  jobs:
    z: {tasks: [{task_key: a, notebook_task: {notebook_path: n.py}}]}
    j: {description: "<b>${var.place}", tasks: [{task_key: a, notebook_task: {notebook_path: n.py}}]}
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a run of two attempts; the second one names a file outside of the runs."""
    home = Home(tmp_path / "home", tmp_path)
    (tmp_path / "databricks.yml").write_text(BUNDLE)
    (tmp_path / "n.py").write_text("# Databricks notebook source\n")
    store = open_store(home)
    (home.runs / "n.html").write_text("<p>the notebook</p>")
    (tmp_path / "secret.html").write_text("secret")
    history = History(store)
    run = store.begin(NewRun("<j>", json.dumps({"tasks": TASKS})))
    for number, path in ((1, home.runs / "n.html"), (2, tmp_path / "secret.html"), (3, "")):
        history.begin_attempt(run.id, "a", number, own_record())
        history.end_attempt(run.id, "a", number, state="SUCCESS", page=str(path))
    store.end(run.id, "SUCCESS", '"<quoted>')
    return home


@pytest.fixture
def address(home: Home) -> Iterator[str]:
    addresses: list[str] = []
    with dashboard_during(home, addresses.append, "{}"):
        (address,) = addresses
        yield address


@pytest.fixture
def session(address: str) -> requests.Session:
    session = requests.Session()
    assert "token" not in session.get(address, timeout=120).url
    return session


def root(address: str) -> str:
    return address.partition("?")[0]


def tab(session: requests.Session, address: str) -> dict[str, Any]:
    """What the tab shows once the jobs are read."""
    with session.get(f"{root(address)}events?page=jobs", stream=True, timeout=120) as events:
        for line in events.iter_lines(decode_unicode=True):
            if line.startswith("data: ") and (read := json.loads(line[6:])["page"]["read"]):
                return dict(read)
    raise AssertionError("the events ended")


def test_it_shows_jobs_runs_and_attempts(session: requests.Session, address: str) -> None:
    shown = tab(session, address)
    assert shown["jobs"] == [{"key": "j", "description": "<b>here"}, {"key": "z", "description": ""}]
    (run,) = shown["runs"]
    assert (run["id"], run["job"], run["trigger"]) == (1, "<j>", "manual")
    assert (run["state"], run["reason"]) == ("SUCCESS", '"<quoted>')
    assert re.fullmatch(r"\d\.\d s", run["duration"])
    attempts = [(one["task"], one["number"], one["state"], one["is_saved"]) for one in run["attempts"]]
    assert attempts == [("a", 1, "SUCCESS", True), ("a", 2, "SUCCESS", True), ("a", 3, "SUCCESS", False)]


def test_it_shows_the_jobs_of_the_target_that_the_scheduler_runs(
    home: Home, session: requests.Session, address: str
) -> None:
    record_scheduler(home, "azure")
    assert tab(session, address)["jobs"][0]["description"] == "<b>there"


def test_a_mistake_in_the_files_is_shown_and_runs_too(
    home: Home, session: requests.Session, address: str
) -> None:
    (home.project / "databricks.yml").write_text("bundle: [")
    shown = tab(session, address)
    assert "databricks.yml" in shown["problem"]
    assert [run["id"] for run in shown["runs"]] == [1]


def test_a_saved_notebook_is_served_and_its_scripts_do_not_reach_the_dashboard(
    session: requests.Session, address: str
) -> None:
    notebook = session.get(f"{root(address)}jobs/1/a/1", timeout=120)
    assert notebook.text == "<p>the notebook</p>"
    policy = notebook.headers["Content-Security-Policy"]
    assert policy == "sandbox allow-scripts; frame-ancestors 'none'"
    assert notebook.headers["Cache-Control"] == "no-store"
    assert notebook.headers["Referrer-Policy"] == "no-referrer"
    assert notebook.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    ["1/a/2", "1/a/3", "1/a/4", "1/b/1", "x/a/1", "9/a/1", f"{10**30}/a/1", "etc/passwd", "../secret.html"],
)
def test_nothing_but_saved_notebooks_is_served(session: requests.Session, address: str, path: str) -> None:
    answer = session.get(f"{root(address)}jobs/{path}", timeout=120)
    assert (answer.status_code, "secret" in answer.text) == (404, False)


@pytest.mark.parametrize("given", ["", "?token=", "?token=wrong", "?token=%C3%A4"])
def test_without_the_token_it_shows_nothing(address: str, given: str) -> None:
    port = root(address).rpartition(":")[2].strip("/")
    for path in ("events", "jobs/1/a/1"):
        cookie = {"Cookie": f"workbench_dashboard_{port}=wrong"}
        with requests.get(root(address) + path + given, timeout=120, headers=cookie, stream=True) as answer:
            assert answer.status_code == 401
            assert "notebook</p>" not in answer.text


def test_another_name_for_this_machine_is_refused(session: requests.Session, address: str) -> None:
    for path in ("events?page=jobs", "jobs/1/a/1"):
        headers = {"Host": "evil.example"}
        with session.get(root(address) + path, timeout=120, headers=headers, stream=True) as answer:
            assert answer.status_code == 403


def test_it_listens_on_loopback_only(address: str) -> None:
    port = int(root(address).rpartition(":")[2].strip("/"))
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.2:{port}/", timeout=60)
