"""Prometheus from Debian, as a child process in a folder of its own, and its promtool."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from workbench.host.ports import HOST, choose, send_request

PROJECT = Path(__file__).parents[2]
START_SECONDS = 120


class Prometheus:
    """A server that runs."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data that its API answers."""
        answer = requests.get(f"http://{HOST}:{self.port}/api/v1/{path}", params=parameters, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def find(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of a PromQL expression, now."""
        return self.get("query", query=expression)["result"]


@contextmanager
def prometheus(configuration: Path, folder: Path) -> Iterator[Prometheus]:
    """Run it on a free port of loopback, with its data in `folder`."""
    folder.mkdir(parents=True)
    port = choose(["prometheus"], {})["prometheus"]
    output = folder / "output.log"
    command = [
        program("prometheus"),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={HOST}:{port}",
    ]
    with output.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            _await_ready(process, port, output)
            yield Prometheus(port)
        finally:
            process.terminate()
            try:
                process.wait(120)
            finally:
                process.kill()


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    command = [program("promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def program(name: str) -> str:
    """Find a program of Prometheus: installed, or where `make prometheus` has put it."""
    unpacked = PROJECT / ".cache" / "prometheus" / "usr" / "bin" / name
    found = shutil.which(name) or (str(unpacked) if unpacked.is_file() else None)
    if found is None:
        raise AssertionError(f"this test needs {name}, which is missing; try: make prometheus")
    return found


def _await_ready(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    # HEAD, as the health check of docker-compose.yaml asks.
    while getattr(send_request(port, "HEAD", f"http://{HOST}:{port}/-/ready", 1.0), "status_code", 0) != 200:
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"Prometheus does not answer on port {port}: {output.read_text()}")
        time.sleep(0.05)
