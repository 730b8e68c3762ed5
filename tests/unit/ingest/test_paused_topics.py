"""What paused topics wait for, as each reader of the ledger has it."""

from types import SimpleNamespace

import pytest
from pyspark.sql import Row

from topiclake.ingest import consumer_group, paused_topics
from topiclake.ingest.audit import ranges

SPANS = {"a": [(0, 3, 4), (1, 7, 7), (0, 5, 9)], "b": [(0, 2, 2)]}


@pytest.fixture(autouse=True)
def _ledger(monkeypatch):
    rows = {
        topic: [Row(partition=partition, first=first, last=last) for partition, first, last in spans]
        for topic, spans in SPANS.items()
    }
    monkeypatch.setattr(paused_topics, "paused", lambda _spark, _ledger: rows)


def test_an_audit_compares_from_the_first_to_the_last_offset_of_each_partition():
    assert ranges.paused_ranges(None, "/ledger", "a") == {0: (3, 9), 1: (7, 7)}
    assert ranges.paused_ranges(None, "/ledger", "c") == {}


def test_a_group_is_held_back_at_the_first_offset_of_each_partition():
    batch = SimpleNamespace(spark=None)
    assert consumer_group._waiting(batch, "/ledger") == {"a": {0: 3, 1: 7}, "b": {0: 2}}


def test_a_resumption_has_each_range():
    rows = paused_topics.paused(None, "/ledger")["a"]
    assert paused_topics.spans_by_partition(rows) == {0: [(3, 5), (5, 10)], 1: [(7, 8)]}
