"""Calls of an object store, read from its access log."""

import pytest

from topiclake_examples.taxi.s3_calls import CallCount, count_calls, log_size, summarize_calls

#: Owner, bucket, time, address, requester, request, operation, key, URI, status, error, sizes and times.
LINE = "- lake [26/November/2026:13:09:49 +0000] 127.0.0.1 - ID s3_{} {} /lake/{} 200 - {} {} {} 1 agent\n"


@pytest.fixture
def log(tmp_path):
    file = tmp_path / "access.log"
    file.write_text("log starts 2026-11-26\n" + LINE.format("PutObject", "a", "a", 0, 70, 5))
    return str(file)


def test_calls_are_counted_by_kind_after_a_position(log):
    since = log_size(log)
    with open(log, "a") as file:
        file.write(LINE.format("PutObject", "b", "b", 0, 30, 4))
        file.write(LINE.format("PutObject", "b", "b", 0, 30, 6))
        file.write(LINE.format("DeleteObject", "b", "b", 0, 0, 2))
    counts = count_calls(log, since)
    assert counts == [CallCount("PutObject", 2, 60, 0.01, 1), CallCount("DeleteObject", 1, 0, 0.002, 1)]
    assert summarize_calls(counts) == (3, 60, 0.012, 0, 1)
    assert [count.calls for count in count_calls(log)] == [3, 1]


def test_a_log_without_calls_has_no_counts(tmp_path):
    (tmp_path / "access.log").write_text("log starts 2026-11-26\n")
    assert summarize_calls(count_calls(str(tmp_path / "access.log"))) == (0, 0, 0, 0, 0)
