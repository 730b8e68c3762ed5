"""Commands, doctor, logs and the demo's result, without a JVM."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from topiclake.errors import PlatformError, StorageError, TopiclakeError
from workbench.commands import cli, demo, doctor, logs
from workbench.commands.activity import Activity
from workbench.host import processes
from workbench.host.home import Home, State
from workbench.runner import run, runner
from workbench.services import control as services
from workbench.services.service import Addresses, ServiceStatus

PROJECT = Path(__file__).parents[3]
PUBLISHED: dict[str, Any] = {"topic": "gps", "records": 10, "devices": 2, "schema_id": 1}
INGESTED: dict[str, Any] = {
    "rows_written": 9,
    "quarantined": {"bad_magic": 1},
    "table": {"path": "/mnt/datalake/gps", "version": 3, "rows": 19},
    "quarantine": {"path": "/mnt/datalake/gps_quarantine", "rows": 1},
    "preview": [{"deviceId": "[a]", "speed": 1.5}],
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return Home.find()


def test_an_error_ends_in_one_line_on_stderr_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TopiclakeError("the disk is full", "make room")

    monkeypatch.setattr(services, "up", fail)
    assert cli.main(["up"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "✗ the disk is full; try: make room [TL-000]"


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("/dev/full", "No space left on device; try: free space"),
        ("/nowhere/x", "/nowhere/x: No such file or directory"),
    ],
)
def test_an_error_of_the_disk_is_one_sentence(
    path: str, cause: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "run_for_value", lambda *_: Path(path).write_text("x"))
    assert cli.main(["plan", "gps"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("✗ ")
    assert line.endswith(f"[{StorageError.id}]")
    assert cause in line


def test_ctrl_c_ends_with_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(services, "up", interrupt)
    assert cli.main(["up"]) == 130


def test_sigterm_is_taken_as_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        processes._interrupt(signal.SIGTERM, None)


@pytest.mark.parametrize("command", ["up", "demo"])
def test_no_java_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert cli.main([command]) == 1
    output = capsys.readouterr().err.splitlines()
    assert output[-1].startswith("✗ Java 17 or newer is needed, found none in JAVA_HOME")
    assert "openjdk-17" in output[-1]


def test_no_java_is_told_before_a_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "n.py").write_text("# Databricks notebook source\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert cli.main(["run", str(tmp_path / "n.py")]) == 1
    assert "Java 17 or newer is needed" in capsys.readouterr().err


def test_a_command_hands_its_mark_to_no_browser_that_it_opens(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in processes.marks(home, "dashboard").items():
        monkeypatch.setenv(name, value)
    assert cli.main(["status"]) == 0
    assert processes.HOME_MARK not in os.environ


def test_a_run_of_a_notebook_loads_nothing_that_only_other_commands_need() -> None:
    dear = {"IPython", "cryptography", "nbconvert", "psycopg", "pyspark", "workbench.commands.job"}
    modules = "workbench.commands.cli, workbench.runner.run, workbench.runner.runner"
    code = f"import sys, {modules}; print(sorted({dear} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_unknown_command_or_notebook_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["start"]) == 1
    assert cli.main(["run", "no_such_notebook.py"]) == 1
    assert "no_such_notebook.py" in capsys.readouterr().err


def test_parameters_are_split_at_the_first_equals_sign() -> None:
    assert cli.parse_parameters(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("given", [["a"], ["=1"], ["a=1", "a=2"]])
def test_a_wrong_parameter_is_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = [part for pair in given for part in ("-p", pair)]
    assert cli.main(["run", str(Path(__file__)), *options]) == 1
    assert repr(given[-1]) in capsys.readouterr().err


def test_status_names_a_crashed_service_with_its_log_and_exits_1(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status"]) == 0
    crash(home)
    assert cli.main(["status"]) == 1
    output = capsys.readouterr()
    assert f"✗ kafka has crashed: ERROR boom (log: {home.log('kafka')}); try: " in output.err
    assert "✗ kafka            crashed" in output.out


def test_reset_asks_and_deletes_nothing_without_a_yes(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(home)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert cli.main(["reset"]) == 1
    assert home.log("kafka").exists()
    output = capsys.readouterr().out
    assert str(home.folder) in output
    assert "datalake" in output
    assert cli.main(["reset", "--yes"]) == 0
    assert not home.folder.exists()


def test_logs_end_where_asked_and_name_their_service(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs"]) == 1
    assert "there is no log of kafka, schema-registry yet" in capsys.readouterr().err
    crash(home)
    assert cli.main(["logs", "kafka", "-n", "1"]) == 0
    assert capsys.readouterr().out == "ERROR boom\n"
    assert cli.main(["logs", "-n", "1"]) == 0
    assert capsys.readouterr().out == "kafka | ERROR boom\n"


def test_followed_logs_go_on_after_a_restart_replaced_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kafka.log"
    path.write_text("one\ntwo\nhal")
    lines = logs.read([path], 1, follow=True)
    assert next(lines) == "two"
    path.write_text("one\ntwo\nhalf\n")
    assert next(lines) == "half"
    path.replace(tmp_path / "old")
    path.write_text("new\n")
    assert next(lines) == "new"


def test_doctor_prints_json_and_exits_1_when_a_check_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = doctor.Check("java", False, "found none", "install it")
    good = doctor.Check("disk", True, "room")
    monkeypatch.setattr(doctor, "diagnose", lambda _: [good, bad])
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[1] == {
        "check": "java",
        "ok": False,
        "detail": "found none",
        "remedy": "install it",
    }
    assert cli.main(["doctor"]) == 1
    assert "✗ java             found none; try: install it" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "diagnose", lambda _: [good])
    assert cli.main(["doctor"]) == 0


def test_doctor_names_a_missing_jar(tmp_path: Path) -> None:
    own = [f"{name}/target/jars/topiclake-{name}-1.jar" for name in ("console", "store", "values")]
    fetched = "kafka/target/jars/kafka-clients-4.1.0.jar"
    for jar in (*own, fetched):
        (tmp_path / "jars" / jar).parent.mkdir(parents=True)
        (tmp_path / "jars" / jar).touch()
    (tmp_path / "jars" / "sha256sums").write_text(f"00ff  {fetched}\n")
    assert doctor.check_jars(tmp_path / "jars").ok
    for jar in (own[0], fetched):
        (tmp_path / "jars" / jar).unlink()
    absent = doctor.check_jars(tmp_path / "jars")
    assert not absent.ok
    assert absent.detail == f"missing: jars/{own[0]}, jars/{fetched}"
    assert absent.remedy == "make jars"


def test_doctor_lists_every_jar_of_the_project() -> None:
    names = {path.name for path in doctor.listed_jars(PROJECT / "jars")}
    assert {"spark-avro_2.13-4.1.1.jar", "avro-1.12.2.jar", "apicurio-registry-app-3.0.9-runner.jar"} <= names
    assert {path.name for path in PROJECT.glob("jars/*/target/jars/*.jar")} <= names
    assert all(path.is_file() for path in doctor.listed_jars(PROJECT / "jars"))


def test_doctor_names_a_package_of_another_version_and_a_missing_one(tmp_path: Path) -> None:
    pins = tmp_path / "requirements.txt"
    pins.write_text("# pinned\nclick==0.0.1\nno-such-package[extra]==1.0\n")
    found = doctor.check_packages(doctor.locked_packages(pins), "make setup")
    assert not found.ok
    assert "instead of 0.0.1" in found.detail
    assert "no-such-package is missing" in found.detail
    assert found.remedy == "make setup"


def test_doctor_reads_the_lock_of_a_clone_with_hashes_and_for_this_python_only(tmp_path: Path) -> None:
    pins = tmp_path / "requirements.txt"
    pins.write_text(
        "click==8.5.1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:ff\n"
        "exceptiongroup==1.3.0 ; python_version < '3.0' \\\n    --hash=sha256:00\n"
    )
    assert [str(package) for package in doctor.locked_packages(pins)] == ["click==8.5.1"]


def test_doctor_knows_what_the_wheel_needs_with_its_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.needed_packages()[1] == "make setup"
    monkeypatch.setattr(doctor, "clone", lambda: None)
    needed, remedy = doctor.needed_packages()
    assert remedy == "pip install 'topiclake[workbench]'"
    assert {"pydantic", "pyspark", "SQLAlchemy", "jupyterlab", "openlineage-python"} <= {
        package.name for package in needed
    }


def test_doctor_finds_too_little_memory_and_too_old_a_python() -> None:
    assert not doctor.check_memory(doctor.MEMORY_BYTES - 1).ok
    assert doctor.check_memory(doctor.MEMORY_BYTES).ok
    assert not doctor.check_python((3, 9, 18)).ok
    assert doctor.check_python((3, 10, 0)).ok


def test_doctor_finds_a_full_disk_and_a_folder_that_cannot_be_written(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert doctor.check_disk(home).ok
    monkeypatch.setattr(doctor, "DISK_BYTES", 1 << 62)
    assert not doctor.check_disk(home).ok
    (tmp_path / "file").touch()
    assert "cannot be written" in doctor.check_disk(Home(tmp_path / "file" / "x", PROJECT)).detail


def test_doctor_takes_stopped_services_as_right_and_crashed_ones_as_wrong(home: Home) -> None:
    assert [one.ok for one in doctor.check_services(home)] == [True, True]
    crash(home)
    kafka = doctor.check_services(home)[0]
    assert not kafka.ok
    assert "crashed: ERROR boom" in kafka.detail


def test_doctor_finds_a_running_service_that_does_not_answer(home: Home) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        ports = dict.fromkeys(services.default_services(home)[0].port_names, silent.getsockname()[1])
        home.prepare()
        home.save(State(ports=ports, processes=["kafka"]))
        processes.start(["sleep", "60"], home.log("kafka"), home.folder, processes.marks(home, "kafka"))
        try:
            assert not doctor.check_ports(home).ok
            assert not doctor.check_services(home)[0].ok
        finally:
            services.down(home)


def test_the_demo_of_a_project_without_its_notebooks_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "status", lambda *_: pytest.fail("looked at the services"))
    with pytest.raises(PlatformError, match=r"gps_publish\.py is missing; try: .* not below"):
        demo.run_demo(Home(tmp_path / "state", tmp_path), Activity())


def test_the_demo_is_right_when_every_record_arrived() -> None:
    assert demo.compare_counts(PUBLISHED, INGESTED, lambda: pytest.fail("asked")).ok


@pytest.mark.parametrize(("rows", "in_topic", "ok"), [(8, 20, False), (12, 20, True), (12, 23, False)])
def test_the_demo_is_wrong_when_counts_do_not_add_up(rows: int, in_topic: int, ok: bool) -> None:
    result = demo.compare_counts(PUBLISHED, INGESTED | {"rows_written": rows}, lambda: in_topic)
    assert result.ok is ok
    assert f"10 published, {rows + 1} arrived" in result.text


def test_the_summary_shows_counts_rows_and_the_page() -> None:
    text = io.StringIO()
    result = demo.compare_counts(PUBLISHED, INGESTED, lambda: 0)
    demo.print_summary(Console(file=text, width=120), PUBLISHED, INGESTED, "/runs/gps.html", result)
    for expected in ("10 to topic gps", "9 in this run", "19", "bad_magic: 1", "✓", "/runs/gps.html", "[a]"):
        assert expected in text.getvalue()


@pytest.mark.parametrize(("ran_before", "stopped"), [(True, False), (False, True)])
def test_the_demo_stops_only_services_that_it_started(
    home: Home, monkeypatch: pytest.MonkeyPatch, ran_before: bool, stopped: bool
) -> None:
    state = "running" if ran_before else "stopped"
    found = [ServiceStatus("kafka", state, "", home.log("kafka"))]  # type: ignore[arg-type]
    calls: list[str] = []
    monkeypatch.setattr(services, "status", lambda _: found)
    monkeypatch.setattr(services, "down", lambda *_: calls.append("down"))

    def up(*_: object) -> Addresses:
        calls.append("up")
        return Addresses(home.folder, "127.0.0.1:1", "http://127.0.0.1:2", home.datalake)

    def fail(*_: object) -> None:
        raise PlatformError("the notebook failed")

    monkeypatch.setattr(services, "up", up)
    monkeypatch.setattr(runner, "early_kernel", fail)
    assert cli.main(["demo"]) == 1
    assert calls == (["up", "down"] if stopped else ["up"])


def crash(home: Home) -> None:
    home.prepare()
    ports = dict.fromkeys(services.default_services(home)[0].port_names, 1)
    home.save(State(ports=ports, processes=["kafka"]))
    home.log("kafka").write_text("INFO fine\nERROR boom\n")
