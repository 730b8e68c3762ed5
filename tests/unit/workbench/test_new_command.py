"""`topiclake new` writes a package that works, or nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from topiclake.errors import ConfigError, StorageError
from workbench.commands.cli import main
from workbench.commands.new import EXAMPLES, create_package, own_pipeline
from workbench.host.home import Home
from workbench.jobs.bundle_model import Job
from workbench.notebook.files import read_notebook
from workbench.notebook.parameters import widget_names

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def home(tmp_path) -> Home:
    (tmp_path / "conf" / "pipelines").mkdir(parents=True)
    (tmp_path / "conf" / "base.yaml").write_text("")
    (tmp_path / "conf" / "pipelines" / "orders.yaml").write_text("topic: orders\n")
    return Home(tmp_path / "home", tmp_path)


def files(home):
    return sorted(
        path.relative_to(home.project).as_posix() for path in home.project.rglob("*") if path.is_file()
    )


def test_a_package_has_a_transform_a_notebook_a_job_and_a_test(home):
    before = files(home)
    written = create_package(home, "my_orders", "orders")
    assert sorted({*files(home)} - {*before}) == [
        "conf/jobs/my_orders.job.yml",
        "notebooks/my_orders_ingest.py",
        "pyproject.toml",
        "src/my_orders/__init__.py",
        "src/my_orders/rows.py",
        "tests/test_my_orders.py",
    ]
    texts = [path.read_text("utf-8") for path in written]
    assert not any("$package" in text or "$pipeline" in text for text in texts)
    for path in written:
        if path.suffix == ".py":
            compile(path.read_text("utf-8"), path.name, "exec")
    notebook = read_notebook(home.project / "notebooks" / "my_orders_ingest.py")
    assert widget_names(notebook) == {"env", "topic", "trigger", "storage", "table_path", "checkpoint_path"}
    job = yaml.safe_load((home.project / "conf" / "jobs" / "my_orders.job.yml").read_text("utf-8"))
    Job.model_validate(job["resources"]["jobs"]["my_orders"])


@pytest.mark.parametrize(
    ("package", "pipeline", "sentence"),
    [
        ("my-orders", "orders", "'my-orders' cannot be a package's name"),
        ("class", "orders", "'class' cannot be a package's name"),
        ("my_orders", "gps", "pipeline 'gps' is not in .*conf; there are: orders"),
        ("pyspark", "orders", "the name pyspark is taken: a package of this Python has it"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(home, package, pipeline, sentence):
    before = files(home)
    with pytest.raises(ConfigError, match=sentence):
        create_package(home, package, pipeline)
    assert files(home) == before


def test_the_name_of_a_notebook_is_refused_since_it_would_hide_the_package(home):
    notebook = home.project / "notebooks" / "plan.py"
    notebook.parent.mkdir()
    notebook.touch()
    before = files(home)
    with pytest.raises(ConfigError, match=f"the name plan is taken: {notebook}"):
        create_package(home, "plan", "orders")
    assert files(home) == before


def test_without_a_name_the_only_pipeline_that_is_no_example_is_used(home):
    pipelines = home.project / "conf" / "pipelines"
    (pipelines / "gps.yaml").write_text("topic: gps\n")
    assert own_pipeline(home) == "orders"
    (pipelines / "hits.yaml").write_text("topic: hits\n")
    with pytest.raises(ConfigError) as raised:
        own_pipeline(home)
    assert raised.value.fields == {"reason": "pipeline", "allowed": ("hits", "orders")}
    (pipelines / "hits.yaml").unlink()
    (pipelines / "orders.yaml").unlink()
    with pytest.raises(ConfigError, match="has none"):
        own_pipeline(home)


def test_the_examples_are_the_pipelines_of_the_project():
    listed = ["git", "ls-files", "conf/pipelines/*.yaml"]
    tracked = subprocess.run(listed, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    assert {Path(name).stem for name in tracked.split()} == EXAMPLES


def test_the_command_needs_no_pipeline_if_there_is_one(home, monkeypatch, capsys):
    monkeypatch.chdir(home.project)
    assert main(["new", "my_orders"]) == 0
    notebook = home.project / "notebooks" / "my_orders_ingest.py"
    assert "Pipeline orders" in notebook.read_text("utf-8")
    assert capsys.readouterr().out.splitlines()[-1] == f"next       topiclake run {notebook}"


def test_the_project_file_is_written_once_and_finds_all_packages(home):
    file = home.project / "pyproject.toml"
    assert file in create_package(home, "my_orders", "orders")
    text = file.read_text("utf-8")
    assert file not in create_package(home, "other", "orders")
    assert file.read_text("utf-8") == text
    built = ["-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", "dist", "."]
    subprocess.run([sys.executable, *built], cwd=home.project, check=True, capture_output=True)
    (wheel,) = (home.project / "dist").glob("my_orders-0.1.0-*.whl")
    assert {"my_orders/rows.py", "other/rows.py"} <= set(ZipFile(wheel).namelist())


def test_a_file_that_exists_stays(home):
    create_package(home, "my_orders", "orders")
    with pytest.raises(ConfigError, match=r"taken: .*src/my_orders/__init__\.py"):
        create_package(home, "my_orders", "orders")
    assert "def transform" in (home.project / "src" / "my_orders" / "rows.py").read_text("utf-8")


def test_a_folder_that_cannot_be_written_has_nothing_afterwards(home):
    Path(home.project / "tests").write_text("a file in the place of the folder")
    before = files(home)
    with pytest.raises(StorageError, match=r"test_my_orders\.py cannot be written"):
        create_package(home, "my_orders", "orders")
    assert files(home) == before
