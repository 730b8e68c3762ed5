"""What queries report, how far they are behind, and what is kept of it."""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
import stat
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from topiclake.monitoring.lag import Lag, downsample, lag
from topiclake.monitoring.reports import PartitionReport, read_report
from topiclake.monitoring.store import Run, Store
from topiclake.streaming import batch_counts
from topiclake.streaming.batch_counts import TableCount
from workbench.dashboard.metrics import NAME, SERIES, exposition
from workbench.dashboard.snapshot import LISTED, details, is_alive, overview

PROGRESS = {
    "id": "q",
    "runId": "r",
    "timestamp": "2026-01-02T03:04:05.678Z",
    "batchId": 7,
    "numInputRows": 24,
    "inputRowsPerSecond": "Infinity",
    "processedRowsPerSecond": 7.0,
    "durationMs": {"addBatch": 900, "latestOffset": 100, "triggerExecution": 1100},
    "stateOperators": [
        {"numRowsTotal": 5, "memoryUsedBytes": 100, "numRowsDroppedByWatermark": 1},
        {"numRowsTotal": 2, "memoryUsedBytes": 10, "numRowsDroppedByWatermark": 0},
    ],
    "sources": [
        {
            "startOffset": {"b": {"0": 5}, "a": {"0": 1}},
            "endOffset": {"b": {"0": 5}, "a": {"1": 8, "0": 4}},
            "latestOffset": {"a": {"0": 9}, "b": {"0": 2}},
            "numInputRows": 22,
        },
        {"endOffset": 3, "latestOffset": None, "numInputRows": 1},
        {"endOffset": "no JSON"},
    ],
    "sink": {"description": "S"},
}


def test_a_report_is_read_with_what_kafka_held_then():
    report = read_report(json.dumps(PROGRESS))
    # 3 and 8 of Kafka, where Spark counted 22: it read them twice; 1 of the other source.
    assert (report.batch_id, report.at, report.rows, report.sink) == (7, 1767323045.678, 12, "S")
    assert (report.input_rate, report.processing_rate, report.is_exact) == (0.0, 3.5, True)
    assert (report.milliseconds, report.phases) == (1100, {"addBatch": 900, "latestOffset": 100})
    assert (report.late_rows, report.state_rows, report.state_bytes) == (1, 7, 110)
    # A head that is not told, or behind what was read, is where the query stands.
    assert report.partitions == (
        PartitionReport("a", 0, 4, 9),
        PartitionReport("a", 1, 8, 8),
        PartitionReport("b", 0, 5, 5),
    )
    assert [one.lag for one in report.partitions] == [5, 0, 0]


def test_the_first_batch_of_a_topic_is_counted_by_who_wrote_it():
    first = [PROGRESS["sources"][0] | {"startOffset": None}]
    report = read_report(json.dumps(PROGRESS | {"sources": first}))
    assert (report.rows, report.is_exact) == (24, False)
    counted = report.with_rows(12)
    assert (counted.rows, counted.processing_rate, counted.is_exact) == (12, 3.5, True)


def test_a_batch_with_a_paused_topic_is_counted_by_who_wrote_it():
    unread = [PROGRESS["sources"][0] | {"numInputRows": 0}]
    none = {"numInputRows": 0, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    report = read_report(json.dumps(PROGRESS | none | {"sources": unread}))
    assert (report.rows, report.is_exact) == (0, False)
    counted = report.with_rows(11, report.at - 2)
    assert (counted.rows, counted.input_rate, counted.processing_rate) == (11, 5.5, 10.0)
    assert report.with_rows(11).input_rate == 0.0


def test_a_report_of_another_source_and_without_rates_is_read():
    report = read_report(json.dumps({"batchId": 0, "timestamp": "2026-01-02T03:04:05Z", "sources": []}))
    assert (report.rows, report.input_rate, report.milliseconds, report.partitions) == (0, 0.0, 0, ())


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (40, Lag(0, 0.0)),
        (50, Lag(0, 0.0)),
        # The next record, number 30, came between second 20 and 30, in which 20 to 40 came.
        (30, Lag(10, 15.0)),
        (20, Lag(20, 20.0)),
        (10, Lag(30, 30.0)),
        (5, Lag(35, 30.0, at_least=True)),
    ],
)
def test_lag_in_seconds_is_the_time_since_the_next_record_came(end, expected):
    assert lag(end, [(10.0, 10), (20.0, 20), (30.0, 40)], now=40.0) == expected


def test_a_partition_that_nobody_has_seen_has_no_lag():
    assert lag(3, [], 40.0) == Lag(0, 0.0)


@pytest.mark.parametrize("seed", range(50))
def test_thinned_heads_give_the_same_lag_where_they_are_new(seed):
    chance = random.Random(seed)
    steps = [(chance.randint(1, 9), chance.choice((0, 0, 1, 5))) for _ in range(chance.randint(1, 60))]
    end, kept = chance.randint(0, 100), chance.randint(4, 20)
    heads, at, head = [], 0.0, 0
    for seconds, records in steps:
        at, head = at + seconds, head + records
        heads.append((at, head))
    now = at + 1
    assert lag(end, downsample(heads, 1000), now) == lag(end, heads, now)
    few = downsample(heads, kept)
    assert len(few) <= kept
    assert few[-1] == heads[-1]
    assert set(few) <= set(heads)
    assert lag(end, few, now).records == lag(end, heads, now).records


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "new" / "reports.db")
    yield made
    made.close()


def run(number=1, query="q", process=None):
    process = process or psutil.Process()
    return Run(f"r{number}", query, f"name of {query}", "notebook", process.pid, process.create_time())


def report(batch_id, **changed):
    return read_report(json.dumps(PROGRESS | {"batchId": batch_id} | changed))


def test_the_file_is_its_owners_alone(store, tmp_path):
    file = tmp_path / "new" / "reports.db"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_each_value_of_a_batch_is_in_the_column_of_its_name(store):
    given = report(4)
    store.add(run(), given, {PartitionReport("a", 2, 4, 9): Lag(5, 2.5, at_least=True)}, [], 7.0)
    (batch,) = store.rows("SELECT * FROM batches")
    expected = {name: value for name, value in vars(given).items() if name in batch}
    expected |= {"query_id": "q", "run_id": "r1", "phases": json.dumps(given.phases)}
    assert batch == expected | {"lag_records": 5, "lag_seconds": 2.5}
    assert len({batch[name] for name in ("rows", "late_rows", "state_rows", "state_bytes")}) == 4
    (partition,) = store.rows("SELECT * FROM partitions")
    assert tuple(partition.values()) == ("q", "a", 2, 4, 5, 2.5, 1)


def test_a_query_is_shown_with_its_newest_start_and_the_sums_of_all(store):
    now = time.time()
    store.begin(run(1), now - 20)
    lags = {PartitionReport("a", 0, 4, 9): Lag(5, 2.5, at_least=True)}
    store.add(run(1), report(0), lags, [TableCount("/t", 10), TableCount("/q", 2, {"bad_magic": 2})], now)
    store.end("r1", now - 10, "broke", "mend it")
    store.begin(run(2), now)
    # A batch that is repeated after a crash counts once; its commit was counted, or not made, the first time.
    store.add(run(2), report(0), lags, [], now)
    counts = [TableCount("/t", 1), TableCount("/q", 3, {"bad_magic": 1, "too_short": 2})]
    store.add(run(2), report(1), {PartitionReport("a", 0, 9, 9): Lag(0, 0.0)}, counts, now + 1)
    (shown,) = overview(store)
    assert (shown["state"], shown["error"], shown["batch_id"], shown["rows"]) == ("running", None, 1, 24)
    assert (shown["written"], shown["quarantined"]) == (11, {"bad_magic": 3, "too_short": 2})
    assert (shown["lag_records"], shown["lag_at_least"], shown["late_rows"]) == (0, False, 2)
    reported = details(store, "q")
    assert reported["points"]["lag_records"] == [5, 0]
    assert [one["error"] for one in reported["runs"]] == [None, "broke"]
    assert details(store, "nobody")["points"]["at"] == []


def test_a_query_whose_driver_is_gone_was_killed_and_says_what_to_do(store):
    store.begin(run(), 1.0)
    assert overview(store)[0]["state"] == "running"
    (shown,) = overview(store, lambda process, began: False)
    assert shown["state"] == "killed"
    assert f"process {os.getpid()}" in shown["error"]
    assert "checkpoint" in shown["remedy"]


def test_a_query_whose_jvm_is_gone_was_killed_too(store):
    store.begin(replace(run(), jvm=12345, jvm_began=1.0), 1.0)
    (shown,) = overview(store)
    assert (shown["state"], "process 12345" in shown["error"]) == ("killed", True)


def test_a_process_that_has_anothers_id_is_not_it():
    process = psutil.Process()
    assert is_alive(process.pid, process.create_time())
    assert not is_alive(process.pid, process.create_time() - 60)


def test_a_query_that_failed_has_its_cause_and_one_that_was_stopped_has_none(store):
    for number, error in ((1, "cause"), (2, None)):
        store.begin(run(number, f"q{number}"), float(number))
        store.end(f"r{number}", 5.0, error, "remedy" if error else "")
    states = {one["id"]: (one["state"], one["error"], one["remedy"]) for one in overview(store)}
    assert states == {"q1": ("failed", "cause", "remedy"), "q2": ("ended", None, None)}


def test_what_is_old_is_forgotten_and_a_running_query_never(store):
    store.begin(run(1, "old"), 10.0)
    store.add(run(1, "old"), report(0), {}, [TableCount("/q", 2, {"bad_magic": 2})], 10.0)
    store.end("r1", 10.0, None, "")
    store.begin(run(2, "quiet"), 10.0)
    store.heartbeat("r2", 1_000_000_000_000.0)
    store.forget(2_000_000_000.0)
    assert [one["id"] for one in overview(store)] == ["quiet"]
    for table in ("batches", "totals", "partitions", "tables", "reasons"):
        assert store.rows(f"SELECT * FROM {table}") == []


def test_counters_do_not_fall_when_batches_are_forgotten(store):
    now = time.time()
    store.begin(run(), now)
    store.add(run(), report(0, timestamp="2001-01-01T00:00:00Z"), {}, [], now)
    store.add(run(), report(1), {}, [], now)
    store.forget(1_500_000_000.0)
    assert len(details(store, "q")["points"]["at"]) == 1
    assert (overview(store)[0]["rows"], overview(store)[0]["late_rows"]) == (24, 2)


def test_metrics_are_told_with_stable_names_and_bounded_labels(store):
    name = 'a "name"\nwith \\ everything ' + "x" * 1000
    one = replace(run(), name=name)
    store.begin(one, 5.0)
    lags = {PartitionReport("t", number, 0, number): Lag(number, 1.5) for number in range(SERIES)}
    counts = [TableCount("/t", 7), TableCount("/q", 2, {"bad_magic": 2})]
    store.add(one, report(0), lags, counts, 1_700_000_000.0)
    found = list(text_string_to_metric_families(exposition(store).decode()))
    samples = {
        (sample.name, *sorted(set(sample.labels.values()) - {"q", name[:NAME]})): sample.value
        for family in found
        for sample in family.samples
    }
    assert {sample.labels["query"] for family in found for sample in family.samples} == {name[:NAME]}
    assert samples["topiclake_query_state", "running"] == 1
    assert samples["topiclake_query_state", "killed"] == 0
    assert samples["topiclake_query_records_total",] == 12
    assert samples["topiclake_query_written_rows_total",] == 7
    assert samples["topiclake_query_quarantined_records_total", "bad_magic"] == 2
    assert samples["topiclake_query_batch_duration_seconds",] == 1.1
    assert samples["topiclake_table_committed_timestamp_seconds",] == 1_700_000_000.0
    assert samples["topiclake_partition_lag_records", "499", "t"] == 499
    assert samples["topiclake_topic_lag_records", "t"] == sum(range(SERIES))
    assert samples["topiclake_topic_lag_seconds", "t"] == 1.5
    assert all(family.documentation for family in found)


def test_five_hundred_topics_have_bounded_metrics_and_lists_that_a_search_narrows(store):
    store.begin(run(), 5.0)
    topics = [f"Shop.topic_{number:03}" for number in range(SERIES + 1)]
    lags = {
        PartitionReport(topic, partition, 0, 9): Lag(number if partition else 0, number / 2)
        for number, topic in enumerate(topics)
        for partition in (0, 1)
    }
    counts = [TableCount(f"/lake/{topic}", 1) for topic in topics]
    counts += [TableCount(f"/lake/{topic}_quarantine", 1, {"too_short": 1}) for topic in topics]
    store.add(run(), report(0), lags, counts, 7.0)

    metrics = text_string_to_metric_families(exposition(store).decode())
    samples = {family.name: family.samples for family in metrics}
    series = samples["topiclake_topic_lag_records"]
    assert [sample.value for sample in series] == list(range(SERIES, 0, -1))
    assert [samples[name] for name in samples if "partition" in name] == [[], []]
    (query,) = overview(store)
    assert (query["written"], query["lag_records"], query["committed"]) == (len(topics), 125_250, 7.0)

    shown = details(store, "q")
    assert shown["found"] == {"topics": 501, "partitions": 1002, "tables": 1002}
    assert {len(shown[name]) for name in shown["found"]} == {LISTED}
    most = {"topic": topics[-1], "partitions": 2, "lag_records": 500, "lag_seconds": 250, "at_least": 0}
    assert shown["topics"][0] == most
    lagging = [(row["topic"], row["partition"]) for row in shown["partitions"]]
    assert lagging == [(topic, 1) for topic in topics[-LISTED:]]
    assert len(json.dumps([query, shown])) < 100_000
    found = details(store, "q", "sHOP.TOPIC_42")
    assert found["found"] == {"topics": 10, "partitions": 20, "tables": 20}
    assert {row["topic"] for row in found["partitions"]} == set(topics[420:430])
    assert found["tables"][0]["path"] == "/lake/Shop.topic_420"
    assert details(store, "q", "%")["found"]["topics"] == 0


def test_heads_are_kept_for_the_next_start(store):
    store.save_heads({("a", 0): [(1.0, 2), (3.0, 4)]})
    assert store.heads("a", 0) == [(1.0, 2), (3.0, 4)]
    assert store.heads("a", 1) == []


def test_two_processes_write_one_file(store, tmp_path):
    other = Store(tmp_path / "new" / "reports.db")
    store.begin(run(1, "one"), 1.0)
    other.begin(run(2, "two"), 2.0)
    assert [one["id"] for one in overview(store)] == [one["id"] for one in overview(other)] == ["two", "one"]
    other.close()


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "reports.db").write_text("no database, but longer than a header of one hundred bytes " * 3)
    with pytest.raises(sqlite3.DatabaseError):
        Store(tmp_path / "reports.db")


def test_each_watcher_gets_the_counts_once_by_batch_also_those_of_older_ones():
    assert not batch_counts.has_subscribers()
    batch_counts.publish("q", 1, TableCount("/before", 1))
    one, other = batch_counts.CountSubscription(), batch_counts.CountSubscription()
    batch_counts.publish("q", 1, TableCount("/t", 1))
    batch_counts.publish("q", 0, TableCount("/resumed", 1))
    batch_counts.publish("q", 1, TableCount("/q", 2, {"too_short": 2}))
    batch_counts.publish("q", 3, TableCount("/later", 1))
    batch_counts.publish("p", 1, TableCount("/anothers", 1))
    for watch in (one, other):
        assert paths(watch.pop("q", 2)) == {0: ["/resumed"], 1: ["/t", "/q"]}
        assert watch.pop("q", 2) == {}
        assert paths(watch.pop("q", 3)) == {3: ["/later"]}
        assert not watch.is_empty
    for number in range(batch_counts.MAX_BATCHES + 1):
        batch_counts.publish("q", number, TableCount(f"/{number}", 1))
    assert paths(one.pop("q", 1)) == {1: ["/1"]}
    one.close()
    one.close()
    assert batch_counts.has_subscribers()
    other.close()
    assert not batch_counts.has_subscribers()


def paths(taken):
    return {number: [count.path for count in counts] for number, counts in taken.items()}


def test_a_commit_that_is_told_of_again_counts_once():
    watch = batch_counts.CountSubscription()
    batch_counts.publish("q", 1, TableCount("/t", 3, writer="w"))
    batch_counts.publish("q", 1, TableCount("/q", 1, {"too_short": 1}, writer="w"))
    # A batch that was stopped behind its commit, and is repeated.
    batch_counts.publish("q", 1, TableCount("/t", 3, writer="w"))
    batch_counts.publish("q", 1, TableCount("/t", 2, writer="w/late"))
    batch_counts.publish("q", 1, TableCount("/t", 0))
    batch_counts.publish("q", 1, TableCount("/t", 0))
    taken = watch.pop("q", 1)[1]
    watch.close()
    assert [(one.path, one.rows, one.writer) for one in taken] == [
        ("/q", 1, "w"),
        ("/t", 3, "w"),
        ("/t", 2, "w/late"),
        ("/t", 0, None),
        ("/t", 0, None),
    ]


def test_a_compacted_topic_has_fewer_records_than_offsets():
    source = PROGRESS["sources"][0] | {"numInputRows": 10}
    assert read_report(json.dumps(PROGRESS | {"sources": [source], "numInputRows": 10})).rows == 10


def test_a_table_that_got_no_row_is_from_no_time(store):
    store.begin(run(), 5.0)
    store.add(run(), report(0), {}, [TableCount("/t", 0)], 5.0)
    assert overview(store)[0]["committed"] == 0
    store.add(run(), report(1), {}, [TableCount("/t", 3)], 6.0)
    store.add(run(), report(2), {}, [TableCount("/t", 0)], 7.0)
    (table,) = details(store, "q")["tables"]
    assert overview(store)[0]["committed"] == 6.0
    assert (table["committed"], table["rows"], table["batch_id"]) == (6.0, 3, 2)


def test_a_quarantine_is_no_table_also_where_its_first_batch_put_nothing_there(store):
    store.begin(run(), 5.0)
    store.add(run(), report(0), {}, [TableCount("/t", 3), TableCount("/q", 0, {})], 5.0)
    store.add(run(), report(1), {}, [TableCount("/t", 0), TableCount("/q", 2, {"too_short": 2})], 6.0)
    (shown,) = overview(store)
    assert (shown["written"], shown["quarantined"]) == (3, {"too_short": 2})


def test_a_commit_that_was_told_of_before_counts_no_more(store):
    def write(batch_id, rows, writer="w", path="/t"):
        store.add(run(), report(batch_id), {}, [TableCount(path, rows, writer=writer)], 5.0)

    store.begin(run(), 5.0)
    write(0, 3)
    write(1, 4)
    write(1, 10, "w/late")
    # A copy of the checkpoint repeats both, and goes on.
    write(0, 3)
    write(1, 4)
    write(1, 10, "w/late")
    write(2, 100)
    write(2, 1000, path="/other")
    assert overview(store)[0]["written"] == 1117


def test_a_file_of_another_version_begins_anew(tmp_path):
    file = tmp_path / "reports.db"
    with sqlite3.connect(file) as old:
        old.execute("CREATE TABLE runs (run_id TEXT PRIMARY KEY, seen REAL NOT NULL)")
        old.execute("INSERT INTO runs VALUES ('r1', 1.0)")
    old.close()
    for _ in range(2):
        made = Store(file)
        made.begin(run(), 5.0)
        assert len(overview(made)) == 1
        made.close()


def test_a_query_is_heard_when_a_batch_is_done_and_when_nothing_comes(store):
    store.begin(run(), 5.0)
    assert overview(store)[0]["heard"] == 5.0
    store.heartbeat("r1", 6.0)
    assert overview(store)[0]["heard"] == 6.0
    store.add(run(), report(0), {}, [], 7.0)
    assert overview(store)[0]["heard"] == 7.0


CSS = Path(__file__).parents[3] / "src/workbench/dashboard/assets/dashboard.css"


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_colour_of_a_text_is_readable_on_each_ground(theme):
    """WCAG 2.2, 1.4.3: a contrast of 4.5 at least."""
    light, dark = re.findall(r":root \{(.*?)\}", CSS.read_text("utf-8"), re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#\w{6})", dark if theme == "dark" else light))
    for ground in ("paper", "panel"):
        for text in ("ink", "faint", "good", "bad", "over", "first", "warn"):
            low, high = sorted((luminance(colours[ground]), luminance(colours[text])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (theme, text, ground)
