"""The commands of the guides in docs/ run as they are written."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer

from tests.support.orders_topic import ORDERS, PROJECT, UserProject, page_commands, send_by_confluent_kafka
from tests.support.pages import page_blocks
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame
from workbench.host.home import Home
from workbench.services import control as services
from workbench.services.service import Addresses

pytestmark = [
    pytest.mark.thorough("plan, ingest, audit, show and quarantine have tests in make test"),
    pytest.mark.slow("thirty commands, most of which run a notebook"),
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


def send_order_of_a_later_schema(topic: str, addresses: Addresses) -> Callable[[], None]:
    """Send an order whose schema the registry gets only when the returned function is called."""
    registry = SchemaRegistry(addresses.schema_registry_url)
    later = registry.register(f"{topic}-probe", json.dumps({"type": "string", "doc": topic})) + 1
    producer = Producer({"bootstrap.servers": addresses.kafka_bootstrap_servers})
    # Avro's 7.
    producer.produce(topic, frame(later, b"\x0e"), partition=0)
    assert producer.flush(120) == 0

    def register() -> None:
        assert registry.register(f"{topic}-elsewhere", json.dumps(ORDERS[0] | {"doc": topic})) == later

    return register


def test_your_topic_audit_replay_environment_and_resume(project, embedded):
    topic = "guides.orders"
    send_by_confluent_kafka(topic)
    register = send_order_of_a_later_schema(topic, embedded[1])
    in_one_place = "each of the 26 records that Kafka holds is in exactly one place"

    init, plan, ingest, audit, reasons, show = page_commands(topic, "your-topic.md")
    begun = project.run(init)
    assert begun.returncode == 0, begun.stderr
    assert f"{topic}: 26 records in 3 partitions" in begun.stderr
    planned = project.run(plan)
    assert planned.returncode == 2, planned.stderr
    assert "ok: 20" in planned.stdout
    ingested = succeed(project, [ingest])
    assert "20 in this run" in ingested
    assert in_one_place in ingested
    assert in_one_place in succeed(project, [audit])
    assert "unknown_schema_id" in succeed(project, [reasons])
    assert "5 rows; the table has 20 records" in succeed(project, [show])
    assert (project.folder / "lake" / "orders" / "_delta_log").is_dir()

    same, as_json, record, rejected = page_commands(topic, "audit.md")
    assert same == audit.replace("topiclake", "python -m workbench")
    assert json.loads(succeed(project, [as_json]))["ok"]
    succeed(project, [record])
    rows = succeed(project, [rejected])
    found = {"bad_magic", "tombstone", "too_short", "unknown_schema_id"}
    assert {reason for reason in found if reason in rows} == found

    same, of_reason, *replays = page_commands(topic, "replay.md")
    assert same == reasons.replace("topiclake", "python -m workbench")
    assert "unknown_schema_id" in succeed(project, [of_reason])
    register()
    replayed, again = (succeed(project, [replay]) for replay in replays)
    assert "✓ 1 replayed, " in replayed
    assert "✓ 0 replayed, " in again
    counts = "SELECT/**/count(note)/**/AS/**/notes,count(*)/**/AS/**/rows_in_all/**/FROM/**/orders"
    grouped = succeed(project, [f"topiclake show orders --sql {counts} --json"])
    assert json.loads(grouped)["rows"] == [{"notes": 10, "rows_in_all": 21}]

    succeed(project, [line for line in page_commands(topic, "environments.md") if " job " not in line])
    succeed(project, [line for line in page_commands(topic, "secrets.md") if line.startswith("topiclake ")])

    same, resume, last, restart = page_commands(topic, "resume.md")
    assert (same, last) == (plan, audit)
    # There is nothing to do.
    assert project.run(plan).returncode == 0
    lose_checkpoint(project)
    refused = project.run(ingest)
    assert refused.returncode == 1
    assert "resume=table" in refused.stderr
    assert "`topiclake plan orders -p resume=table`" in (PROJECT / "docs" / "resume.md").read_text("utf-8")
    # All records are in the tables.
    assert project.run(f"{plan} -p resume=table").returncode == 0
    succeed(project, [resume])
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
    assert "is in exactly one place" in succeed(project, page_commands(topic, "upgrade.md"))


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
