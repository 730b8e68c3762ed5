"""`display` of streaming DataFrames that run."""

import json
import os
import tempfile
import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

from tests.support.waiting import wait_until
from workbench.display.displayed_streams import StreamDisplays
from workbench.display.query import QueryOptions
from workbench.display.rows import fetch_batch, fetch_first
from workbench.display.stream import StreamDisplay
from workbench.display.table import Redaction

SECONDS = 120


class Recorder:
    """A surface that keeps what it is shown."""

    def __init__(self):
        self.states = []

    def show(self, state):
        self.states.append(state)

    @property
    def last(self):
        return self.states[-1]


@pytest.fixture
def show(spark, tmp_path, monkeypatch):
    """Show a streaming DataFrame; at the end of the test nothing of it is left."""
    threads, made = threads_of_displays(), []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def shown(frame, redaction=None, **given):
        surface = Recorder()
        options = QueryOptions.read(given, str)
        made.append(StreamDisplay(frame, options, surface, redaction or Redaction()))
        made[-1].watch()
        return surface, made[-1]

    yield shown
    for display in made:
        display.stop()
        display.finish(SECONDS)
    assert spark.streams.active == []
    wait_until(lambda: threads_of_displays() == threads)
    assert list(tmp_path.glob("workbench-display-*")) == []


def threads_of_displays():
    return {thread for thread in threading.enumerate() if thread.name.startswith("display ")}


@pytest.fixture
def files(spark, tmp_path):
    """Three files with ten numbers each, as a stream of one file per micro-batch."""
    for number in range(3):
        lines = "\n".join(json.dumps({"id": number * 10 + place}) for place in range(10))
        file = tmp_path / "input" / f"{number}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(lines)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    reader = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1)
    return reader.json(str(tmp_path / "input"))


def rates(spark, rows_per_second=50):
    return spark.readStream.format("rate").option("rowsPerSecond", rows_per_second).load()


def test_available_files_are_shown_newest_first_with_a_point_for_each_batch(show, files):
    surface, display = show(files, trigger="availableNow", streamName="files")
    display.wait()
    assert [value for (value,) in surface.last.rows] == [str(n) for n in reversed(range(30))]
    assert surface.last.columns == [("id", "bigint")]
    assert (surface.last.status, surface.last.more) == ("ended", False)
    assert [point.rows for point in surface.last.points] == [10, 10, 10]
    assert surface.states[0].rows == ()


def test_an_aggregation_is_shown_whole_and_in_its_order_and_keeps_its_state(show, files):
    counts = files.groupBy((F.col("id") % 3).alias("rest")).count().orderBy("rest")
    surface, display = show(counts, trigger="availableNow")
    display.wait()
    assert surface.last.rows == [["0", "10"], ["1", "10"], ["2", "10"]]
    assert [point.rows for point in surface.last.points] == [10, 10, 10]


def test_a_topic_is_shown_with_its_bytes_and_headers(show, spark, embedded):
    servers = embedded[1].kafka_bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("displayed", 1)])["displayed"].result(SECONDS)
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("displayed", b"\x00\x00\xff<b>", key=b"k", headers={"h": b"1"})
    producer.produce("displayed", None, key=b"k")
    assert producer.flush(SECONDS) == 0
    options = {"subscribe": "displayed", "startingOffsets": "earliest", "includeHeaders": "true"}
    topic = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).options(**options)
    surface, display = show(topic.load(), trigger="availableNow")
    display.wait()
    assert surface.last.status == "ended", surface.last.cause
    names = [name for name, _ in surface.last.columns]
    rows = [dict(zip(names, row, strict=True)) for row in surface.last.rows]
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        ("1", "6b", None),
        ("0", "6b", "00 00 ff 3c 62 3e"),
    ]
    assert rows[1]["headers"] == '[{"key":"h","value":"MQ=="}]'


def test_what_no_output_mode_allows_is_an_error_of_the_cell(show, files):
    twice = files.groupBy("id").count().groupBy("count").count()
    with pytest.raises(AnalysisException, match="watermark"):
        show(twice)


def test_a_query_has_its_name_goes_on_and_says_when_it_was_stopped(show, spark):
    surface, _ = show(rates(spark), streamName="clicks", processingTime="200 milliseconds")
    wait_until(lambda: surface.last.rows and len(surface.last.points) > 2)
    (query,) = spark.streams.active
    assert query.name == "clicks"
    assert surface.last.status == "running"
    assert any(point.input_rate > 0 and point.processing_rate > 0 for point in surface.last.points)
    with pytest.raises(PySparkException, match="clicks"):
        show(rates(spark), streamName="clicks")
    query.stop()
    wait_until(lambda: surface.last.has_ended)
    assert surface.last.status == "stopped"


def test_a_micro_batch_is_read_whole_though_few_of_its_rows_are_shown(show, spark, tmp_path):
    for _ in range(2):
        spark.range(5_000).coalesce(1).write.mode("append").json(str(tmp_path / "many"))
    many = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1).json(str(tmp_path / "many"))
    surface, display = show(many.groupBy("id").count(), trigger="availableNow")
    display.wait()
    assert surface.last.status == "ended", surface.last.cause
    assert [point.rows for point in surface.last.points] == [5_000, 5_000]
    assert {count for _, count in surface.last.rows} == {"2"}
    assert (len(surface.last.rows), surface.last.more) == (100, True)


def test_the_newest_rows_are_the_last_of_each_partition(spark):
    fetched = fetch_batch(spark.range(0, 1_000, numPartitions=4), newest=True)
    assert [value for (value,) in fetched.rows[:5]] == [999, 749, 499, 249, 998]
    assert len(fetched.rows) == 101


def test_no_wide_value_reaches_the_driver(spark):
    wide = spark.range(3).select(
        F.repeat(F.lit("x"), 30_000_000).alias("same"),
        F.repeat(F.lit("y"), 30_000_000).cast("binary").alias("same"),
        F.array_repeat(F.struct(F.lit(1).alias("a.b")), 1_000_000).alias("items"),
        F.create_map(F.lit("k"), F.lit(None).cast("string")).alias("map"),
    )
    fetched = fetch_first(wide)
    assert [len(value) for value in fetched.rows[0][:3]] == [4096, 4096, 4096]
    assert fetched.rows[0][3] == '{"k":null}'
    assert [kind for _, kind in fetched.columns] == [
        "string",
        "binary",
        "array<struct<a.b:int>>",
        "map<string,string>",
    ]
    assert len(str(fetched.cells(Redaction()))) < 4_000


@pytest.mark.thorough("a further width")
def test_many_wide_columns_are_cut_shorter(spark):
    fetched = fetch_first(spark.range(1).select(*(F.repeat(F.lit("x"), 9_999) for _ in range(400))))
    assert {len(value) for value in fetched.rows[0]} == {396}


def test_a_wide_stream_is_capped_too(show, files):
    wide = files.select("id", F.repeat(F.lit("z"), 5_000_000).alias("wide"))
    surface, display = show(wide, trigger="availableNow")
    display.wait()
    assert surface.last.status == "ended", surface.last.cause
    assert {len(text) for _, text in surface.last.rows} == {300}


def test_a_failure_is_shown_in_one_line_without_secrets(show, files):
    failing = files.select(F.raise_error(F.lit("the s3cret is out")))
    surface, display = show(failing, Redaction(lambda text: text.replace("s3cret", "[REDACTED]")))
    display.wait()
    assert surface.last.status == "failed"
    assert "the [REDACTED] is out" in surface.last.cause
    assert "\n" not in surface.last.cause
    assert len(surface.last.cause) < 200
    assert display.failure == surface.last.cause


def test_a_checkpoint_of_ones_own_stays_and_is_gone_on_with(show, files, tmp_path):
    given = {"trigger": "availableNow", "checkpointLocation": str(tmp_path / "checkpoint")}
    first, display = show(files, **given)
    display.wait()
    assert len(first.last.rows) == 30
    (tmp_path / "input" / "new.json").write_text('{"id": 99}')
    second, display = show(files, **given)
    display.wait()
    assert second.last.rows == [["99"]]


def test_a_cell_that_runs_again_stops_what_it_showed(show, spark):
    displays = StreamDisplays()
    displays.begin_cell("a")
    surface, first = show(rates(spark))
    displays.add(first)
    displays.begin_cell("b")
    other, second = show(rates(spark))
    displays.add(second)
    wait_until(lambda: surface.last.points and other.last.points)
    displays.begin_cell("a")
    assert first.has_ended
    assert not second.has_ended
    displays.stop(SECONDS)
    assert second.has_ended
    assert other.last.status == "stopped"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("named_struct('a', 1, 'b', array(date'2026-01-02', null))", '{"a":1,"b":["2026-01-02",null]}'),
        ("map('k', array(X'00'))", '{"k":["AA=="]}'),
        ("array(time'10:00:00')", "[10:00:00]"),
        ("interval '2' year", "INTERVAL '2' YEAR"),
        ("make_interval(1, 2)", "1 years 2 months"),
        ("parse_json('[1]')", "[1]"),
        ("null", None),
    ],
)
def test_values_that_python_or_json_has_not_are_shown_all_the_same(spark, value, text):
    assert fetch_first(spark.sql(f"SELECT {value} AS x")).cells(Redaction()) == [[text]]
