"""Job files: every key is one that the bundle format documents, and each mistake is named with its line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from topiclake.errors import ConfigError
from workbench.jobs.bundle import load_bundle
from workbench.jobs.checks import upstream_of
from workbench.notebook.conversion import to_notebook
from workbench.notebook.files import read_notebook

PROJECT = Path(__file__).parents[3]
TYPES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "bundle_keys.json").read_text())[
    "types"
]
PLAIN = {"string": str, "bool": bool, "int": int}
FILES = [PROJECT / "databricks.yml", *sorted((PROJECT / "conf" / "jobs").glob("*.yml"))]

ROOT = """\
bundle: {name: b}
include: [conf/jobs/*.job.yml]
variables:
  env: {default: local}
targets:
  laptop: {default: true}
  azure:
    variables: {env: azure}
"""
JOB = """\
resources:
  jobs:
    j:
      parameters:
        - {name: env, default: "${var.env}"}
      tasks:
        - task_key: a
          notebook_task:
            notebook_path: ../../n.py
        - task_key: b
          depends_on: [{task_key: a}]
          notebook_task:
            notebook_path: ../../n.py
            base_parameters:
              topic: "{{tasks.a.values.topic}} of {{ job.parameters.env }}"
"""
NOTEBOOK = """\
# Databricks notebook source
dbutils.widgets.text("env", "")
dbutils.widgets.text("topic", "")
"""


def undocumented(content: Any, kind: str, where: str = "") -> list[str]:
    """Each key and value that the format does not have, by its place."""
    if kind.startswith(("list of ", "map of ")):
        inner = kind.split(" of ", 1)[1]
        entries = content.items() if isinstance(content, dict) else enumerate(content)
        return [unknown for key, one in entries for unknown in undocumented(one, inner, f"{where}.{key}")]
    if content is None or (isinstance(content, str) and ("${var." in content or kind == "TargetVariable")):
        return []  # a target may give a variable plainly
    if kind in PLAIN:
        return [] if type(content) is PLAIN[kind] else [f"{where}: {content!r} is no {kind}"]
    known = TYPES.get(kind)
    if known is None:
        return []  # a type that no file of the project uses
    if "keys" in known and not isinstance(content, dict):
        return [f"{where}: {content!r} is no {kind}"]
    if "values" in known:
        return [] if content in known["values"] else [f"{where}: {content}"]
    unknown = [f"{where}.{key}" for key in content if key not in known["keys"]]
    unknown += [f"{where}.{key} is missing" for key in known["required"] if key not in content]
    for key, one in content.items():
        unknown += undocumented(one, known["keys"].get(key, ""), f"{where}.{key}")
    return unknown


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_key_is_one_that_the_bundle_format_documents(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    # The schema asks for `bundle` only where the name is: an included file has none.
    assert undocumented(content, "Root") == []


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("task_key: a", "task_name: a", ".resources.jobs.j.tasks.0.task_name"),
        ("      tasks:", "      task:", ".resources.jobs.j.task"),
        ("      tasks:", "      schedule: {quartz: x, timezone_id: y}\n      tasks:", ".schedule.quartz"),
        ("notebook_path", "path", ".notebook_task.path"),
        ("depends_on:", "run_if: SOMETIMES\n          depends_on:", ".run_if: SOMETIMES"),
        ("depends_on:", "max_retries: many\n          depends_on:", ".max_retries: 'many' is no int"),
        ("depends_on:", "libraries: [a.whl]\n          depends_on:", ".libraries.0: 'a.whl' is no Library"),
    ],
)
def test_a_key_that_the_format_does_not_have_is_found(before: str, after: str, message: str) -> None:
    assert undocumented(yaml.safe_load(JOB), "Root") == []
    assert any(message in one for one in undocumented(yaml.safe_load(JOB.replace(before, after)), "Root"))


def test_the_cluster_of_the_jobs_is_one_that_the_bundle_format_documents() -> None:
    cluster = yaml.safe_load(FILES[0].read_text())["variables"]["cluster"]["default"]
    assert undocumented(cluster, "ClusterSpec") == []
    assert undocumented(cluster | {"num_workers": "2"}, "ClusterSpec") == [".num_workers: '2' is no int"]


def test_every_notebook_of_the_project_has_a_job() -> None:
    jobs = load_bundle(PROJECT).jobs
    notebooks = {task.notebook_task.notebook_path for job in jobs.values() for task in job.tasks}
    assert notebooks == {str(path) for path in (PROJECT / "notebooks").glob("*.py")}
    alone = {path.stem for path in (PROJECT / "notebooks").glob("*.py")} - set(jobs)
    layers = [task.task_key for task in jobs["wikimedia_medallion"].tasks]
    assert layers == ["publish", "bronze", "silver", "gold"]
    steps = [Path(task.notebook_task.notebook_path).stem for task in jobs["cdc_orders"].tasks]
    assert steps == ["shop_change", "cdc_orders"]
    # Nobody schedules one of them alone.
    assert alone == {"shop_change", *(f"wikimedia_{layer}" for layer in layers[1:])}


def test_no_other_file_of_the_project_defines_jobs() -> None:
    found = [path for path in PROJECT.glob("conf/**/*.y*ml") if "tasks:" in path.read_text()]
    assert set(found) == set(FILES[1:])


def test_the_pipeline_passes_a_task_value_down() -> None:
    job = load_bundle(PROJECT).job("gps_pipeline")
    assert upstream_of(job) == {"publish": set(), "ingest": {"publish"}, "audit": {"publish", "ingest"}}
    assert job.tasks[2].notebook_task.base_parameters == {"topic": "{{tasks.publish.values.topic}}"}


def test_a_target_gives_its_own_values() -> None:
    assert load_bundle(PROJECT).job("audit").defaults["env"] == "local"
    assert load_bundle(PROJECT, "azure").job("audit").defaults["env"] == "azure"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conf" / "jobs").mkdir(parents=True)
    (tmp_path / "databricks.yml").write_text(ROOT)
    (tmp_path / "conf" / "jobs" / "j.job.yml").write_text(JOB)
    (tmp_path / "n.py").write_text(NOTEBOOK)
    return tmp_path


def test_a_right_bundle_is_read(project: Path) -> None:
    bundle = load_bundle(project)
    assert (bundle.name, bundle.target, list(bundle.jobs)) == ("b", "laptop", ["j"])
    assert bundle.job("j").tasks[0].notebook_task.notebook_path == str(project / "n.py")


def test_a_job_runs_a_jupyter_notebook(project: Path) -> None:
    job = project / "conf" / "jobs" / "j.job.yml"
    job.write_text(JOB.replace("n.py", "n.ipynb"))
    notebook = to_notebook(read_notebook(project / "n.py"))
    (project / "n.ipynb").write_text(nbformat.writes(notebook))
    task = load_bundle(project).job("j").tasks[0]
    assert task.notebook_task.notebook_path == str(project / "n.ipynb")
    job.write_text(JOB.replace("n.py", "n.ipynb").replace("topic:", "topics:"))
    with pytest.raises(ConfigError, match=r"n\.ipynb has no widget 'topics'; it has env, topic"):
        load_bundle(project)


SCHEDULE = 'schedule: {quartz_cron_expression: "0 0 12 * * ?", timezone_id: UTC}'
MISTAKES = {
    "broken YAML": ("task_key: b", "task_key: [b", 11, "not valid YAML"),
    "a day that no month has": (
        "task_key: b",
        "task_key: 2026-13-45",
        10,
        "'2026-13-45' is not of type timestamp",
    ),
    "a number that is none": ("task_key: b", "task_key: !!int x", 10, "'x' is not of type int"),
    "a truth value that is none": ("task_key: b", "task_key: !!bool q", 10, "'q' is not of type bool"),
    "a time that is none": ("task_key: b", "task_key: !!timestamp q", 10, "'q' is not of type timestamp"),
    "a number of no digits": ("task_key: b", "task_key: !!int ''", 10, "'' is not of type int"),
    "a control character": ("task_key: b", "task_key: b\x07", 10, "character #x07 is not allowed"),
    "a character beyond Unicode": ("task_key: b", 'task_key: "\\U00110000"', 10, "chr() arg not in range"),
    "lists without end": ("task_key: b", "task_key: " + "[" * 2000, 10, "maximum recursion depth"),
    "a key twice": (
        "task_key: b",
        "task_key: b\n          task_key: c",
        11,
        "'task_key' is defined here a second",
    ),
    "an unknown key": ("depends_on:", "depend_on:", 11, "unknown key 'depend_on'"),
    "a wrong type": (
        "depends_on:",
        "max_retries: many\n          depends_on:",
        11,
        "max_retries: Input should",
    ),
    "a cycle": (
        "task_key: a\n",
        "task_key: a\n          depends_on: [{task_key: b}]\n",
        8,
        "the tasks wait for each other: a → b → a",
    ),
    "itself": ("[{task_key: a}]", "[{task_key: b}]", 11, "b → b"),
    "an unknown task": (
        "[{task_key: a}]",
        "[{task_key: c}]",
        11,
        "there is no task 'c'; try: use one of a, b",
    ),
    "a task twice": ("task_key: b", "task_key: a", 10, "task 'a' is defined here a second time"),
    "no notebook": ("../../n.py\n        - task", "../n.py\n        - task", 9, "there is no notebook"),
    "no widget": ("topic:", "topics:", 15, "n.py has no widget 'topics'; it has env, topic"),
    "a parameter that nothing takes": ("name: env", "name: envy", 5, "the name of parameter 'envy'"),
    "an unknown parameter": ("job.parameters.env", "job.parameters.en", 15, "no parameter 'en', it has env"),
    "a value of no upstream task": ("tasks.a.values", "tasks.c.values", 15, "'c' is not a task that"),
    "an unknown reference": (
        "job.parameters.env",
        "job.notebook_url",
        15,
        "there is no {{job.notebook_url}}",
    ),
    "an unknown variable": ("var.env", "var.envy", 5, "there is no ${var.envy}"),
    "an unknown cluster": (
        "depends_on:",
        "job_cluster_key: big\n          depends_on:",
        11,
        "the job has no job_cluster_key 'big'; try: remove job_cluster_key",
    ),
    "an unknown environment": (
        "depends_on:",
        "environment_key: serverless\n          depends_on:",
        11,
        "the job has no environment_key 'serverless'",
    ),
    "a bad cron": ("      tasks:", f"      {SCHEDULE.replace('?', '*')}\n      tasks:", 6, "must be '?'"),
    "a bad zone": (
        "      tasks:",
        f"      {SCHEDULE.replace('UTC', 'Mars')}\n      tasks:",
        6,
        "'Mars' is not a",
    ),
    "two triggers": (
        "      tasks:",
        f"      {SCHEDULE}\n      continuous: {{}}\n      tasks:",
        7,
        "schedule or continuous",
    ),
    "a continuous job with dependencies": (
        "      tasks:",
        "      continuous: {}\n      tasks:",
        12,
        "a task of a continuous job has no depends_on",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_file_and_line(project: Path, mistake: str) -> None:
    before, after, line, message = MISTAKES[mistake]
    assert before in JOB
    path = project / "conf" / "jobs" / "j.job.yml"
    path.write_text(JOB.replace(before, after, 1))
    with pytest.raises(ConfigError) as raised:
        load_bundle(project)
    assert str(raised.value).startswith(f"{path}, line {line}: "), raised.value
    assert (raised.value.fields["file"], raised.value.fields["line"]) == (str(path), line)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("bundle: {name: b}", "", "missing key 'bundle'"),
        ("default: true", "default: false", "line 5: 0 targets say"),
        ("conf/jobs/*.job.yml", "conf/jobs/*.yaml", "line 2: no file fits"),
        (
            "[conf/jobs/*.job.yml]",
            '[""]',
            "line 2: '' is no pattern of files below this folder; try: use conf/jobs/",
        ),
        ("conf/jobs/*.job.yml", "/jobs/**x.yml", "line 2: '/jobs/**x.yml' is no pattern"),
        ("{env: azure}", "{evn: azure}", "line 8: there is no variable 'evn'"),
        ("targets:", "target:", "line 5: unknown key 'target'; try: use targets"),
    ],
)
def test_a_mistake_in_the_root_file_is_named(project: Path, before: str, after: str, message: str) -> None:
    (project / "databricks.yml").write_text(ROOT.replace(before, after))
    with pytest.raises(ConfigError) as raised:
        load_bundle(project, "azure" if "evn" in after else None)
    assert str(raised.value).startswith(str(project / "databricks.yml"))
    assert message in str(raised.value)


def test_a_missing_file_job_or_target_is_named(project: Path) -> None:
    with pytest.raises(ConfigError, match="no target 'prod'; there are: laptop, azure"):
        load_bundle(project, "prod")
    bundle = load_bundle(project)
    with pytest.raises(ConfigError) as raised:
        bundle.job("i")
    assert raised.value.fields == {"job": "i", "allowed": ("j",)}
    (project / "databricks.yml").unlink()
    with pytest.raises(ConfigError) as raised:
        load_bundle(project)
    assert raised.value.fields == {"file": str(project / "databricks.yml"), "reason": "unreadable"}


def test_tasks_in_fully_linked_layers_are_checked_at_once(project: Path) -> None:
    layers = [[f"l{layer}_{at}" for at in range(5)] for layer in range(10)]
    tasks = [
        {
            "task_key": key,
            "depends_on": [{"task_key": one} for one in above],
            "notebook_task": {"notebook_path": "../../n.py"},
        }
        for above, layer in zip([[], *layers[:-1]], layers, strict=True)
        for key in layer
    ]
    content = yaml.safe_dump({"resources": {"jobs": {"j": {"tasks": tasks}}}})
    (project / "conf" / "jobs" / "j.job.yml").write_text(content)
    begun = time.process_time()
    upstream = upstream_of(load_bundle(project).job("j"))
    # There are 5^9 ways through the layers.
    assert time.process_time() - begun < 5
    assert upstream["l9_0"] == {key for layer in layers[:-1] for key in layer}


def test_a_job_in_two_files_is_an_error(project: Path) -> None:
    (project / "conf" / "jobs" / "k.job.yml").write_text(JOB)
    with pytest.raises(ConfigError, match=r"k\.job\.yml, line 3: job 'j' is in another file too"):
        load_bundle(project)
