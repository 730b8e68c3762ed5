"""Windows over event time, in a stream that falls silent."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from uuid import uuid4

import pytest
from pyspark.sql import functions as F

from tests.support.local_rows import local_rows
from tests.support.waiting import wait_until
from topiclake.streaming.windows import Windows, window_counts

SECONDS = {"length": "2 seconds", "slide": "2 seconds", "watermark": "1 second"}


@pytest.fixture
def started(spark, tmp_path):
    """Three events of now in a folder; a function that starts counting them in windows, into a view."""
    now = datetime.now(timezone.utc).replace(microsecond=0)
    times = [(now - timedelta(seconds=late),) for late in (0, 1, 20)]
    local_rows(spark, times, "at TIMESTAMP").write.json(f"{tmp_path}/events")

    def start(trigger, **given):
        events = spark.readStream.schema("at TIMESTAMP").json(f"{tmp_path}/events")
        name = f"windows_{uuid4().hex}"
        counts = window_counts(events, Windows("at", **(SECONDS | given))).writeStream.format("memory")
        counts = counts.queryName(name).option("checkpointLocation", f"{tmp_path}/{name}")
        return counts.outputMode("append").trigger(**trigger).start(), name

    yield start
    for query in spark.streams.active:
        query.stop()


@pytest.mark.thorough("real waiting")
def test_a_silent_stream_closes_its_windows_after_the_timeout_only_if_there_is_one(spark, started):
    silent, name = started({"processingTime": "1 second"})
    silent.processAllAvailable()
    open_windows = spark.table(name).count()
    silent.stop()
    assert open_windows < 3, "the window of the newest event is open"

    query, name = started({"processingTime": "1 second"}, idle_timeout="3 seconds")
    # The windows of all three, none of a tick.
    wait_until(lambda: not query.isActive or spark.table(name).agg(F.sum("count")).first()[0] == 3)
    assert query.isActive, query.exception()


def test_a_timeout_that_has_not_passed_closes_nothing(spark, started):
    query, name = started({"availableNow": True}, idle_timeout="1 hour")
    query.awaitTermination()
    assert spark.table(name).count() < 3, "nothing is an hour old"


def test_rows_that_are_no_stream_are_counted_as_ever(spark):
    rows = spark.sql("SELECT timestamp_seconds(id) AS at FROM range(10)")
    seconds = Windows("at", length="10 seconds", slide="10 seconds", idle_timeout="1 second")
    counts = window_counts(rows, seconds)
    assert [tuple(row)[2:] for row in counts.collect()] == [(10,)]
