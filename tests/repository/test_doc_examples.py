"""The examples of the pages are right: their configuration loads, their commands and names exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
import yaml

import topiclake as tl
from tests.support.pages import PAGES, page_blocks
from topiclake.config.load import load_settings
from topiclake.config.notebook import KEYS
from topiclake.config.settings import Settings
from topiclake.errors import ConfigError
from workbench.commands.cli import cli
from workbench.commands.job import check_job_parameters, job
from workbench.dbutils.secrets import Secrets
from workbench.host.parameters import parse_parameters
from workbench.host.redaction import Redactor
from workbench.jobs.bundle import load_bundle
from workbench.notebook.files import read_notebook
from workbench.notebook.parameters import check_parameters

PROJECT = Path(__file__).parents[2]
#: Pages whose blocks of commands and of Python are executed, and the test that does it.
EXECUTED = {
    "README.md": "tests/docs/test_readme.py",
    "audit.md": "tests/notebooks/test_guides.py",
    "changes.md": "tests/docs/test_docstrings.py",
    "environments.md": "tests/notebooks/test_guides.py",
    "jobs.md": "tests/notebooks/test_guides.py",
    "own_sinks.md": "tests/docs/test_docstrings.py",
    "replay.md": "tests/notebooks/test_guides.py",
    "resume.md": "tests/notebooks/test_guides.py",
    "several-topics.md": "tests/notebooks/test_guides.py",
    "transforms.md": "tests/docs/test_docstrings.py",
    "upgrade.md": "tests/notebooks/test_guides.py",
    "your-topic.md": "tests/notebooks/test_guides.py",
}
#: Blocks of other pages, by their first line: the test of the same, or the reason that no test executes it.
OTHER_BLOCKS = {
    (
        "change-data-source.md",
        "python -m workbench up --with postgres",
    ): "tests/integration/workbench/test_postgres.py",
    ("change-data-source.md", "import os"): "tests/integration/workbench/test_postgres.py",
    (
        "change-data-source.md",
        "python -m workbench job run cdc_orders -p statements=2000",
    ): "tests/notebooks/test_shop.py",
    (
        "change-data-source.md",
        "from workbench.host.home import Home",
    ): "tests/integration/workbench/test_postgres.py",
    ("databricks.md", "make wheel"): "it needs Databricks",
    ("databricks.md", "databricks secrets create-scope topiclake"): "it needs Databricks",
    ("databricks.md", "databricks bundle validate -t dev"): "it needs Databricks",
    ("databricks.md", "databricks bundle schema > bundle.json"): "it needs Databricks' command line",
    ("databricks.md", "CREATE SCHEMA IF NOT EXISTS main.topiclake;"): "it needs Unity Catalog",
    (
        "databricks.md",
        "%pip install /Volumes/main/topiclake/lake/topiclake-0.2.0-py3-none-any.whl",
    ): "it needs Databricks",
    ("databricks.md", "import topiclake as tl"): "tests/notebooks/test_databricks.py",
    ("databricks.md", "display(tl.create_view(spark, settings))"): "tests/notebooks/test_databricks.py",
    ("demo.md", "make demo"): "tests/docs/test_readme.py",
    ("demo.md", "python -m workbench dashboard"): "tests/notebooks/test_dashboard.py",
    (
        "installation.md",
        "pip install 'dist/topiclake-0.2.0-py3-none-any.whl[workbench]'",
    ): "tests/integration/workbench/test_wheel.py",
    (
        "installation.md",
        "export WORKBENCH_IVY_SETTINGS=$HOME/ivysettings.xml",
    ): "tests/integration/workbench/test_jars.py",
    (
        "kafka.md",
        "python -m workbench consume wikimedia.processed --avro --from-beginning --max-messages 3",
    ): "tests/integration/workbench/test_console_consumer.py",
    ("kafka.md", "@topiclake.deserializer"): "tests/spark/formats/test_deserializers.py",
    ("kafka.md", "query = tl.start_restarted("): "tests/integration/examples/test_wikimedia.py",
    (
        "kubernetes.md",
        "docker build --file deploy/spark/Dockerfile --tag topiclake-spark:4.1.1 .",
    ): "it needs Docker",
    ("kubernetes.md", "kubectl create namespace topiclake"): "it needs Kubernetes",
    ("kubernetes.md", "kubectl apply -f deploy/kubernetes/nyc-avro-topic.yaml"): "it needs Kubernetes",
    (
        "monitoring.md",
        "python -m workbench dashboard --port 8765",
    ): "tests/integration/monitoring/test_prometheus.py",
    ("monitoring.md", "python -m workbench dashboard"): "tests/notebooks/test_dashboard.py",
    ("notebooks.md", "for query in spark.streams.active:"): "tests/notebooks/test_lab.py",
    ("notebooks.md", "import topiclake as tl"): "tests/notebooks/test_databricks.py",
    (
        "scale.md",
        "python -m bench.scale --records 2000000 --batch-rows 1000000 --rounds 2",
    ): "a figure needs two million records",
    (
        "scale.md",
        'python -m bench.scale --records 112000000 --batch-rows 14000000 --rounds 1 --sides "2 workers"',
    ): "a figure needs 112 million records",
    ("secrets.md", "mkdir -p conf/secrets/shop"): "tests/repository/test_doc_examples.py",
    ("secrets.md", "topiclake plan orders -p env=shop"): "tests/notebooks/test_guides.py",
    ("sinks.md", "sinks = {"): "tests/integration/sinks/test_sinks.py",
    ("sinks.md", 'windows = isp.hit_windows(watermark="10 minutes")'): "tests/integration/sinks/test_late.py",
    (
        "sinks.md",
        "per_zip = isp.hits_per_zip(tl.read_values(spark, settings))",
    ): "tests/integration/sinks/test_jdbc.py",
    (
        "storage.md",
        "python -m workbench up --with s3 --with azure",
    ): "tests/integration/storage/test_stores.py",
    ("tables.md", "export WORKBENCH_CATALOG=hive"): "tests/integration/ingest/test_named_tables.py",
    (
        "tables.md",
        "CREATE TABLE lake.raw.gps USING delta LOCATION 'abfss://raw@account.dfs.core.windows.net/gps';",
    ): "it needs Unity Catalog",
}
NAMES = ("topiclake ", "python -m workbench ")
#: Commands that run a notebook of a pipeline; each key of the pipeline is a parameter.
OF_PIPELINE = {"audit", "consume", "ingest", "plan", "quarantine", "show"}
PIPELINE = {"topic": "t", "view": "t", "table_path": "/mnt/datalake/t", "checkpoint_path": "/mnt/datalake/c"}
BASE = {
    "kafka": {"bootstrap_servers": "broker:9092"},
    "schema_registry": {"url": "https://registry"},
    "storage": {"source": "file:///lake", "mount_point": "/mnt/datalake"},
}


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Yield the page and the text of each fenced block."""
    for page in PAGES:
        for block in page_blocks(page, language):
            yield page.name, block


def commands() -> Iterator[tuple[str, str]]:
    """Yield the page and each command of Topiclake in fenced blocks, and in indented ones."""
    indented = [
        (page.name, line)
        for page in PAGES
        for line in re.findall(r"^    (\w(?:.*\\\n)*.*)$", page.read_text("utf-8"), re.MULTILINE)
    ]
    for page, block in [*blocks("bash"), *indented]:
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith(NAMES):
                yield page, line


def commands_in_sentences() -> Iterator[tuple[str, str]]:
    """Yield the page and each command between backticks, except forms with optional parts."""
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for line in re.findall(rf"`((?:{'|'.join(NAMES)})[^`\[\n]+)`", text):
            yield page.name, line


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the notebooks of this one and of the pages, as the working directory."""
    shutil.copytree(PROJECT / "notebooks", tmp_path / "notebooks")
    for _, block in blocks("python"):
        if block.startswith("# Databricks notebook source\n"):
            (name,) = re.findall(r'pipeline="(\w+)"', block)
            (tmp_path / "notebooks" / f"{name}.py").write_text(block)
    (tmp_path / "conf" / "pipelines").mkdir(parents=True)
    (tmp_path / "conf" / "jobs").mkdir()
    shutil.copy(PROJECT / "databricks.yml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(project: Path, text: str) -> None:
    """Load the text of a page as the file that its keys belong to."""
    content, conf = yaml.safe_load(text), project / "conf"
    if "targets" in content:
        shutil.copy(PROJECT / "conf" / "jobs" / "ingest.job.yml", conf / "jobs")
        root = yaml.safe_load((project / "databricks.yml").read_text())
        root["targets"] |= content["targets"]
        (project / "databricks.yml").write_text(yaml.safe_dump(root))
        (target,) = content["targets"]
        load_bundle(project, target)
    elif "resources" in content:
        (conf / "jobs" / "page.job.yml").write_text(text)
        load_bundle(project)
    else:
        is_pipeline = not content.keys() & Settings.model_fields.keys()
        (name,) = content.get("pipelines", ["page"])
        pipeline = PIPELINE | content if is_pipeline else PIPELINE
        if "table" in pipeline:
            del pipeline["table_path"]
        (conf / "base.yaml").write_text(yaml.safe_dump(BASE))
        (conf / "pipelines" / f"{name}.yaml").write_text(yaml.safe_dump(pipeline))
        (conf / "page.yaml").write_text("" if is_pipeline else text)
        load_settings(name, {"env": "page"}, conf=conf)


def parse(line: str) -> None:
    """Read a command as the command line does, and check its parameters; do not run it."""
    words = shlex.split(line, comments=True)
    words = words[1:] if words[0] == "topiclake" else words[3:]
    command: click.Command = cli
    name, above = None, None
    while isinstance(command, click.Group):
        if not words:
            return
        # click remembers the help option of a command, whose names are the outermost group's.
        above = click.Context(command, above, **command.context_settings)
        name, found, words = command.resolve_command(above, words)
        assert found is not None
        command = found
    given = command.make_context(name, list(words), above).params
    parameters = parse_parameters(given.get("assignments", ()))
    if name in OF_PIPELINE and not parameters.keys() <= KEYS | {"env"}:
        raise click.UsageError(f"{line}: no key of a pipeline")
    if isinstance(given.get("notebook"), Path):
        check_parameters(read_notebook(given["notebook"]), parameters)
    if command is job.commands["run"] and given["key"] in (jobs := load_bundle(PROJECT).jobs):
        check_job_parameters(given["key"], jobs[given["key"]], parameters)


@pytest.mark.parametrize(("page", "text"), [*blocks("yaml")])
def test_the_configuration_of_a_page_loads(project, monkeypatch, page, text):
    for name in re.findall(r"\$\{([A-Z_]+)\}", text):
        monkeypatch.setenv(name, "value")
    load(project, text)


@pytest.mark.parametrize(
    "text",
    [
        "kafka: {bootstrap_server: b}",
        "topic: orders\nmod: FAILFAST",
        "topic: a,b",
        "targets: {prod: {variables: {environment: prod}}}",
        "resources: {jobs: {a: {task: []}}}",
    ],
)
def test_a_wrong_configuration_is_found(project, text):
    with pytest.raises(ConfigError):
        load(project, text)


@pytest.mark.parametrize(("page", "line"), [*commands()])
def test_a_command_of_a_page_exists_with_its_options_and_parameters(project, page, line):
    parse(line)


@pytest.mark.parametrize(("page", "line"), [*commands_in_sentences()])
def test_a_command_in_a_sentence_exists_with_its_options_and_parameters(project, page, line):
    # A sentence may name a command without its arguments.
    with suppress(click.MissingParameter):
        parse(line)


@pytest.mark.parametrize(
    "line",
    [
        "topiclake ingets orders",
        "topiclake plan orders --jsno",
        "topiclake plan",
        "topiclake plan orders -p tombstone=skip",
        "python -m workbench job runs ingest",
        "python -m workbench job run ingest -p topic=orders",
        "python -m workbench run notebooks/none.py",
        "python -m workbench run notebooks/gps_query.py -p versoin=1",
    ],
)
def test_a_wrong_command_is_found(project, line):
    with pytest.raises((click.UsageError, ConfigError)):
        parse(line)


def test_each_block_is_executed_or_has_a_reason():
    others = {
        (page, block.splitlines()[0])
        for language in ("bash", "python", "sql")
        for page, block in blocks(language)
        if page not in EXECUTED
    }
    assert others == OTHER_BLOCKS.keys()
    tests = {*EXECUTED.values(), *(text for text in OTHER_BLOCKS.values() if text.startswith("tests/"))}
    assert [name for name in tests if not (PROJECT / name.partition("::")[0]).is_file()] == []


def test_each_kind_of_example_is_read():
    assert {"jobs.md", "environments.md", "several-topics.md"} <= {page for page, _ in blocks("yaml")}
    assert {"README.md", "resume.md", "your-topic.md"} <= {page for page, _ in commands()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_name_of_the_library_in_a_page_is_public(page):
    used = re.findall(r"\btl\.(\w+)", page.read_text("utf-8"))
    assert sorted(set(used) - set(tl.__all__)) == []


def test_a_secret_is_stored_as_the_page_says(tmp_path):
    (block,) = (text for page, text in blocks("bash") if page == "secrets.md" and "password" in text)
    subprocess.run(["bash", "-eu", "-c", block], cwd=tmp_path, input="a b\\c\n", text=True, check=True)
    assert Secrets(tmp_path / "conf", Redactor()).get("shop", "kafka-password") == "a b\\c"
