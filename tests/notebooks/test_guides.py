"""The commands of the guides in docs/ run as they are written."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import yaml

from tests.support.orders_topic import PROJECT, UserProject, page_commands, send_by_confluent_kafka
from tests.support.pages import page_blocks
from workbench.host.home import Home
from workbench.services import control as services

pytestmark = [
    pytest.mark.thorough("plan, ingest, audit, show and quarantine have tests in make test"),
    pytest.mark.slow("twenty runs of notebooks"),
    pytest.mark.timeout(1800),
]


@pytest.fixture
def project(embedded, warm_jvm, tmp_path, monkeypatch):
    return user_project(tmp_path, embedded[1].environment() | warm_jvm.environment(), monkeypatch)


@pytest.fixture
def project_with_services(warm_jvm, tmp_path, monkeypatch):
    """A project whose services a command of a page may stop."""
    home = Home(tmp_path / "home", PROJECT)
    variables = services.up(home).environment()
    yield user_project(tmp_path / "project", variables | warm_jvm.environment(), monkeypatch)
    services.down(home)


def user_project(folder: Path, variables: Mapping[str, str], monkeypatch) -> UserProject:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    project = UserProject(folder, variables)
    # The environments of the pages are the local one here.
    for name in ("prod", "shop"):
        shutil.copy(folder / "conf" / "local.yaml", folder / "conf" / f"{name}.yaml")
    return project


def succeed(project: UserProject, commands: Iterable[str]) -> str:
    """Run commands, and return the output of the last one; 2 is the code of a plan that finds changes."""
    output = ""
    for command in commands:
        done = project.run(command)
        assert done.returncode in ((0, 2) if " plan " in command else (0,)), f"{command}\n{done.stderr}"
        output = done.stdout
    return output


def test_audit_replay_environment_and_resume(project):
    topic = "guides.orders"
    send_by_confluent_kafka(topic)
    succeed(project, [f"topiclake init orders --topic {topic} --into ./lake", "topiclake ingest orders"])
    succeed(project, page_commands(topic, "audit.md"))
    assert "unknown_schema_id" in succeed(project, page_commands(topic, "replay.md")[:2])
    succeed(project, page_commands(topic, "replay.md")[2:])
    succeed(project, [line for line in page_commands(topic, "environments.md") if " job " not in line])
    succeed(project, [line for line in page_commands(topic, "secrets.md") if line.startswith("topiclake ")])

    plan, resume, audit, restart = page_commands(topic, "resume.md")
    lose_checkpoint(project)
    refused = project.run("topiclake ingest orders")
    assert refused.returncode == 1
    assert "resume=table" in refused.stderr
    succeed(project, [resume, audit, plan])
    lose_checkpoint(project)
    # The topic of the page has two partitions.
    succeed(project, [restart.replace('{"0": 23, "1": 40}', '{"0": 0, "1": 1, "2": 2}'), audit])


def lose_checkpoint(project: UserProject) -> None:
    (checkpoint,) = (project.folder / "lake").glob("_checkpoints/orders*")
    checkpoint.rename(project.folder / f"lost-{time.monotonic_ns()}")


def test_jobs_target_and_upgrade(project_with_services):
    project = project_with_services
    topic = "jobs.orders"
    send_by_confluent_kafka(topic)
    succeed(project, [f"topiclake init orders --topic {topic} --into ./lake"])
    (job,) = (
        text for text in page_blocks("jobs.md", "yaml") if text.startswith("# conf/jobs/orders.job.yml\n")
    )
    (project.folder / "conf" / "jobs" / "orders.job.yml").write_text(job)
    _, target = page_blocks("environments.md", "yaml")
    bundle = project.folder / "databricks.yml"
    content = yaml.safe_load(bundle.read_text())
    content["targets"] |= yaml.safe_load(target)["targets"]
    bundle.write_text(yaml.safe_dump(content, sort_keys=False))

    *jobs, history = page_commands(topic, "jobs.md")
    succeed(project, jobs)
    assert "SUCCESS" in succeed(project, [history])
    succeed(project, [line for line in page_commands(topic, "environments.md") if " job " in line])
    succeed(project, page_commands(topic, "upgrade.md"))
    assert "✗" not in succeed(project, ["topiclake audit orders"])


def test_several_topics(project):
    for topic in ("shop.orders", "shop.returns"):
        send_by_confluent_kafka(topic)
    text, *_ = page_blocks("several-topics.md", "yaml")
    assert text.startswith("# conf/pipelines/shop.yaml\n")
    (project.folder / "conf" / "pipelines" / "shop.yaml").write_text(text)
    plan, ingest, *others = page_commands("shop.orders", "several-topics.md")
    succeed(project, [plan])
    assert "40 in this run" in succeed(project, [ingest])
    assert "unknown_schema_id" in succeed(project, others)
