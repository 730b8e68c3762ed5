"""What tests with real services share."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from tests.integration.hits_topic import Hits


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
