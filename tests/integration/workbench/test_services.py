"""The real broker and registry: up, status, crash, up again, down, Ctrl-C, two homes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import requests
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from tests.services.kafka import ConfiguredBroker
from tests.support.waiting import wait_until
from topiclake.errors import KafkaError, PlatformError
from workbench.host import processes
from workbench.host.home import Home
from workbench.host.java import Java
from workbench.services.control import addresses, default_services, down, exported, start_services, status, up
from workbench.services.service import Addresses, Service
from workbench.services.spark_cluster import SparkMaster, SparkWorker

PROJECT = Path(__file__).parents[3]
SCHEMA = '{"type": "record", "name": "Event", "fields": [{"name": "x", "type": "int"}]}'


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "wörk bench", PROJECT)
    yield home
    down(home)
    assert processes.marked(home) == []


def test_a_master_and_its_worker_start_and_a_worker_that_is_gone_is_told(home: Home) -> None:
    master, worker = SparkMaster(home), SparkWorker(home, 1)
    started = start_services(home, [master, worker])
    assert started == {one.name: one.address(home.load().ports) for one in (master, worker)}
    properties = home.folder / "spark" / "cluster.properties"
    assert master.exports(home.load().ports) == {
        "WORKBENCH_SPARK_MASTER": started["spark-master"],
        "WORKBENCH_SPARK_PROPERTIES": str(properties),
    }
    assert stat.S_IMODE(properties.stat().st_mode) == 0o600
    secret = properties.read_text("utf-8").split()[-1]
    commands = [" ".join(one.cmdline()) for one in processes.marked(home)]
    assert [command for command in commands if "-Dspark.authenticate=true" not in command] == []
    assert [command for command in commands if secret in command] == []
    running = {one.name: (one.state, one.pid) for one in status(home, [master, worker])}
    assert {state for state, _ in running.values()} == {"running"}
    os.kill(running["spark-master"][1], signal.SIGKILL)
    wait_until(lambda: status(home, [master])[0].state == "crashed")
    (service,) = status(home, [worker])
    assert (service.state, service.detail.partition(":")[0]) == ("silent", "the master does not answer")


@pytest.mark.thorough("crashes of services are no part of a pipeline")
@pytest.mark.slow("broker and registry start twice")
def test_services_survive_a_crash_with_their_ports_records_and_schema_ids(home: Home) -> None:
    assert addresses(home) is None
    first = up(home)
    assert addresses(home) == first
    assert {one.state for one in status(home)} == {"running"}
    produce(first, "events", b"before")
    schema_id = register(first, "events-value", SCHEMA)

    for one in status(home):  # at once after the id was given out
        assert one.pid is not None
        os.kill(one.pid, signal.SIGKILL)
    done = run(home, "status")
    assert done.returncode == 1
    assert "✗ kafka has crashed" in done.stderr
    assert str(home.log("kafka")) in done.stderr
    assert "kafka" in run(home, "doctor").stdout

    second = up(home)
    assert second == first
    produce(second, "events", b"after", create=False)
    assert consume(second, "events", 2) == [b"before", b"after"]
    assert register(second, "events-value", SCHEMA) == schema_id
    assert register(second, "events-value", SCHEMA.replace('"x"', '"y"')) != schema_id
    assert_down_leaves_nothing(home)
    assert {one.state for one in status(home)} == {"stopped"}


def test_services_map_their_classes_speak_confluents_api_and_stay(embedded: tuple[Home, Addresses]) -> None:
    home, found = embedded
    default = default_services(home)
    pids = [one.pid for one in status(home, default)]
    for service, pid in zip(default, pids, strict=True):
        assert f"{service.class_archive}\n" in Path(f"/proc/{pid}/maps").read_text("utf-8")
    again = up(home)
    # The tests of this session may have started stores meanwhile.
    assert (again.kafka_bootstrap_servers, again.schema_registry_url) == (
        found.kafka_bootstrap_servers,
        found.schema_registry_url,
    )
    assert [one.pid for one in status(home, default)] == pids

    client = SchemaRegistryClient({"url": found.schema_registry_url})
    events, others = f"events-{uuid4()}-value", f"others-{uuid4()}-value"
    schema_id = register(found, events, SCHEMA)
    assert register(found, others, SCHEMA) == schema_id
    assert client.get_schema(schema_id).schema_str is not None
    assert client.get_versions(events) == [1]
    assert client.get_latest_version(events).schema_id == schema_id
    with pytest.raises(SchemaRegistryError) as caught:
        client.get_schema(99999)
    assert (caught.value.http_status_code, caught.value.error_code) == (404, 40403)
    answer = requests.get(f"{found.schema_registry_url}/subjects/none-value/versions", timeout=120)
    assert (answer.status_code, answer.json()["error_code"]) == (404, 40401)
    assert {events, others} <= set(client.get_subjects())


def test_variables_of_the_services_are_set_for_a_block(embedded: tuple[Home, Addresses], monkeypatch) -> None:
    home, found = embedded
    for name in found.environment():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORKBENCH_KAFKA", "another:9092")
    before = dict(os.environ)
    with exported(home):
        set_here = {name: value for name, value in os.environ.items() if name not in before}
        assert os.environ["WORKBENCH_KAFKA"] == "another:9092"
        assert set_here["WORKBENCH_SCHEMA_REGISTRY"] == found.schema_registry_url
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough("another signal"))]
)
def test_an_interrupted_start_leaves_no_process(home: Home, how: signal.Signals) -> None:
    command = [sys.executable, "-m", "workbench", "up"]
    with subprocess.Popen(command, env=environment(home), stderr=subprocess.PIPE, cwd=PROJECT) as starting:
        wait_for_a_process(home)
        starting.send_signal(how)
        assert starting.wait(120) == 130
    assert processes.marked(home) == []
    assert home.load().processes == []


@pytest.mark.thorough("crashes of services are no part of a pipeline")
def test_down_finds_what_a_killed_start_left(home: Home) -> None:
    command = [sys.executable, "-m", "workbench", "up"]
    with subprocess.Popen(command, env=environment(home), stderr=subprocess.PIPE, cwd=PROJECT) as starting:
        wait_for_a_process(home)
        starting.kill()
    assert processes.marked(home)
    assert_down_leaves_nothing(home)


def test_a_broker_that_cannot_start_is_named_with_its_exit_code_log_and_error(home: Home) -> None:
    broker = ConfiguredBroker(home, {"metric.reporters": "no.such.Reporter"})
    with pytest.raises(PlatformError) as caught:
        start_services(home, [broker])
    message = str(caught.value)
    assert "kafka ended with exit code 1 while it started" in message
    assert "no.such.Reporter" in message
    assert str(home.log("kafka")) in message
    assert message.endswith("try: python -m workbench logs kafka [TL-PLATFORM-001]")
    assert home.load().processes == []


#: Runs without the marks of a service for a while, as a process does between two programs.
HIDING = """
import json, os, sys, time
port, folder, variables = sys.argv[1:]
time.sleep(1)
command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", folder, port]
os.execve(sys.executable, command, json.loads(variables))
"""


@dataclass(frozen=True)
class HidingService(Service):
    """A server whose process has no environment for its first second."""

    name = "hiding"
    port_names = ("hiding",)

    def address(self, ports: Mapping[str, int]) -> str:
        return f"http://127.0.0.1:{ports['hiding']}"

    def command(self, java: Java, ports: Mapping[str, int]) -> list[str]:
        variables = os.environ | processes.marks(self.home, self.name)
        given = [str(ports["hiding"]), str(self.folder), json.dumps(variables)]
        return ["/usr/bin/env", "-i", sys.executable, "-c", HIDING, *given]

    def problem(self, ports: Mapping[str, int], seconds: float = 2.0) -> str | None:
        try:
            requests.get(self.address(ports), timeout=seconds).raise_for_status()
        except requests.RequestException as error:
            return str(error)
        return None


def test_a_service_that_executes_another_program_while_it_starts_is_waited_for(home: Home) -> None:
    service = HidingService(home)
    assert start_services(home, [service]) == {"hiding": service.address(home.load().ports)}
    assert set(processes.running(home)) == {"hiding"}


def test_a_setting_that_kafka_refuses_is_named(home: Home) -> None:
    with pytest.raises(KafkaError, match=r"log.retention.ms.*; try: python -m workbench logs kafka"):
        start_services(home, [ConfiguredBroker(home, {"log.retention.ms": "never"})])
    assert "log.retention.ms" in home.log("kafka").read_text()


def environment(home: Home) -> dict[str, str]:
    return os.environ | {"WORKBENCH_HOME": str(home.folder)}


def run(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "workbench", *arguments]
    return subprocess.run(
        command, env=environment(home), cwd=PROJECT, capture_output=True, text=True, check=False, timeout=240
    )


def wait_for_a_process(home: Home) -> None:
    wait_until(lambda: home.load().processes)


def assert_down_leaves_nothing(home: Home) -> None:
    started = processes.marked(home)
    assert started
    assert run(home, "down").returncode == 0
    assert processes.still_running(started, 0) == []


def bootstrap(found: Addresses) -> dict[str, str]:
    return {"bootstrap.servers": found.kafka_bootstrap_servers}


def produce(found: Addresses, topic: str, value: bytes, create: bool = True) -> None:
    if create:
        client = AdminClient(bootstrap(found))
        client.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
    producer = Producer(bootstrap(found))
    producer.produce(topic, value)
    assert producer.flush(120) == 0


def consume(found: Addresses, topic: str, count: int) -> list[bytes | None]:
    settings = {**bootstrap(found), "group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        return [message.value() for message in consumer.consume(count, timeout=120)]
    finally:
        consumer.close()


def register(found: Addresses, subject: str, schema: str) -> int:
    client = SchemaRegistryClient({"url": found.schema_registry_url})
    return int(client.register_schema(subject, Schema(schema, "AVRO")))
