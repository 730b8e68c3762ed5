"""Threads that share a registry: at most five requests at once, and one for each path."""

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from topiclake.errors import SchemaRegistryError, SubjectNotFoundError
from topiclake.schema_registry.registry import SchemaRegistry

THREADS = 20


class Server:
    """A slow registry: each subject has one version, but `missing-value` none, and `failing-value` fails."""

    def __init__(self):
        self.requests, self.at_once, self.most_at_once = Counter(), 0, 0
        self.lock = threading.Lock()

    def answer(self, path):
        with self.lock:
            self.requests[path] += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(0.05)
        with self.lock:
            self.at_once -= 1
        parts = path.partition("?")[0].split("/")
        if "missing-value" in parts:
            return 404, {"error_code": 40401}
        if "failing-value" in parts:
            return 503, None
        if parts[1:] == ["subjects"]:
            return 200, ["other-value"]
        if parts[-1] == "versions":
            return 200, [1]
        number = int(parts[2].removesuffix("-value").rpartition("-")[2])
        return 200, {"subject": parts[2], "version": 1, "id": number, "schema": '"string"'}


@pytest.fixture
def served():
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = server.answer(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_):
            """Log nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.request_queue_size = THREADS
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    server.registry = SchemaRegistry(f"http://127.0.0.1:{http.server_address[1]}", patience=0)
    yield server
    http.shutdown()
    http.server_close()


def in_threads(call, values):
    with ThreadPoolExecutor(THREADS) as threads:
        return [threads.submit(call, value) for value in values]


def test_subjects_are_asked_for_side_by_side_five_at_once(served):
    subjects = [f"topic-{number}-value" for number in range(THREADS)]
    versions = [done.result() for done in in_threads(served.registry.versions, subjects)]
    assert [[version.schema_id for version in listed] for listed in versions] == [[n] for n in range(THREADS)]
    assert served.most_at_once == 5
    assert set(served.requests.values()) == {1}


def test_threads_that_ask_for_one_subject_share_the_answer(served):
    listed = [done.result() for done in in_threads(served.registry.versions, ["shared-7-value"] * THREADS)]
    assert {version.schema_id for (version,) in listed} == {7}
    assert set(served.requests.values()) == {1}


def test_threads_that_ask_for_one_subject_share_its_absence_and_its_failure(served):
    for subject, error in (("missing-value", SubjectNotFoundError), ("failing-value", SchemaRegistryError)):
        served.requests.clear()
        raised = [done.exception() for done in in_threads(served.registry.versions, [subject] * THREADS)]
        assert {type(each) for each in raised} == {error}
        assert max(served.requests.values()) <= 5
