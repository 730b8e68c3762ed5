"""Runs: order, values, retries, timeouts and cancelling, with small Python programs in place of notebooks."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until
from workbench.host.processes import is_running, record_of
from workbench.jobs.bundle_model import Job, Task
from workbench.jobs.execution import Execution, run_folder
from workbench.jobs.history import History
from workbench.jobs.run_records import NewRun, Run
from workbench.jobs.store import Store
from workbench.jobs.task_values import notebook_command

#: Notes its parameters, leaves a value, then does what its task's description says.
PROGRAM = """\
import json, os, sys, time
from pathlib import Path
key, folder = os.environ["WORKBENCH_TASK_KEY"], Path(os.environ["WORKBENCH_TASK_VALUES"])
(folder / f"{key}.json").write_text(json.dumps({"name": key, "count": 3}))
with open(sys.argv[1], "a") as file:
    file.write(f"{key} {sys.argv[3]}\\n")
print("page        /runs/x.html", flush=True)
exec(sys.argv[2])
"""
NOTEBOOK = "# Databricks notebook source\n" + "".join(f'dbutils.widgets.text("{n}", "")\n' for n in "pqr")

SECRET = "s3cr-et/+ value"
#: Hands a secret on to the next task.
GIVER = """\
# Databricks notebook source
dbutils.jobs.taskValues.set("token", dbutils.secrets.get("s", "k"))
"""
#: Uses it, and shows it.
TAKER = """\
# Databricks notebook source
dbutils.widgets.text("url", "")
url = dbutils.widgets.get("url")
print(url)
with open("{seen}", "w") as file:
    file.write(url)
# COMMAND ----------
url
"""


class World:
    """A database, and runs that note what they did in `notes`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "jobs.db")
        self.history = History(self.store)
        self.notes = folder / "notes"
        self.notebook = folder / "n.py"
        self.notebook.write_text(NOTEBOOK)
        self.notes.touch()

    def task(self, key: str, does: str = "", after: str = "", **more: Any) -> dict[str, Any]:
        parameters = more.pop("base_parameters", {})
        notebook = {"notebook_path": str(self.notebook), "base_parameters": parameters}
        upstream = [{"task_key": one} for one in after]
        return {
            "task_key": key,
            "description": does,
            "depends_on": upstream,
            "notebook_task": notebook,
        } | more

    def run(self, *tasks: dict[str, Any], given: dict[str, str] | None = None, **job: Any) -> Run:
        definition = Job.model_validate({"tasks": list(tasks), **job}).model_dump_json()
        run = self.store.begin(NewRun("j", definition, 9, parameters=given or {}))
        self.execution(run).execute_run()
        return self.history.run(run.id)

    def execution(self, run: Run) -> Execution:
        return Execution(self.store, run, self.folder, self.folder, self.command, grace_seconds=0.3)

    def command(self, task: Task, parameters: dict[str, str]) -> list[str]:
        return [sys.executable, "-c", PROGRAM, str(self.notes), task.description, json.dumps(parameters)]

    def noted(self) -> list[str]:
        return [line.split()[0] for line in self.notes.read_text().splitlines()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_tasks_run_after_those_they_depend_on(world: World) -> None:
    run = world.run(world.task("c", after="ab"), world.task("b", after="a"), world.task("a"))
    assert world.noted() == ["a", "b", "c"]
    assert (run.state, run.ended is not None) == ("SUCCESS", True)
    assert world.history.task_states(run.id) == dict.fromkeys("abc", "SUCCESS")
    assert {one.page for one in world.history.attempts(run.id)} == {"/runs/x.html"}


def test_parameters_and_values_go_from_task_to_task(world: World) -> None:
    texts = {
        "p": "{{tasks.a.values.name}}-{{tasks.a.values.count}}-{{ job.run_id }}-{{tasks.a.result_state}}",
        "q": "{{job.start_time.iso_date}} {{task.name}} {{ no.reference }}",
    }
    parameters = [{"name": "r", "default": "{{job.id}}"}, {"name": "elsewhere", "default": "x"}]
    run = world.run(world.task("a"), world.task("b", after="a", base_parameters=texts), parameters=parameters)
    today = time.strftime("%Y-%m-%d", time.gmtime(run.started))
    assert json.loads(world.notes.read_text().splitlines()[1].split(maxsplit=1)[1]) == {
        "p": f"a-3-{run.id}-success",
        "q": f"{today} b {{{{ no.reference }}}}",
        "r": "j",
    }


def test_a_parameter_that_a_notebook_does_not_declare_is_ignored_with_one_line(world: World) -> None:
    parameters = [{"name": name, "default": "x"} for name in ("p", "more", "elsewhere")]
    run = world.run(world.task("a"), parameters=parameters)
    assert json.loads(world.notes.read_text().split(maxsplit=1)[1]) == {"p": "x"}
    log = (run_folder(world.folder, run.id) / "a.log").read_text()
    line = "ignored parameters that the notebook does not declare: elsewhere, more\n"
    assert log.startswith(line)
    assert log.count("elsewhere") == 1


def test_what_a_run_is_given_wins(world: World) -> None:
    parameters = [{"name": "p", "default": "default"}]
    world.run(world.task("a", base_parameters={"p": "own"}), parameters=parameters, given={"p": "given"})
    assert json.loads(world.notes.read_text().split(maxsplit=1)[1]) == {"p": "given"}


def test_a_value_that_no_task_left_fails_the_task_and_says_so(world: World) -> None:
    run = world.run(
        world.task("a"), world.task("b", after="a", base_parameters={"p": "{{tasks.a.values.x}}"})
    )
    assert run.state == "FAILED"
    log = (world.folder / "runs" / str(run.id) / "b.log").read_text()
    assert "{{tasks.a.values.x}} has no value: task 'a' has left count, name; try: call dbutils.jobs" in log


@pytest.mark.parametrize(
    ("run_if", "expected"),
    [
        ("ALL_SUCCESS", "UPSTREAM_FAILED"),
        ("NONE_FAILED", "UPSTREAM_FAILED"),
        ("ALL_DONE", "SUCCESS"),
        ("AT_LEAST_ONE_SUCCESS", "SUCCESS"),
        ("AT_LEAST_ONE_FAILED", "SUCCESS"),
        ("ALL_FAILED", "EXCLUDED"),
    ],
)
def test_run_if_decides_after_a_failure(world: World, run_if: str, expected: str) -> None:
    run = world.run(
        world.task("a", "sys.exit(3)"), world.task("b"), world.task("c", after="ab", run_if=run_if)
    )
    assert world.history.task_states(run.id) == {"a": "FAILED", "b": "SUCCESS", "c": expected}
    assert run.state == ("FAILED" if expected == "UPSTREAM_FAILED" else "SUCCESS_WITH_FAILURES")


def test_a_task_is_tried_again_after_its_interval(world: World) -> None:
    flaky = f"sys.exit(len(open({str(world.notes)!r}).readlines()) < 3)"
    run = world.run(world.task("a", flaky, max_retries=5, min_retry_interval_millis=500))
    tries = world.history.attempts(run.id)
    assert [one.state for one in tries] == ["FAILED", "FAILED", "SUCCESS"]
    assert tries[0].reason == "exit code 1: page        /runs/x.html"
    assert min(tries[1].started - tries[0].started, tries[2].started - tries[1].started) > 0.45
    assert run.state == "SUCCESS"


def test_retries_end(world: World) -> None:
    run = world.run(world.task("a", "sys.exit(1)", max_retries=2))
    assert (run.state, run.reason) == ("FAILED", "a not successful")
    assert world.noted() == ["a"] * 3


@pytest.mark.parametrize(("again", "tries"), [(False, 1), (True, 2)])
def test_a_task_that_takes_too_long_is_stopped(world: World, again: bool, tries: int) -> None:
    slow = world.task("a", "time.sleep(60)", timeout_seconds=1, max_retries=1, retry_on_timeout=again)
    run = world.run(slow)
    assert (run.state, world.noted()) == ("TIMEDOUT", ["a"] * tries)
    assert "KeyboardInterrupt" in (world.folder / "runs" / str(run.id) / "a.log").read_text()


def test_a_job_that_takes_too_long_is_stopped_with_all_its_tasks(world: World) -> None:
    run = world.run(world.task("a", "time.sleep(60)"), world.task("b", after="a"), timeout_seconds=1)
    assert run.state == "TIMEDOUT"
    assert world.history.task_states(run.id) == {"a": "TIMEDOUT", "b": "TIMEDOUT"}


def test_a_task_that_heeds_no_signal_is_killed_with_its_children(world: World) -> None:
    deaf = (
        "import signal, subprocess\n"
        "for one in (signal.SIGINT, signal.SIGTERM): signal.signal(one, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('child', child.pid, flush=True)\ntime.sleep(60)"
    )
    run = world.run(world.task("a", deaf, timeout_seconds=1))
    (attempt,) = world.history.attempts(run.id)
    assert attempt.reason.startswith("exit code -9")
    child = int((world.folder / "runs" / str(run.id) / "a.log").read_text().split()[-1])
    stat = Path(f"/proc/{child}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_what_a_task_leaves_running_ends_with_it(world: World) -> None:
    leaves = (
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('child', child.pid, flush=True)"
    )
    run = world.run(world.task("a", leaves))
    assert run.state == "SUCCESS"
    child = int((world.folder / "runs" / str(run.id) / "a.log").read_text().split()[-1])
    wait_until(lambda: not is_running(record_of(child)))
    assert not is_running(record_of(child))


def test_a_cancelled_run_ends_its_tasks(world: World) -> None:
    tasks = [world.task("a", "time.sleep(60)"), world.task("b", after="a")]
    definition = Job.model_validate({"tasks": tasks}).model_dump_json()
    run = world.store.begin(NewRun("j", definition))
    carried = threading.Thread(target=world.execution(run).execute_run)
    carried.start()
    wait_until(world.noted)
    world.store.cancel(run.id)
    carried.join(240)
    assert world.history.run(run.id).state == "CANCELED"
    assert world.history.task_states(run.id) == {"a": "CANCELED", "b": "CANCELED"}


def test_tasks_that_do_not_depend_on_each_other_run_at_once(world: World) -> None:
    meet = f"while len(open({str(world.notes)!r}).readlines()) < 2: time.sleep(0.05)"
    run = world.run(world.task("a", meet, timeout_seconds=30), world.task("b", meet, timeout_seconds=30))
    assert run.state == "SUCCESS"


def test_a_notebook_is_run_by_the_workbench(world: World) -> None:
    task = Task.model_validate(world.task("a"))
    command = notebook_command(task, {"p": "x y", "q": ""})
    assert command[1:] == ["-m", "workbench", "run", str(world.notebook), "-p", "p=x y", "-p", "q="]


def test_a_secret_in_a_task_value_reaches_the_next_notebook_and_is_shown_nowhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(world.folder / "home"))
    monkeypatch.setenv("TOPICLAKE_SECRET_S_K", SECRET)
    taker = world.folder / "taker.py"
    taker.write_text(TAKER.format(seen=world.folder / "seen"))
    world.notebook.write_text(GIVER)
    first, second = world.task("a"), world.task("b", after="a")
    second["notebook_task"] = {
        "notebook_path": str(taker),
        "base_parameters": {"url": "https://u:{{tasks.a.values.token}}@host"},
    }
    monkeypatch.setattr(world, "command", notebook_command)
    run = world.run(first, second)
    assert run.state == "SUCCESS", [one.reason for one in world.history.attempts(run.id)]
    assert (world.folder / "seen").read_text() == f"https://u:{SECRET}@host"
    (world.folder / "seen").unlink()
    left = [path for path in world.folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".html" for path in left)
    assert [path for path in left if SECRET.encode() in path.read_bytes()] == []
    (values,) = (path for path in left if path.parent.name == "values")
    assert json.loads(values.read_text()) == {"token": "[REDACTED]"}
