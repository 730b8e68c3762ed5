"""What a stream looks like and what `display` may be asked for; streams that run are in tests/spark."""

import re
import xml.etree.ElementTree as ET
from datetime import datetime, timedelta, timezone

import pytest

from topiclake.monitoring.charts import BatchPoint, duration_text, html_charts, rate_text, text_charts
from workbench.display.query import OPTIONS, QueryOptions, batch_point, below_mounts, failure_cause
from workbench.display.show import DisplayError
from workbench.display.stream import StreamState
from workbench.display.surfaces import NotebookOutput

BEGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def point(number, rate=10.0):
    return BatchPoint(number, BEGIN + timedelta(seconds=number), number * 5, rate, 2 * rate, 300 + number)


def state(**changes):
    given = {"name": "clicks", "columns": [("id", "bigint"), ("name", "string")], "rows": [["1", "a"]]}
    return StreamState(**given | changes)


def read(**given):
    return QueryOptions.read(given, str)


def test_what_databricks_documents_is_taken():
    options = read(streamName="x", processingTime="2 seconds", checkpointLocation="/mnt/lake/x")
    assert (options.name, options.checkpoint) == ("x", "/mnt/lake/x")
    assert options.trigger == {"processingTime": "2 seconds"}
    assert read(trigger="1 second").trigger == {"processingTime": "1 second"}
    assert read(trigger="availableNow").ends
    assert read(trigger={"availableNow": True}).ends
    assert not read(processingTime=None).ends


def test_each_stream_without_a_name_gets_one_of_its_own():
    assert re.fullmatch(r"display_query_\d+", read().name)
    assert read().name != read().name


@pytest.mark.parametrize(
    ("given", "fields", "remedy"),
    [
        (
            {"outputMode": "append"},
            {"options": ("outputMode",), "allowed": OPTIONS},
            "use one of streamName, tr",
        ),
        ({"processingTime": 5}, {"option": "processingTime", "found": 5}, "pass processingTime="),
        ({"trigger": 5}, {"option": "trigger", "found": 5}, "pass trigger="),
        (
            {"trigger": "1 second", "processingTime": "1 second"},
            {"options": ("trigger", "processingTime")},
            "pass one of them",
        ),
    ],
)
def test_other_options_are_refused_with_what_is_allowed(given, fields, remedy):
    with pytest.raises(DisplayError) as raised:
        read(**given)
    assert raised.value.fields == fields
    assert raised.value.remedy.startswith(remedy)


def test_a_checkpoint_below_a_mount_point_is_where_the_mount_points_to():
    mounts = [("/mnt/lake", "wasbs://c@a.blob.core.windows.net/", ""), ("/mnt/local", "file:///data", "")]
    assert below_mounts("/mnt/lake/x/y", mounts) == "wasbs://c@a.blob.core.windows.net/x/y"
    assert below_mounts("dbfs:/mnt/local", mounts) == "file:///data"
    assert below_mounts("/mnt/spaced/x", [("/mnt/spaced", "file:///my%20data", "")]) == "file:///my data/x"
    assert below_mounts("/elsewhere/mnt/lake", mounts) == "/elsewhere/mnt/lake"
    with pytest.raises(DisplayError) as raised:
        below_mounts("/mnt/lakes/x", mounts)
    assert raised.value.fields == {"path": "/mnt/lakes/x"}


def test_rates_that_spark_cannot_tell_are_zero():
    progress = {"batchId": 0, "timestamp": "2026-01-02T03:04:05.678Z", "numInputRows": 3, "batchDuration": 7}
    made = batch_point(
        progress | {"inputRowsPerSecond": float("nan"), "processedRowsPerSecond": float("inf")}
    )
    assert (made.input_rate, made.processing_rate, made.milliseconds) == (0.0, 0.0, 7.0)
    assert made.time == BEGIN + timedelta(milliseconds=678)


def test_numbers_have_units():
    assert [rate_text(rate) for rate in (0, 12.34, 1234567.8)] == [
        "0.0 rows/s",
        "12.3 rows/s",
        "1,234,568 rows/s",
    ]
    assert [duration_text(duration) for duration in (999, 61_500)] == ["999 ms", "61.5 s"]


def test_charts_are_drawn_from_the_first_time_to_the_last_and_from_zero_to_the_highest():
    found = ET.fromstring(html_charts([point(0, 0.0), point(1, 10.0), point(4, 5.0)]))
    lines = [line.attrib["points"] for line in found.iter("polyline")]
    assert len(lines) == 3
    places = [tuple(map(float, place.split(","))) for place in lines[0].split()]
    assert [x for x, _ in places] == [2.0, 55.5, 216.0]
    assert [y for _, y in places] == [53.0, 15.0, 34.0]
    assert "input rate: 5.0 rows/s now, 10.0 rows/s at most" in html_charts([point(0), point(1, 5.0)])


@pytest.mark.parametrize("points", [[], [point(0, 0.0)], [point(n) for n in range(100)]])
def test_charts_of_no_one_and_many_batches_are_whole(points):
    assert len(list(ET.fromstring(html_charts(points)).iter("svg"))) == 3
    assert all(len(line) < 80 for line in text_charts(points))


def test_an_output_is_updated_in_place_with_little_text():
    sent = []
    output = NotebookOutput(lambda data, **options: sent.append((data, options)))
    output.show(state())
    output.show(state(points=tuple(map(point, range(100))), rows=[["1", "<b>"]] * 100, more=True))
    (first, begun), (second, updated) = sent
    assert (begun["update"], updated["update"]) == (False, True)
    assert begun["display_id"] == updated["display_id"]
    assert "waiting for the first micro-batch" in first["text/html"]
    for words in ("running, batch 99, 495 rows in it, 03:05:44 UTC", "&lt;b&gt;", "first 100 rows", "bigint"):
        assert words in second["text/html"]
    assert "<script" not in second["text/html"]
    assert len(second["text/html"]) < 30_000
    assert "input rate           10.0 rows/s" in second["text/plain"]


def test_two_outputs_have_two_ids():
    sent = []
    for _ in range(2):
        NotebookOutput(lambda data, **options: sent.append(options["display_id"])).show(state())
    assert len(set(sent)) == 2


def test_a_failure_is_shown_with_cause_and_next_command():
    sent = []
    NotebookOutput(lambda data, **options: sent.append(data)).show(state(status="failed", cause="a < b"))
    assert "query clicks failed: a &lt; b; try: python -m workbench logs spark" in sent[0]["text/html"]
    assert "query clicks failed: a < b; try: python -m workbench logs spark" in sent[0]["text/plain"]


def test_the_cause_of_a_failure_is_one_line():
    text = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted.\n"
        "JVM stacktrace:\norg.x.YException: no"
    )
    assert failure_cause(text) == "Job aborted."
    assert failure_cause("x\nCaused by: a.b.CException: the\tdisk is full\n at z") == "the disk is full"
