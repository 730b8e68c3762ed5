"""The library with Databricks' switch on. No Databricks is here: these are the decisions, not a run there."""

import ast
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

import topiclake as tl
from tests.notebooks import databricks_stand_in
from topiclake import session
from topiclake.config.kafka import KafkaSettings
from topiclake.config.load import load_settings, pipeline_names
from topiclake.config.pipeline import PipelineSettings
from topiclake.config.storage import StorageSettings
from topiclake.errors import ConfigError, PlatformError, StorageError
from topiclake.kafka import source as kafka_source
from topiclake.session import REDACTION_CONF, SECRET_NAMES, is_databricks, jvm_options
from topiclake.sources import streams
from topiclake.storage import mount
from topiclake.streaming import queries
from workbench.jobs.bundle import load_bundle

PROJECT = Path(__file__).parents[2]
LAKE = StorageSettings(source="file:///lake", mount_point="/mnt/datalake")
NOTEBOOKS = sorted((PROJECT / "notebooks").rglob("*.py"))


@pytest.fixture
def databricks(monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")


@pytest.fixture
def laptop(monkeypatch):
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)


class NoDbutils:
    def __getattr__(self, name):
        raise AssertionError(f"dbutils.{name} was asked for")


def login_of_the_reader():
    broker = {
        "bootstrap_servers": "b:9093",
        "security_protocol": "SASL_SSL",
        "username": "{{secrets/s/u}}",
        "password": "{{secrets/s/p}}",
    }
    pipeline = {"topic": "gps", "view": "gps", "table_path": "/t", "checkpoint_path": "/c"}
    options = kafka_source.reader_options(
        KafkaSettings.model_validate(broker, context={"secrets": lambda _scope, key: key}),
        PipelineSettings.model_validate(pipeline),
    )
    return options["kafka.sasl.jaas.config"]


def test_the_switch_is_the_platforms_own_variable(databricks):
    assert is_databricks()


def test_without_the_variable_it_is_not_databricks(laptop):
    assert not is_databricks()


def test_the_login_has_databricks_prefix_there(databricks):
    assert login_of_the_reader().startswith(
        "kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule "
    )


def test_the_login_has_no_prefix_elsewhere(laptop):
    assert login_of_the_reader().startswith("org.apache.kafka.common.security.plain.PlainLoginModule ")


@pytest.fixture
def no_mounts(monkeypatch):
    monkeypatch.setattr(mount, "_dbutils", NoDbutils())


@pytest.mark.usefixtures("no_mounts")
def test_mounts_are_left_to_the_platform(databricks):
    path = "/mnt/datalake/delta/gps"
    assert mount.resolve(LAKE, path) == path


@pytest.mark.usefixtures("no_mounts")
def test_mounts_are_resolved_elsewhere(laptop):
    with pytest.raises(AssertionError, match="was asked for"):
        mount.resolve(LAKE, "/mnt/datalake/delta/gps")


WITHOUT_WORKBENCH = """
import importlib.abc, importlib, pkgutil, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "workbench":
            raise ImportError("workbench is not on Databricks")

sys.meta_path.insert(0, Refuse())
for package in ("topiclake", "topiclake_examples"):
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, f"{package}."):
        importlib.import_module(module.name)
for package, name in {names!r}:
    getattr(importlib.import_module(package), name)
assert not [name for name in sys.modules if name.partition(".")[0] == "workbench"]
print("imported", len({names!r}))
"""


def library_names(notebook):
    """What a notebook takes from library and examples: package and name."""
    nodes = list(ast.walk(ast.parse(notebook.read_text("utf-8"))))
    packages = {"tl": "topiclake"}
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "topiclake_examples":
            packages |= {alias.name: f"topiclake_examples.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module.startswith("topiclake_examples."):
            found |= {(node.module, alias.name) for alias in node.names}
    return found | {
        (packages[node.value.id], node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages
    }


def test_the_library_and_all_that_notebooks_call_need_no_workbench():
    names = sorted(set().union(*map(library_names, NOTEBOOKS)))
    of_library = {name for package, name in names if package == "topiclake"}
    assert {"load_settings", "mount", "start_ingest"} <= of_library
    assert {("topiclake_examples.gps", "publish_tracks"), ("topiclake_examples.gps", "track_map")} <= set(
        names
    )
    code = WITHOUT_WORKBENCH.replace("{names!r}", repr(names))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"imported {len(names)}"), done.stderr


def test_a_module_of_the_workbench_would_be_refused():
    """The failing twin: the way that the test above looks for imports does notice one."""
    code = WITHOUT_WORKBENCH.replace("{names!r}", "[]") + "\nimport workbench\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert "workbench is not on Databricks" in done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_imports_the_library_and_its_example_alone(notebook):
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name).partition(".")[0]
        for node in ast.walk(ast.parse(notebook.read_text("utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    # A tutorial shows plain Spark first.
    plain = {"pyspark"} if notebook.parent.name == "tutorials" else set()
    assert imported <= {"topiclake", "topiclake_examples"} | plain | set(sys.stdlib_module_names)


def test_the_documented_lines_of_the_clusters_configuration_are_those_that_are_checked():
    page = (PROJECT / "docs" / "databricks.md").read_text()
    for part in ("driver", "executor"):
        assert f"spark.{part}.extraJavaOptions {jvm_options()}\n" in page
    for setting, pattern in REDACTION_CONF.items():
        assert f"{setting} {pattern}\n" in page


def test_the_quickstart_begins_with_an_installation_and_a_restart():
    page = (PROJECT / "docs" / "databricks.md").read_text()
    quickstart = page.partition("## Databricks in ten minutes")[2].partition("\n## ")[0]
    first, *others = re.findall(r"```python\n(.*?)```", quickstart, re.DOTALL)
    install, restart = (line.strip() for line in first.strip().splitlines())
    assert install.startswith("%pip install /Volumes/")
    assert install.endswith(".whl")
    assert restart == "dbutils.library.restartPython()"
    assert len(others) == 2
    for cell in others:
        ast.parse(textwrap.dedent(cell))


@pytest.mark.parametrize("pipeline", pipeline_names(PROJECT / "conf"))
def test_a_volume_has_no_table_of_a_pipeline(pipeline):
    settings = load_settings(pipeline, {"env": "databricks"}, conf=PROJECT / "conf")
    assert mount.resolve(settings.storage, settings.pipeline.checkpoint_path).startswith("/Volumes/")
    if pipeline == "taxi":
        # It has Parquet files.
        assert mount.resolve(settings.storage, settings.pipeline.location).startswith("/Volumes/")
    elif pipeline == "shop":
        # Its topics have dots.
        with pytest.raises(StorageError):
            mount.resolve_table(settings.storage, settings.pipeline.location)
    else:
        assert mount.resolve_table(settings.storage, settings.pipeline.location).startswith("main.topiclake.")


TASKS = [(job, task) for job in load_bundle(PROJECT).jobs.values() for task in job.tasks]


@pytest.mark.parametrize(("job", "task"), TASKS, ids=[f"{job.name}.{task.task_key}" for job, task in TASKS])
def test_a_task_gets_all_parameters_of_its_job_and_takes_its_own(job, task, laptop, monkeypatch):
    for variable, value in {
        "WORKBENCH_KAFKA": "localhost:1",
        "WORKBENCH_SCHEMA_REGISTRY": "http://localhost:2",
        "WORKBENCH_DATALAKE": "file:///tmp/lake",
    }.items():
        monkeypatch.setenv(variable, value)
    notebook = Path(task.notebook_task.notebook_path)
    pushed = task.notebook_task.base_parameters | job.defaults | {"of_another_task": "3"}
    dbutils = databricks_stand_in.DBUtils(pushed)
    assert dbutils.widgets.getAll() == pushed
    (cell,) = (one for one in databricks_stand_in.cells_of(notebook) if "notebook_settings(" in one)
    statements = ast.parse(cell).body
    last = next(at for at, one in enumerate(statements) if "notebook_settings(" in ast.unparse(one))
    monkeypatch.chdir(notebook.parent)
    names = {"dbutils": dbutils}
    exec(ast.unparse(statements[: last + 1]), names)
    settings = names["settings"]
    assert settings.env == "local"
    if pushed.get("topic"):
        assert settings.pipeline.topic == pushed["topic"]


def test_the_stand_in_runs_a_jupyter_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# Text"]},
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": ["%pip install topiclake"]},
        {
            "cell_type": "code",
            "metadata": {},
            "outputs": [],
            "source": [
                "dbutils.widgets.text('topic', '')\n",
                "dbutils.notebook.exit(dbutils.widgets.get('topic'))",
            ],
        },
    ]
    notebook = tmp_path / "small.ipynb"
    notebook.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}))
    result = databricks_stand_in.run(notebook, {"topic": "gps", "devices": "3"}, None)
    assert result == {"exit": "gps", "displayed": 0}


def session_with(settings):
    return SimpleNamespace(conf=SimpleNamespace(get=lambda key, default: settings.get(key, default)))


def test_a_session_that_hides_secrets_is_accepted(databricks):
    session.require_redaction(session_with(REDACTION_CONF))
    wider = {key: f"(?i)url|{pattern.removeprefix('(?i)')}" for key, pattern in REDACTION_CONF.items()}
    session.require_redaction(session_with(wider))


@pytest.mark.parametrize(
    ("key", "pattern"),
    [
        ("spark.redaction.regex", None),
        # Spark's own default hides neither the account keys of Azure nor Kafka's login.
        ("spark.redaction.regex", "(?i)secret|password|token|access[.]?key"),
        ("spark.sql.redaction.options.regex", "(?i)url"),
        ("spark.sql.redaction.options.regex", "(unfinished"),
        ("spark.sql.redaction.string.regex", None),
        ("spark.sql.redaction.string.regex", "dapi[0-9a-f]+"),
        ("spark.sql.redaction.string.regex", "(?<=LoginModule required )[^;]++"),
    ],
)
def test_a_session_that_would_show_a_secret_is_refused_with_what_to_set(databricks, key, pattern):
    with pytest.raises(PlatformError) as raised:
        session.require_redaction(session_with(REDACTION_CONF | {key: pattern}))
    assert raised.value.fields == {"settings": (key,)}
    assert raised.value.remedy.startswith(f"put into the cluster's Spark config: {key} {REDACTION_CONF[key]}")


@pytest.mark.parametrize("read", [streams.topic_records, tl.read_batch])
def test_no_topic_is_read_in_such_a_session(databricks, read):
    given = {"env": "databricks", "starting_offsets": "earliest"}
    settings = load_settings("gps", given, conf=PROJECT / "conf")
    with pytest.raises(PlatformError) as raised:
        read(session_with({}), settings)
    assert set(raised.value.fields["settings"]) == set(REDACTION_CONF)


def test_each_name_of_a_secret_has_its_part_of_the_pattern():
    """Each part of the pattern is needed for one of the names, so that the check notices its absence."""
    assert len(SECRET_NAMES) == len(set(SECRET_NAMES))
    plain = "(?i)secret|password|token|access[.]?key"
    assert [name for name in SECRET_NAMES if not re.search(plain, name)] == [
        "fs.azure.account.key.account.dfs.core.windows.net",
        "fs.azure.sas.container.account.blob.core.windows.net",
        "kafka.sasl.jaas.config",
        "kafka.ssl.keystore.key",
        "basic.auth.user.info",
    ]


@pytest.fixture
def serverless(monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "client.5.0")


def test_serverless_is_asked_for_no_setting_of_redaction(serverless):
    assert session.is_serverless()
    session.require_redaction(None)


def test_serverless_refuses_an_interval_as_trigger(serverless):
    queries.require_trigger("availableNow")
    with pytest.raises(ConfigError) as raised:
        queries.require_trigger("10 seconds")
    assert raised.value.fields == {"parameter": "trigger", "found": "10 seconds"}


def test_a_cluster_is_not_serverless(databricks):
    assert not session.is_serverless()
    queries.require_trigger("10 seconds")
