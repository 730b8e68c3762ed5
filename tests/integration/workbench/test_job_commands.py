"""`python -m workbench job`, without a JVM: a task's command is a small Python program."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
import requests

from tests.support.waiting import wait_until
from workbench.commands import cli
from workbench.commands import job as commands
from workbench.dashboard.serving import dashboard_during, jobs_address
from workbench.host.home import Home
from workbench.jobs import background, executor
from workbench.jobs.bundle_model import Task
from workbench.jobs.executor import open_store
from workbench.jobs.history import History
from workbench.jobs.run_records import NewRun, Run
from workbench.jobs.scheduler import Scheduler
from workbench.services.query_watch import reports_file

PROJECT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return Home.find()


def use(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    def command(task: Task, parameters: dict[str, str]) -> list[str]:
        return [sys.executable, "-c", program, task.task_key, json.dumps(parameters)]

    def execute_run(*arguments: Any) -> Any:
        return executor.execute_run(*arguments, command)

    monkeypatch.setattr(commands, "execute_run", execute_run)


def test_the_jobs_are_listed_with_what_starts_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["job", "list"]) == 0
    output = capsys.readouterr().out
    assert "gps_ingest       0 0/15 * * * ? (UTC)                 ingest" in output
    assert "gps_pipeline     by hand                              publish → ingest → audit" in output
    assert cli.main(["job", "list", "--json", "--target", "azure"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["audit"]["parameters"][0] == {"name": "env", "default": "azure"}


def test_a_job_is_run_and_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Home
) -> None:
    use(monkeypatch, "import sys; print(*sys.argv[1:])")
    assert cli.main(["job", "run", "gps_query", "-p", "version=3"]) == 0
    output = capsys.readouterr().out
    assert "query            SUCCESS" in output
    assert cli.main(["job", "logs", "1"]) == 0
    assert capsys.readouterr().out == 'query | query {"env": "local", "version": "3"}\n'
    assert cli.main(["job", "history", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["job"], run["state"], run["trigger"]) == ("gps_query", "SUCCESS", "manual")
    assert (run["parameters"], run["tasks"]) == ({"version": "3"}, {"query": "SUCCESS"})
    events = [json.loads(line) for line in (home.jobs / "notifications.log").read_text().splitlines()]
    assert [one["event_type"] for one in events] == ["jobs.on_start", "jobs.on_success"]


def test_a_failed_job_ends_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, "import sys; sys.exit('out of luck')")
    assert cli.main(["job", "run", "audit"]) == 1
    output = capsys.readouterr().out
    assert "audit            FAILED     exit code 1: out of luck" in output
    assert cli.main(["job", "history", "audit"]) == 0
    assert "FAILED" in capsys.readouterr().out


def test_a_second_run_is_refused_while_the_job_has_its_most(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    open_store(home).begin(NewRun("audit", "{}"))
    assert cli.main(["job", "run", "audit"]) == 1
    assert "SKIPPED       max_concurrent_runs is 1, and as many are active" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "gps_inges"], "there is no job 'gps_inges'; there are: audit, cdc_orders, gps_ingest"),
        (
            ["run", "audit", "-p", "topics=x"],
            "job audit has no parameter 'topics'; it has env, topic; try: use -p topic=",
        ),
        (
            ["run", "audit", "-p", "env={{job.parameters.o}}"],
            "parameter 'env' of job audit: {{job.parameters.o}} has no value when a run begins; try: ",
        ),
        (["run", "audit", "-p", "env=a {{job.foo}}"], "{{job.foo}} has no value when a run begins"),
        (["run", "audit", "-p", "env={{tasks.z.values.k}}"], "{{tasks.z.values.k}} has no value when"),
        (["run", "audit", "-p", "env={{job.start_time.eon}}"], "{{job.start_time.eon}} has no value when"),
        (["list", "--target", "prod"], "there is no target 'prod'"),
        (["logs", "7"], "there is no run 7; try: python -m workbench job history"),
        (["stop", "7"], "there is no run 7"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], home: Home
) -> None:
    assert cli.main(["job", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert History(open_store(home)).runs() == []


def test_a_given_value_may_refer_to_what_is_known_when_a_run_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, "import sys; print(*sys.argv[1:])")
    assert cli.main(["job", "run", "gps_query", "-p", "version={{job.id}}-{{ no.reference }}"]) == 0
    assert cli.main(["job", "logs", "1"]) == 0
    assert '"version": "gps_query-{{ no.reference }}"' in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{{job.parameters.o}}", "{{job.foo}}", "{{tasks.z.values.k}}"])
def test_a_run_with_a_reference_that_has_no_value_fails_and_ends(home: Home, text: str) -> None:
    store = open_store(home)
    tasks = [{"task_key": "a", "notebook_task": {"notebook_path": "/no.py"}}]
    run = store.begin(NewRun("j", json.dumps({"tasks": tasks}), parameters={"env": text}))
    ended = executor.execute_run(home, store, run)
    assert ended.state == "FAILED"
    assert ended.reason.startswith(f"{text} has no value: ")


@pytest.mark.parametrize("command", [["history"], ["run", "audit"]])
def test_whoever_finds_a_run_interrupted_tells_of_it_once(
    command: list[str], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, "")
    store = open_store(home)
    tasks = [{"task_key": "a", "notebook_task": {"notebook_path": "/no.py"}}]
    run = store.begin(
        NewRun("j", json.dumps({"tasks": tasks, "webhook_notifications": {"on_failure": [{"id": "ops"}]}}))
    )
    with store.transaction() as database:
        database.execute("UPDATE runs SET pid_created = pid_created - 60")
    for _ in range(2):
        assert cli.main(["job", *command]) == 0
    events = [json.loads(line) for line in (home.jobs / "notifications.log").read_text().splitlines()]
    (event,) = [one for one in events if one["run"]["run_id"] == run.id]
    assert (event["event_type"], event["run"]["state"]) == ("jobs.on_failure", "INTERRUPTED")
    assert event["failures"][0].startswith("webhook ops: "), "it was tried"


@pytest.fixture
def pending(home: Home, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that a scheduler has claimed and not begun; its notebook is missing."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    tasks = [{"task_key": "a", "notebook_task": {"notebook_path": "/no.py"}}]
    run = open_store(home).claim_slot(NewRun("audit", json.dumps({"tasks": tasks})), time.time())
    assert run is not None
    return run


def test_a_run_that_a_scheduler_left_pending_is_begun_and_blocks_its_job_no_longer(
    pending: Run, home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, "")
    assert cli.main(["job", "run", "audit"]) == 1
    output = capsys.readouterr().out
    assert "run 1 of audit begins: its scheduler ended" in output
    assert "SKIPPED" in output
    history = History(open_store(home))
    wait_until(lambda: history.run(pending.id).state == "FAILED")
    assert cli.main(["job", "run", "audit"]) == 0
    events = [json.loads(line) for line in (home.jobs / "notifications.log").read_text().splitlines()]
    assert [one["run"]["run_id"] for one in events].count(pending.id) == 2, "a begin and an end"
    assert [run for _, run, _ in history.slots("audit")] == [pending.id]


def test_a_run_that_a_scheduler_has_just_claimed_is_left_to_it(
    pending: Run, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[int] = []
    monkeypatch.setattr(commands, "launch_executor", lambda _: launched.append)
    background.record_scheduler(home, None)
    assert cli.main(["job", "run", "audit"]) == 1
    assert launched == []
    (home.jobs / "scheduler.json").unlink()
    assert cli.main(["job", "run", "audit"]) == 1
    assert launched == [pending.id]


def test_a_run_is_cancelled_by_its_number(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run = open_store(home).begin(NewRun("audit", "{}"))
    assert cli.main(["job", "stop", str(run.id)]) == 0
    assert "run 1 is being cancelled" in capsys.readouterr().out
    assert History(open_store(home)).run(run.id).cancelled == 1


def test_the_scheduler_starts_in_the_background_once_and_is_stopped(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert cli.main(["job", "stop"]) == 0
    assert "no scheduler was running" in capsys.readouterr().out
    assert cli.main(["job", "start", "--background"]) == 0
    assert background.find_scheduler(home) is not None
    address = jobs_address(home)
    assert f"jobs and runs  {address}\n" in capsys.readouterr().out
    assert address.endswith("#jobs")
    assert (home.jobs / "scheduler.json").stat().st_mode & 0o777 == 0o600
    assert requests.get(address, timeout=120).status_code == 200
    assert f"jobs and runs  {address}\n" in home.log("jobs").read_text()
    assert cli.main(["job", "start", "--background"]) == 1
    assert "another job start runs in" in capsys.readouterr().err
    assert cli.main(["job", "stop"]) == 0
    assert background.find_scheduler(home) is None
    with pytest.raises(requests.ConnectionError):
        requests.get(address, timeout=120)
    assert jobs_address(home) == "python -m workbench dashboard"


def test_a_dashboard_that_runs_shows_the_jobs_of_a_scheduler_and_outlives_it(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with dashboard_during(home, click.echo, "{}"):
        address = capsys.readouterr().out.strip()
        assert cli.main(["job", "start", "--background", "--target", "azure"]) == 0
        assert f"jobs and runs  {address}#jobs\n" in capsys.readouterr().out
        assert background.scheduled_target(home) == "azure"
        assert cli.main(["job", "stop"]) == 0
        assert background.scheduled_target(home) is None
        assert requests.get(address, timeout=120).status_code == 200


def test_a_scheduler_starts_where_the_dashboard_cannot(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.prepare()
    reports_file(home.folder).write_text("not a database" * 100)
    monkeypatch.setattr(Scheduler, "run_forever", lambda _: click.echo("it runs"))
    assert cli.main(["job", "start"]) == 0
    written = capsys.readouterr().out
    assert re.search(r"✗ the dashboard does not start: .*reports\.db cannot be read", written)
    assert written.endswith("it runs\n")


def test_an_executor_carries_out_a_pending_run_and_only_that(home: Home) -> None:
    store = open_store(home)
    job = {"tasks": [{"task_key": "a", "notebook_task": {"notebook_path": "/no.py"}}]}
    run = store.claim_slot(NewRun("j", json.dumps(job)), time.time())
    assert run is not None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "workbench.jobs.executor", str(run.id)]
    for _ in range(2):
        subprocess.run(command, check=True, env=environment, cwd=PROJECT)
    assert History(store).run(run.id).state == "FAILED"
    assert len((home.jobs / "notifications.log").read_text().splitlines()) == 2
