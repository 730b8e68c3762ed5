import json
import stat

import pytest

from topiclake.errors import TopiclakeError
from workbench.dbutils import DBUtils, OutsideJobError, TaskValueError
from workbench.host.home import Home
from workbench.host.parameters import HandedOn
from workbench.host.redaction import Redactor
from workbench.jobs.bundle_model import Job, NotebookTask, Task
from workbench.jobs.run_records import Run
from workbench.jobs.task_values import RunContext, notebook_command
from workbench.runner.run import run_with_services


@pytest.fixture
def values(tmp_path, monkeypatch):
    for variable in ("WORKBENCH_TASK_VALUES", "WORKBENCH_TASK_KEY"):
        monkeypatch.delenv(variable, raising=False)
    return DBUtils(tmp_path, tmp_path).jobs.taskValues


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Make the process a task of a job run."""

    def begin(task):
        monkeypatch.setenv("WORKBENCH_TASK_VALUES", str(tmp_path / "values"))
        monkeypatch.setenv("WORKBENCH_TASK_KEY", task)
        return tmp_path / "values" / f"{task}.json"

    return begin


def test_outside_a_job_the_debug_value_is_returned_and_set_does_nothing(values, tmp_path):
    values.set("rows", 5)
    assert values.get("ingest", "rows", default=1, debugValue=0) == 0
    assert list(tmp_path.iterdir()) == []


def test_outside_a_job_and_without_a_debug_value_it_is_a_type_error_as_on_databricks(values):
    with pytest.raises(TypeError, match="; try: pass debugValue") as raised:
        values.get("ingest", "rows", default=1)
    assert type(raised.value) is OutsideJobError
    assert raised.value.fields == {"task": "ingest", "key": "rows"}
    assert issubclass(OutsideJobError, TopiclakeError)


def test_a_task_reads_what_another_has_set(values, job):
    file = job("ingest")
    values.set(key="rows", value={"gps": [1, 2.5, None, "é"]})
    values.set("rows2", 2)
    values.set("rows2", 3)
    assert json.loads(file.read_text()) == {"rows": {"gps": [1, 2.5, None, "é"]}, "rows2": 3}
    job("report")
    assert values.get(taskKey="ingest", key="rows", debugValue=0) == {"gps": [1, 2.5, None, "é"]}
    assert [path.name for path in file.parent.iterdir()] == ["ingest.json"]


def test_a_key_that_no_task_has_set_is_its_default_or_a_value_error_as_on_databricks(values, job):
    job("report")
    values.set("here", 1)
    assert values.get("report", "rows", default=7) == 7
    with pytest.raises(ValueError, match="; try: pass default") as raised:
        values.get("report", "rows", debugValue=1)
    assert type(raised.value) is TaskValueError
    assert raised.value.fields == {"task": "report", "key": "rows", "allowed": ("here",)}
    with pytest.raises(ValueError, match="nothing") as raised:
        values.get("ingest", "rows")
    assert raised.value.fields == {"task": "ingest", "key": "rows", "allowed": ()}


@pytest.mark.parametrize(
    ("key", "value", "fields"),
    [
        (5, 1, {"key": 5, "reason": "no_string"}),
        ("rows", {1, 2}, {"key": "rows", "reason": "no_json"}),
        ("rows", "x" * 49150, {"key": "rows", "bytes": 49153, "reason": "size"}),
    ],
)
def test_what_databricks_would_not_keep_is_refused_inside_and_outside_a_job(values, job, key, value, fields):
    if "bytes" in fields:
        values.set(key, value)
        value += "x"
    for _ in range(2):
        with pytest.raises(TaskValueError) as raised:
            values.set(key, value)
        assert raised.value.fields == fields
        job("ingest")


@pytest.mark.parametrize("task", ["../ingest", "a/b", "", ".x"])
def test_a_task_key_is_no_path(values, job, task):
    job("report")
    with pytest.raises(TaskValueError) as raised:
        values.get(task, "rows", default=1)
    assert raised.value.fields == {"task": task, "reason": "form"}


def test_damaged_values_are_named(values, job):
    file = job("ingest")
    file.parent.mkdir()
    file.write_text('{"rows": ')
    with pytest.raises(TaskValueError) as raised:
        values.get("ingest", "rows", default=1)
    assert raised.value.fields == {"file": str(file), "reason": "damaged"}


SECRET = "s3cr<et>\"&'x/+ 1"


@pytest.fixture
def leave_secret(tmp_path, monkeypatch, job):
    """Make the process a task that leaves a secret among its values; return the folder of the values."""
    monkeypatch.setenv("TOPICLAKE_SECRET_S_K", SECRET)
    file = job("ingest")
    dbutils = DBUtils(tmp_path, tmp_path)
    dbutils.jobs.taskValues.set("plain", "open")
    assert [path.name for path in file.parent.iterdir()] == ["ingest.json"]
    monkeypatch.setenv("TOPICLAKE_SECRET_S_OTHER", "in no value")
    dbutils.secrets.get("s", "other")
    dbutils.jobs.taskValues.set("url", {"password": [f"x{dbutils.secrets.get('s', 'k')}"]})
    (secrets,) = file.parent.glob("*.secrets.json")
    assert json.loads(secrets.read_text()) == [SECRET]
    for path in file.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return file.parent


def test_a_task_that_reads_a_secret_of_another_one_shows_it_nowhere(leave_secret, tmp_path, job):
    job("report")
    redactor = Redactor()
    values = DBUtils(tmp_path, tmp_path, redactor=redactor).jobs.taskValues
    assert values.get("ingest", "url") == {"password": [f"x{SECRET}"]}
    assert redactor.redact(f"it is {SECRET}") == "it is [REDACTED]"


def test_a_parameter_that_holds_a_secret_of_another_task_is_on_no_command_line(
    leave_secret, tmp_path, monkeypatch
):
    notebook = tmp_path / "n.py"
    notebook.write_text(
        "# Databricks notebook source\n" + "".join(f"dbutils.widgets.text('{name}', '')\n" for name in "pq")
    )
    texts = {"p": "{{tasks.ingest.values.url}}", "q": "{{tasks.ingest.values.plain}}"}
    task = Task(
        task_key="report", notebook_task=NotebookTask(notebook_path=str(notebook), base_parameters=texts)
    )
    run = Run(1, "j", "manual", None, "", "{}", "RUNNING", "", 0.0, 0.0, None, None, None, 0)
    context = RunContext(run, Job(tasks=[task]), leave_secret)
    context.states["ingest"] = "SUCCESS"
    shown, variables = context.hand_over(task)
    assert shown == {"q": "open"}
    assert "s3cr" not in f"{notebook_command(task, shown)} {variables}"
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert stat.S_IMODE((leave_secret / "report.parameters.json").stat().st_mode) == 0o600
    ran = []
    monkeypatch.setattr(
        "workbench.runner.runner.run_notebook", lambda *given, **named: ran.append((given, named))
    )
    run_with_services(notebook, shown, Home(tmp_path / "home", tmp_path))
    ((given, named),) = ran
    assert json.loads(given[1]["p"]) == {"password": [f"x{SECRET}"]}
    assert (given[1]["q"], named["secrets"]) == ("open", [SECRET])
    assert HandedOn.load() == HandedOn()
