"""Rows that serverless compute refuses to cache. That compute is not available, so a class replaces them."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from topiclake.streaming import row_cache


class Refusing:
    """Rows of a session that caches none."""

    storageLevel = SimpleNamespace(useMemory=False)  # noqa: N815 (Spark's name)
    sparkSession = object()  # noqa: N815

    def persist(self):
        raise PySparkException("no cache", errorClass="NOT_SUPPORTED_WITH_SERVERLESS")


def test_a_refused_cache_is_one_line_of_the_log(monkeypatch, caplog):
    monkeypatch.setattr(row_cache, "is_connect", lambda _: True)
    row_cache._log_once.cache_clear()
    rows = Refusing()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with row_cache.cached(rows) as found:
                assert found is rows
    assert [record.getMessage() for record in caplog.records] == [
        "this compute caches no rows (NOT_SUPPORTED_WITH_SERVERLESS): each job of a micro-batch computes them"
    ]


def test_a_session_with_a_jvm_raises_the_refusal(monkeypatch):
    monkeypatch.setattr(row_cache, "is_connect", lambda _: False)
    with pytest.raises(PySparkException), row_cache.cached(Refusing()):
        pass
