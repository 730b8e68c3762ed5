"""Processes, ports, Java versions and broker settings, without a JVM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.services.kafka import ConfiguredBroker
from tests.support.stand_in import stand_in
from tests.support.waiting import has_ended, wait_until
from topiclake.errors import PlatformError
from workbench.host import ports, processes
from workbench.host.home import Home, ProcessRecord, State
from workbench.host.java import OPTIONS_VARIABLE, Java, parse_version, require_java
from workbench.services.control import down, environment, status
from workbench.services.kafka_broker import KafkaBroker, properties_text
from workbench.services.schema_registry import SchemaRegistry
from workbench.services.service import Addresses

PROJECT = Path(__file__).parents[3]
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print(1, flush=True); time.sleep(60)",
]
#: Its first thread ends when its log has a line, its second one with the second line: a zombie in between.
#: After a test that failed, both end within five minutes.
SLOW_END = [
    sys.executable,
    "-c",
    "import ctypes, os, threading, time\n"
    "end = time.monotonic() + 300\n"
    "def wait(lines):\n"
    "    while os.fstat(1).st_size < lines and time.monotonic() < end: time.sleep(0.01)\n"
    "threading.Thread(target=lambda: (wait(2), os._exit(3))).start()\n"
    "wait(1)\n"
    "ctypes.CDLL(None).pthread_exit(None)",
]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home", PROJECT)
    home.prepare()
    return home


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """What a shell starts in the background ignores SIGINT, and so would the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def start(home: Home, command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process as the home's broker."""
    return processes.start(command, home.log("kafka"), home.folder, processes.marks(home, "kafka"))


def test_a_started_process_is_found_and_lives_in_its_own_session(home: Home) -> None:
    process = start(home, SLEEP)
    try:
        assert {name: found.pid for name, found in processes.running(home).items()} == {"kafka": process.pid}
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
    finally:
        processes.stop(processes.marked(home))
    assert processes.running(home) == {}


def test_a_child_of_a_service_is_stopped_with_it_and_is_no_service(home: Home) -> None:
    process = start(home, ["sh", "-c", "sleep 60 & echo started; wait"])
    wait_until(lambda: home.log("kafka").read_text())
    assert {name: found.pid for name, found in processes.running(home).items()} == {"kafka": process.pid}
    marked = processes.marked(home)
    assert len(marked) == 2
    assert down(home) == ["kafka"]
    assert processes.marked(home) == []


def test_a_child_with_a_separate_session_is_not_taken_for_the_service(home: Home) -> None:
    process = start(home, ["sh", "-c", "setsid sh -c 'echo started; exec sleep 60' & wait"])
    wait_until(lambda: home.log("kafka").read_text())
    assert sum(processes.session_of(found.pid) == found.pid for found in processes.marked(home)) == 2
    assert {name: found.pid for name, found in processes.running(home).items()} == {"kafka": process.pid}
    assert down(home) == ["kafka"]
    assert processes.marked(home) == []


def test_the_broker_ends_after_the_services_that_use_it(home: Home) -> None:
    broker = start(home, SLEEP)
    at_end = f"grep -q '^State:.[^Z]' /proc/{broker.pid}/status && echo with its broker; exit"
    command = ["sh", "-c", f'trap "{at_end}" TERM; echo started; while :; do sleep 0.05; done']
    log = home.log("kafka-connect")
    processes.start(command, log, home.folder, processes.marks(home, "kafka-connect"))
    wait_until(log.read_text)
    assert down(home) == ["kafka", "kafka-connect"]
    assert log.read_text().endswith("with its broker\n")


def test_ctrl_c_while_a_process_starts_waits_until_it_can_be_found(
    home: Home, monkeypatch: pytest.MonkeyPatch, heeds_ctrl_c: None
) -> None:
    started: list[int] = []

    def interrupted(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        signal.raise_signal(signal.SIGINT)
        process: subprocess.Popen[bytes] = real(*arguments, **options)  # type: ignore[call-overload]
        started.append(process.pid)
        return process

    real = subprocess.Popen
    monkeypatch.setattr(processes, "subprocess", stand_in(subprocess, Popen=interrupted))
    with pytest.raises(KeyboardInterrupt):
        start(home, SLEEP)
    assert [process.pid for process in processes.marked(home)] == started
    processes.stop(processes.marked(home))


def test_a_process_id_that_belongs_to_another_program_now_is_stale() -> None:
    mine = psutil.Process()
    assert processes.is_running(ProcessRecord(mine.pid, mine.create_time()))
    assert not processes.is_running(ProcessRecord(mine.pid, mine.create_time() - 60))


def test_a_process_that_was_killed_is_gone_though_its_parent_has_not_asked(home: Home) -> None:
    process = start(home, SLEEP)
    record = processes.record_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    # While it ends, the kernel has taken its environment already, and it is no zombie yet.
    wait_until(lambda: not processes.is_running(record))
    assert processes.running(home) == {}
    assert processes.exit_code(process) == -signal.SIGKILL


def test_the_exit_code_is_told_though_a_thread_outlives_the_first_one(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_LAST_THREADS_SECONDS", 60)
    process = start(home, SLOW_END)
    home.log("kafka").write_text("\n")
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    home.log("kafka").write_text("\n\n")
    assert processes.exit_code(process) == 3


def test_a_start_waits_for_a_killed_process_that_has_its_port_still(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(home, SLOW_END)
    home.log("kafka").write_text("\n")
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    assert processes.running(home) == {}
    processes.await_killed(seconds=0)
    assert process.poll() is None

    # It ends once somebody waits.
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: end()))

    def end() -> None:
        home.log("kafka").write_text("\n\n")
        process.wait()

    processes.await_killed(seconds=60)
    assert process.poll() == 3


def test_a_process_whose_parent_never_asks_for_its_exit_code_has_ended(home: Home) -> None:
    orphan = "import subprocess as s, time; print(s.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    parent = start(home, [sys.executable, "-c", orphan])
    wait_until(home.log("kafka").read_text)
    process = psutil.Process(int(home.log("kafka").read_text()))
    # It would be killed after an hour: the limit of a test is shorter.
    processes.stop([process], grace_seconds=3600)
    assert process.status() == psutil.STATUS_ZOMBIE
    processes.stop([psutil.Process(parent.pid)])


def test_a_process_that_ignores_sigterm_is_killed(home: Home) -> None:
    process = start(home, DEAF)
    while not home.log("kafka").read_text():
        time.sleep(0.01)
    processes.stop([psutil.Process(process.pid)], grace_seconds=0.2)
    assert has_ended(process.pid)


def test_down_ends_processes_that_only_their_mark_tells_of(home: Home) -> None:
    other_home = Home(home.folder.parent / "home2", PROJECT)
    other_home.prepare()
    marked, foreign = start(home, SLEEP), start(other_home, SLEEP)
    try:
        home.state_file.write_text('{"ports": {"kafka"')  # half-written
        assert down(home) == ["kafka"]
        assert has_ended(marked.pid)
        assert foreign.poll() is None
    finally:
        for process in (marked, foreign):
            process.kill()
            process.wait()


def test_a_recorded_process_that_is_gone_is_a_crash_with_the_last_error_line(home: Home) -> None:
    home.save(State(ports=dict.fromkeys(KafkaBroker.port_names, 1), processes=["kafka"]))
    home.log("kafka").write_text("INFO fine\nERROR disk is full\n\tat a.b.C\nINFO bye\n")
    kafka, registry = status(home)
    assert (kafka.state, kafka.detail) == ("crashed", "ERROR disk is full")
    assert registry.state == "stopped"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("INFO a\nERROR b\njava.lang.X: c\nCaused by: java.lang.Y: d\nERROR e", "Caused by: java.lang.Y: d"),
        ("ERROR b\njava.io.IOException: full\n\tat a.b\nINFO bye", "java.io.IOException: full"),
        (
            "Error: Could not create the Java Virtual Machine.\n",
            "Error: Could not create the Java Virtual Machine.",
        ),
        ("INFO ready\n", "no error in its log, which ends with: INFO ready"),
        ("", "its log is empty"),
    ],
)
def test_the_line_of_a_log_that_tells_most_is_found(tmp_path: Path, log: str, line: str) -> None:
    (tmp_path / "x.log").write_text(log)
    assert processes.last_error_line(tmp_path / "x.log") == line


def test_down_without_anything_started_makes_nothing(tmp_path: Path) -> None:
    assert down(Home(tmp_path / "none", PROJECT)) == []
    assert not (tmp_path / "none").exists()


def test_the_log_before_is_kept(home: Home) -> None:
    log = home.log("kafka")
    log.write_text("the crash")
    start(home, SLEEP)
    processes.stop(processes.marked(home))
    assert (home.logs / "kafka.previous.log").read_text() == "the crash"


def test_a_recorded_port_is_kept_while_it_is_free_and_left_when_it_is_taken() -> None:
    with socket.socket() as listener:
        listener.bind((ports.HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not ports.is_free(port)
        assert ports.answers(port)
        assert ports.choose(["kafka"], {"kafka": port})["kafka"] != port
    assert ports.is_free(port)
    assert not ports.answers(port)
    assert ports.choose(["kafka"], {"kafka": port}) == {"kafka": port}


def test_chosen_ports_differ_also_from_those_that_are_spoken_for() -> None:
    chosen = ports.choose(["a", "b", "c"], {"a": 20001, "b": 20001, "c": 20002}, avoid=[20002])
    assert len({*chosen.values(), 20002}) == 4


def test_a_chosen_port_is_none_that_an_outgoing_connection_may_be_given() -> None:
    chosen = ports.choose([str(one) for one in range(50)], {})
    assert len(set(chosen.values())) == 50
    assert max(chosen.values()) < 32768, "Linux begins here, others higher"


def test_a_machine_without_a_free_port_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda _: False)
    with pytest.raises(OSError, match="none of the ports 10000 to 32767"):
        ports.choose(["kafka"], {})


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', ("17.0.15", 17)),
        ('java version "1.8.0_402"\nJava(TM) SE', ("1.8.0_402", 8)),
        ('openjdk version "21" 2023-09-19 LTS', ("21", 21)),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.22" 2024-01-16', ("11.0.22", 11)),
        ('openjdk version "25-ea" 2025-09-16', ("25-ea", 25)),
        ("Error: could not open libjvm.so", None),
    ],
)
def test_the_version_is_read_from_what_java_prints(text: str, version: tuple[str, int] | None) -> None:
    assert parse_version(text) == version


def test_an_old_java_is_named_with_its_version_and_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = fake_java(tmp_path, "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PlatformError, match=r"; try: .*17") as raised:
        require_java()
    assert raised.value.fields == {
        "minimum": 17,
        "path": str(java),
        "found": "11.0.2",
        "reason": "too_old",
    }


def test_a_missing_java_is_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlatformError, match="on the PATH; try: apt-get install openjdk-17") as raised:
        require_java()
    assert raised.value.fields == {"minimum": 17, "reason": "missing"}


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "echo 'openjdk version \"18.0.1\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java().version == "18.0.1"


def test_settings_of_the_broker_can_be_added_and_replaced(home: Home) -> None:
    broker = ConfiguredBroker(home, {"log.retention.ms": "5", "extra": "x"}, security_protocol="SASL_SSL")
    settings = broker.settings({"kafka": 1, "kafka-internal": 2, "kafka-controller": 3})
    assert (settings["log.retention.ms"], settings["extra"]) == ("5", "x")
    assert "CLIENT:SASL_SSL" in settings["listener.security.protocol.map"]
    assert all(
        listener.split("://")[1].startswith("127.0.0.1:") for listener in settings["listeners"].split(",")
    )


@pytest.mark.parametrize("service", [KafkaBroker, SchemaRegistry])
def test_services_start_with_the_java_options_of_the_environment(
    home: Home, monkeypatch: pytest.MonkeyPatch, service: type[KafkaBroker | SchemaRegistry]
) -> None:
    monkeypatch.setenv(OPTIONS_VARIABLE, "-Da=1 '-Db=2 3'")
    command = service(home).command(Java(Path("java"), "17"), dict.fromkeys(service.port_names, 1))
    assert command.index("-Db=2 3") == command.index("-Da=1") + 1


def test_a_setting_with_backslash_and_umlaut_survives_java_properties() -> None:
    assert properties_text({"a": "C:\\ü😀"}) == "a=C:\\\\\\u00fc\\ud83d\\ude00\n"


def test_passwords_in_settings_are_not_in_the_text_of_a_broker(home: Home) -> None:
    broker = ConfiguredBroker(home, {"sasl.jaas.config": "s3cret"}, client_config={"sasl.password": "s3cret"})
    assert "s3cret" not in repr(broker)


def test_the_environment_of_the_addresses_names_all_four(tmp_path: Path) -> None:
    found = Addresses(tmp_path, "127.0.0.1:1", "http://127.0.0.1:2/apis/ccompat/v7", tmp_path / "data lake")
    assert found.environment() == {
        "WORKBENCH_HOME": str(tmp_path),
        "WORKBENCH_KAFKA": "127.0.0.1:1",
        "WORKBENCH_SCHEMA_REGISTRY": "http://127.0.0.1:2/apis/ccompat/v7",
        "WORKBENCH_DATALAKE": f"file://{tmp_path}/data%20lake",
    }


def test_without_services_the_environment_has_the_folder_of_tables(home: Home, monkeypatch) -> None:
    for name in ("WORKBENCH_KAFKA", "WORKBENCH_DATALAKE"):
        monkeypatch.delenv(name, raising=False)
    found = environment(home)
    assert found["WORKBENCH_DATALAKE"] == home.datalake.as_uri()
    assert "WORKBENCH_KAFKA" not in found


def fake_java(folder: Path, script: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java
