"""Starts of an ingest that cannot be, on the embedded broker."""

import pytest

import topiclake as tl
from tests.support.numbers_topic import Numbers
from topiclake.errors import IngestError


def test_a_query_that_runs_is_not_started_a_second_time(connected, tmp_path):
    numbers = Numbers(connected, tmp_path)
    numbers.topic("a")
    numbers.register("a")
    settings = numbers.settings(trigger="1 second")
    query = tl.start_ingest(numbers.spark, settings)
    try:
        with pytest.raises(IngestError, match="query gps runs in this session") as raised:
            tl.start_ingest(numbers.spark, settings)
        assert raised.value.fields["query"] == "gps"
        assert query.isActive
    finally:
        query.stop()
