"""Notifications: a log, and webhooks that may be away; and the values that `dbutils.jobs` keeps."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from workbench.jobs import notifications
from workbench.jobs.history import History
from workbench.jobs.notifications import end_event, notify, secret_address
from workbench.jobs.run_records import NewRun, Run
from workbench.jobs.store import Store

JOB = {
    "tasks": [{"task_key": "a", "notebook_task": {"notebook_path": "/n.py"}}],
    "webhook_notifications": {"on_failure": [{"id": "ops"}], "on_start": []},
}


class Receiver:
    """A server that keeps what it is sent, and answers by the path."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        received = self.received

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(int(self.path[1:4]))
                self.send_header("Location", "/200/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def url(self, status: int) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{status}/token"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    store = Store(tmp_path / "jobs.db")
    begun = store.begin(NewRun("j", json.dumps(JOB)))
    store.end(begun.id, "FAILED", "a not successful")
    return History(store).run(begun.id)


def logged(path: Path) -> dict[str, Any]:
    (line,) = path.read_text().splitlines()
    event: dict[str, Any] = json.loads(line)
    return event


def test_a_webhook_and_the_log_are_told_of_a_failure(run: Run, receiver: Receiver, tmp_path: Path) -> None:
    notify(run, "on_failure", tmp_path / "log", {"ops": receiver.url(200)}.__getitem__)
    (message,) = receiver.received
    assert message == {
        "event_type": "jobs.on_failure",
        "job": {"job_id": "j", "name": "j"},
        "run": {"run_id": 1, "state": "FAILED", "reason": "a not successful", "trigger": "manual"},
    }
    assert logged(tmp_path / "log")["failures"] == []


def test_other_events_go_to_the_log_only(run: Run, receiver: Receiver, tmp_path: Path) -> None:
    notify(run, "on_start", tmp_path / "log", {"ops": receiver.url(200)}.__getitem__)
    assert receiver.received == []
    assert logged(tmp_path / "log")["event_type"] == "jobs.on_start"


def test_a_webhook_that_fails_is_logged_without_its_address(
    run: Run, receiver: Receiver, tmp_path: Path, free_port: int
) -> None:
    notify(run, "on_failure", tmp_path / "a", {"ops": receiver.url(500)}.__getitem__)
    assert logged(tmp_path / "a")["failures"] == ["webhook ops: HTTP 500"]
    for status in (302, 307):
        receiver.received.clear()
        notify(run, "on_failure", tmp_path / f"{status}", {"ops": receiver.url(status)}.__getitem__)
        assert logged(tmp_path / f"{status}")["failures"] == [f"webhook ops: HTTP {status}"]
        assert len(receiver.received) == 1
    notify(run, "on_failure", tmp_path / "b", lambda _: f"http://127.0.0.1:{free_port}/token")
    assert logged(tmp_path / "b")["failures"] == ["webhook ops: ConnectionError"]
    assert "token" not in (tmp_path / "b").read_text()


def test_a_webhook_that_does_not_answer_holds_a_run_up_for_seconds_only(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    monkeypatch.setattr(notifications, "TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        notify(run, "on_failure", tmp_path / "log", lambda _: address)
    assert logged(tmp_path / "log")["failures"] == ["webhook ops: ReadTimeout"]


def test_an_address_is_a_secret_of_the_project(run: Run, receiver: Receiver, tmp_path: Path) -> None:
    notify(run, "on_failure", tmp_path / "a", secret_address(tmp_path))
    assert "secret 'ops' of scope 'webhooks' exists neither" in logged(tmp_path / "a")["failures"][0]
    secrets = tmp_path / "conf" / "secrets.yaml"
    secrets.parent.mkdir()
    secrets.write_text(f"webhooks: {{ops: '{receiver.url(200)}'}}")
    secrets.chmod(0o600)
    notify(run, "on_failure", tmp_path / "b", secret_address(tmp_path))
    assert logged(tmp_path / "b")["failures"] == []
    assert len(receiver.received) == 1


def test_only_success_is_success() -> None:
    assert [end_event(one) for one in ("SUCCESS", "SUCCESS_WITH_FAILURES")] == ["on_success"] * 2
    ends = ("FAILED", "TIMEDOUT", "CANCELED", "INTERRUPTED")
    assert {end_event(one) for one in ends} == {"on_failure"}
