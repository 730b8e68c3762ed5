"""Rows that come too late for their window: those that Spark drops, each once in the table of late rows."""

import json
import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark import cloudpickle

import topiclake as tl
from tests.support.waiting import wait_until
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, IngestError, OffsetsLostError
from topiclake.kafka import client as kafka_client
from topiclake.streaming.windows import Windows, window_counts
from topiclake_examples.isp import count_records, hit_windows, hits_per_zip

SEVERAL_STATES = "spark.sql.streaming.statefulOperator.allowMultiple"
START = datetime(2026, 1, 2, 3, tzinfo=timezone.utc)


def one_hit(time, zipcode="00501"):
    return json.dumps({"ip": "192.0.2.9", "zipcode": zipcode, "hittime": time}).encode()


class Called(tl.Sink):
    """Calls a function with each batch."""

    def __init__(self, function):
        self.function = function

    def write(self, rows, batch):
        self.function(batch)


class Late:
    """A stream of counts in windows, with the table of its late rows."""

    def __init__(self, hits, windows, output_mode="append", **given):
        self.hits, self.windows, self.output_mode = hits, windows, output_mode
        self.settings = hits.settings(**given)
        self.checkpoint = f"{hits.folder}/windows_checkpoint"
        self.paths = {name: f"{hits.folder}/windows_{name}" for name in ("counts", "late")}
        self.dropped, self.fails_in, self.before = Counter(), None, None

    def start(self, **given):
        spark, settings = self.hits.spark, self.settings
        paths = {"checkpoint_path": self.checkpoint}
        table = {"update": {"mode": "merge", "keys": ["start", "end", "zip"]}}.get(self.output_mode, {})
        sinks = {
            "counts": tl.delta_batches(settings, spark, path=self.paths["counts"], **table),
            "before": Called(lambda batch: self.before and self.before()),
            "late": tl.late_batches(settings, spark, self.windows, path=self.paths["late"]),
            "after": Called(self.fail),
        }
        counts = tl.window_counts(tl.read_values(spark, settings), self.windows)
        return tl.start_sinks(counts, settings, sinks, **{"output_mode": self.output_mode, **paths, **given})

    def fail(self, batch):
        if batch.number == self.fails_in:
            self.fails_in = None
            raise KeyError("as if the driver were killed")

    def run(self):
        query = self.start()
        try:
            tl.await_caught_up(query, "availableNow")
        finally:
            for progress in query.recentProgress:
                self.dropped[progress["batchId"]] += sum(
                    state["numRowsDroppedByWatermark"] for state in progress["stateOperators"]
                )

    def rows(self):
        return delta.read(self.hits.spark, self.paths["late"])

    def late(self, *columns):
        """How many late rows there are by columns."""
        return Counter(tuple(row) for row in self.rows().selectExpr(*columns).collect())

    def counted(self):
        """What the stream counted, those of open windows included, which are in its state alone."""
        found = Counter()
        rows = delta.read(self.hits.spark, self.paths["counts"]).collect()
        assert len({tuple(row[:3]) for row in rows}) == len(rows)
        for row in rows:
            found[tuple(row[:3])] += row["count"]
        if self.output_mode == "append":
            state = self.hits.spark.read.format("statestore").load(self.checkpoint)
            open_windows = state.selectExpr("key.window.start", "key.window.end", "key.zip", "value.count")
            for row in open_windows.collect():
                found[tuple(row[:3])] += row["count"]
        return found

    def whole(self):
        """What a batch counts of the topic as it is now."""
        records = tl.read_batch(self.hits.spark, self.settings)
        hits = records.selectExpr(
            f"from_json(CAST(value AS STRING), '{self.settings.pipeline.value_schema}') AS hit",
            "struct(partition, offset, timestamp) AS _kafka",
        )
        counts = window_counts(hits.where("hit.ip IS NOT NULL").select("hit.*", "_kafka"), self.windows)
        return Counter({tuple(row[:3]): row["count"] for row in counts.collect()})


def drifting(hits, seed, number_of_hits):
    """Send hits, later and later, each up to 35 minutes late; a damaged one, and one from before 1970.

    With a watermark of 3 minutes all that is past ends where a window does.
    """
    drawn = random.Random(seed)
    hits.send(one_hit("1969-12-31T23:00:00Z"), b"{")
    for number in range(number_of_hits):
        minutes = timedelta(minutes=5 * (number // 20 - drawn.randrange(8)))
        hits.send(one_hit((START + minutes).isoformat(), drawn.choice([None, "00501", "02108-1518"])))


@pytest.fixture
def several_states(spark, request):
    """Whether a query may have several states, which decides what a batch takes for late."""
    spark.conf.set(SEVERAL_STATES, request.param)
    yield
    spark.conf.unset(SEVERAL_STATES)


@pytest.mark.slow("a stream of many batches, killed and repeated")
@pytest.mark.usefixtures("several_states")
@pytest.mark.parametrize(
    ("seed", "number_of_hits", "output_mode", "several_states"),
    [
        pytest.param(1, 140, "append", "true", id="append"),
        pytest.param(2, 240, "update", "false", id="update", marks=pytest.mark.thorough("the other mode")),
    ],
    indirect=["several_states"],
)
def test_counted_and_late_rows_are_together_what_a_batch_counts(hits, seed, number_of_hits, output_mode):
    late = Late(hits, hit_windows(watermark="3 minutes"), output_mode, max_offsets_per_trigger="50")
    tl.ensure_topic(late.settings.kafka, hits.topic, 2)
    drifting(hits, seed, number_of_hits)
    late.fails_in = 2
    with pytest.raises(IngestError, match="sink after of pipeline isp did not write batch 2"):
        late.run()
    late.run()

    pairs = late.late("_late.start", "_late.end", "zip")
    assert late.counted() + pairs == late.whole()
    by_batch = {batch: number for (batch,), number in late.late("_late.batch_id").items()}
    assert by_batch[0] == 2, "an event before 1970 is late from the first batch on, for each of its windows"
    assert by_batch.pop(2, 0), "the batch that came twice has late rows"
    assert set(by_batch) == {batch for batch, number in late.dropped.items() if number}
    assert set(by_batch) < set(late.dropped), "a batch that dropped nothing has none"
    assert late.rows().where("_late.end = _late.watermark").count(), "a window that ends there is past"
    counts = tl.late_counts(hits.spark, late.settings, path=late.paths["late"]).collect()
    assert {(row["start"], row["end"]) for row in counts} == {key[:2] for key in pairs}
    assert sum(row["count"] for row in counts) == sum(pairs.values())


@pytest.mark.thorough("late rows are tested next to it")
def test_what_comes_after_a_silent_stream_has_closed_its_window_is_late(hits):
    windows = Windows(
        "hittime",
        ("zipcode",),
        length="2 seconds",
        slide="2 seconds",
        watermark="1 second",
        idle_timeout="3 seconds",
    )
    late = Late(hits, windows, trigger="1 second")
    tl.ensure_topic(late.settings.kafka, hits.topic, 2)
    now = datetime.now(timezone.utc).isoformat()
    hits.send(one_hit(now))
    query = late.start()

    def count(path):
        assert query.isActive, query.exception()
        return delta.is_table(hits.spark, path) and delta.read(hits.spark, path).count()

    wait_until(lambda: count(late.paths["counts"]))
    assert count(late.paths["late"]) == 0
    hits.send(one_hit(now))
    wait_until(lambda: count(late.paths["late"]))
    query.stop()
    assert late.late("hittime", "zipcode")
    assert late.rows().count() == delta.read(hits.spark, late.paths["counts"]).count() == 1


@pytest.mark.thorough("lost offsets are tested in test_kafka_source")
def test_what_kafka_deletes_before_its_late_rows_are_kept_is_named_or_left_out(hits):
    late = Late(hits, hit_windows())
    tl.ensure_topic(late.settings.kafka, hits.topic, 1)
    hits.send(*[one_hit("1969-12-31T23:00:00Z")] * 4)
    admin, two = (
        AdminClient(kafka_client.client_settings(late.settings.kafka)),
        TopicPartition(hits.topic, 0, 2),
    )
    late.before = lambda: admin.delete_records([two])[two].result(120)
    with pytest.raises(OffsetsLostError, match=f"Kafka deleted records of topic {hits.topic} that batch 0"):
        late.run()
    late.settings = hits.settings(fail_on_data_loss="false")
    late.run()
    assert late.late("_kafka.offset") == {(2,): 2, (3,): 2}


def test_what_keeps_late_rows_can_be_pickled_and_shows_no_login(hits):
    late = Late(hits, hit_windows())
    sink = tl.late_batches(late.settings, hits.spark, late.windows, path=late.paths["late"])
    sink = replace(sink, options={"kafka.sasl.jaas.config": "a login"})
    assert cloudpickle.loads(cloudpickle.dumps(sink)) == sink
    assert "a login" not in repr(sink)


def test_sinks_refuse_an_output_mode_that_is_not_theirs_and_rows_that_do_not_fit(hits):
    late = Late(hits, hit_windows())
    tl.ensure_topic(late.settings.kafka, hits.topic, 1)
    with pytest.raises(ConfigError, match="in output mode complete each row is counted"):
        late.start(output_mode="complete")
    paths = {"checkpoint_path": late.checkpoint}
    sent = tl.topic_batches(late.settings, topic=hits.topic, id_columns=["zip"], records=count_records)
    counts = hits_per_zip(tl.read_values(hits.spark, late.settings))
    with pytest.raises(ConfigError, match="id_columns and output_mode update"):
        tl.start_sinks(counts, late.settings, {"a": sent}, output_mode="update", **paths)
    taken = Windows("hittime", counted=lambda rows: rows.withColumn("_late", rows.ip))
    with pytest.raises(ConfigError, match="the rows have a column _late"):
        tl.late_batches(late.settings, hits.spark, taken, path=late.paths["late"])
