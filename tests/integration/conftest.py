"""What tests with real services share."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from tests.support.environment import without_workbench
from tests.support.hits_topic import Hits

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def connected(embedded, spark, monkeypatch) -> Iterator[SparkSession]:
    """The session, while the configuration names the embedded services; queries that a test leaves end."""
    _, addresses = embedded
    for name, value in addresses.environment().items():
        monkeypatch.setenv(name, value)
    yield spark
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def hits(connected, tmp_path) -> Hits:
    """A topic of its own, and what a test does with it."""
    return Hits(connected, tmp_path, f"hits-{uuid4().hex[:8]}")


@pytest.fixture
def consuming(embedded) -> Callable[..., subprocess.Popen[str]]:
    """Start `python -m workbench consume`: a topic, options, and variables of the environment."""
    home, _ = embedded

    def started(topic: str, *options: str, **variables: str) -> subprocess.Popen[str]:
        # Tests that run in a shell's background ignore Ctrl-C, and so would what they start.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "workbench", "consume", topic, *options],
                cwd=PROJECT,
                env=without_workbench() | {"WORKBENCH_HOME": str(home.folder)} | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
            )
        finally:
            signal.signal(signal.SIGINT, before)

    return started


@pytest.fixture
def consume(consuming) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same until its end."""

    def run(topic: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with consuming(topic, *options, **variables) as process:
            printed, errors = process.communicate(timeout=240)
        return subprocess.CompletedProcess(process.args, process.returncode, printed, errors)

    return run
