"""Topics of JSON into Delta tables, into windows and into the quarantine, on the embedded broker."""

import json
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from uuid import uuid4

import pytest

import topiclake as tl
from tests.environment import Unmounted
from topiclake import delta, ingest, observed, value_batch
from topiclake.errors import ConfigError, DecodeError, IngestError
from topiclake.json_values import Values

CUT = b'{"ip":"192.0.2.1","is'
BAD = [CUT, b'{"ip":"192.0.2.1"}', b"", b"\xff", None]
REASONS = Counter(undecodable=4, tombstone=1)


def expected_windows(rows):
    """Count in plain Python: windows of 10 minutes every 5 minutes from 2 minutes past the hour."""
    counts = Counter()
    for hittime, zipcode in rows:
        seconds = int(hittime.replace(tzinfo=timezone.utc).timestamp()) - 120
        for begin in (seconds // 300 * 300, seconds // 300 * 300 - 300):
            start = datetime.fromtimestamp(begin + 120, timezone.utc).replace(tzinfo=None)
            counts[start, start + timedelta(minutes=10), zipcode[:5]] += 1
    return counts


def test_each_value_is_in_the_table_or_in_quarantine_once_and_a_second_run_adds_nothing(hits):
    published = hits.publish(500, damaged=7)
    assert (published.records, published.damaged) == (500, 7)
    hits.send(*BAD)

    table = hits.ingest()

    assert table.count() == 493
    assert table.select("_kafka").distinct().count() == 493
    assert hits.quarantined() == REASONS + Counter(undecodable=7)
    assert {len(row["zipcode"]) for row in table.collect()} == {5, 10}
    version = delta.latest_version(hits.spark, f"{hits.folder}/table")
    hits.ingest()
    assert delta.latest_version(hits.spark, f"{hits.folder}/table") == version
    assert tl.audit_ingest(hits.spark, hits.settings(), Unmounted()).ok
    waiting = tl.quarantine_rows(hits.spark, hits.settings(), Unmounted())
    assert {row["detail"] for row in waiting.collect()} >= {
        "no JSON: Unterminated string starting at: line 1 column 19 (char 18)",
        "field hittime is missing or null",
        "the value is null",
    }


@pytest.mark.thorough("replay is tested in test_replay")
def test_what_is_right_with_a_mended_schema_is_replayed_once(hits):
    assert hits.publish(0, partitions=1).records == 0
    hits.send(*BAD, b'{"ip":"192.0.2.1","hittime":"2026-01-02T03:04:05Z"}')
    assert hits.ingest().count() == 1
    # Which no hit needs: the second of the bad ones is right then.
    mended = hits.settings(value_schema="ip STRING NOT NULL, hittime TIMESTAMP")
    for replayed in (1, 0):
        report = tl.replay_quarantine(hits.spark, mended, Unmounted())
        assert (report.replayed, report.left) == (replayed, {"tombstone": 1, "undecodable": 3})
    rows = delta.read(hits.spark, f"{hits.folder}/table").orderBy("_kafka.offset").collect()
    assert [(row["ip"], row["hittime"], row["_kafka"]["offset"]) for row in rows] == [
        ("192.0.2.1", None, 1),
        ("192.0.2.1", datetime(2026, 1, 2, 3, 4, 5), 5),
    ]
    assert tl.audit_ingest(hits.spark, mended, Unmounted()).ok


def test_what_a_users_deserializer_reads_is_in_the_table_and_the_rest_in_quarantine(hits):
    given = {
        "value_format": "custom",
        "deserializer": "tests.spark.user_deserializer:semicolons",
        "value_schema": "id INT NOT NULL, name STRING",
    }
    assert hits.publish(0, partitions=1).records == 0
    hits.send("1;Jürgen".encode("latin-1"), b"x;y", b"2;", None)
    rows = hits.ingest(**given).orderBy("id").collect()
    assert [(row["id"], row["name"]) for row in rows] == [(1, "Jürgen"), (2, None)]
    settings = hits.settings(**given)
    waiting = tl.quarantine_rows(hits.spark, settings, Unmounted()).collect()
    assert {(row["offset"], row["detail"]) for row in waiting} == {
        (1, "ValueError: invalid literal for int() with base 10: 'x'"),
        (3, "the value is null"),
    }
    assert tl.replay_quarantine(hits.spark, settings, Unmounted()).replayed == 0
    assert tl.audit_ingest(hits.spark, settings, Unmounted()).ok
    with pytest.raises(ConfigError, match="is no deserializer"):
        hits.ingest(**given | {"deserializer": "os:system"})


def test_what_a_kafka_class_reads_is_in_the_table_and_the_rest_in_quarantine(hits):
    hits.publish(20, damaged=3)
    given = {
        "value_format": "custom",
        "deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        "value_schema": "ip STRING NOT NULL, status INT",
    }
    assert hits.ingest(**given).count() == 17
    assert hits.quarantined() == Counter(undecodable=3)
    rows = tl.read_values(hits.spark, hits.settings(**given))
    assert len(hits.result(rows.select("ip"), "append")) == 17


def test_failfast_names_the_record_and_writes_nothing_of_its_batch(hits):
    hits.publish(20)
    hits.send(CUT)
    with pytest.raises(
        DecodeError, match=f"topic {hits.topic}, partition \\d, offset \\d+, reason undecodable"
    ):
        hits.ingest(mode="FAILFAST")
    assert delta.read(hits.spark, f"{hits.folder}/table").count() == 0
    assert hits.quarantined() == Counter()


@pytest.mark.parametrize(
    "killed",
    [
        "before the quarantine",
        pytest.param("after it", marks=pytest.mark.thorough("the other side of the same commit")),
    ],
)
def test_a_batch_that_is_repeated_after_a_crash_lands_once(hits, monkeypatch, killed):
    right = b'{"ip":"192.0.2.1","hittime":"2026-01-02T03:04:05Z"}'
    records = hits.records(right, *BAD, right)
    settings = hits.settings()
    Path(f"{hits.folder}/checkpoint").mkdir()
    Path(f"{hits.folder}/checkpoint/metadata").write_text(json.dumps({"id": uuid4().hex}))
    to, values = ingest.target(settings, Unmounted()), Values.from_settings(settings.pipeline)

    def kill(*_):
        raise InterruptedError

    if killed == "before the quarantine":
        with monkeypatch.context() as patched:
            patched.setattr(value_batch, "write_left", kill)
            with pytest.raises(InterruptedError):
                value_batch.write(to, values, records, 0)
        assert hits.quarantined() == Counter()
    else:
        value_batch.write(to, values, records, 0)
        value_batch.write(to, values, hits.records(right), 1)
    anew = replace(to, start=uuid4().hex)
    value_batch.write(anew, values, records, 0)
    value_batch.write(anew, values, hits.records(right), 1)
    value_batch.write(anew, values, hits.records(right), 2)

    assert delta.read(hits.spark, to.table).count() == 4
    assert hits.quarantined() == REASONS


def test_counts_that_spark_loses_stop_nothing(hits, monkeypatch):
    right = b'{"ip":"192.0.2.1","hittime":"2026-01-02T03:04:05Z"}'
    session, found = hits.spark.newSession(), hits.records(right, *BAD, right)
    records, settings = session.createDataFrame(found.collect(), found.schema), hits.settings()
    Path(f"{hits.folder}/checkpoint").mkdir()
    Path(f"{hits.folder}/checkpoint/metadata").write_text(json.dumps({"id": uuid4().hex}))
    to, values = ingest.target(settings, Unmounted()), Values.from_settings(settings.pipeline)
    value_batch.write(to, values, session.createDataFrame([], found.schema), 0)
    session._jsparkSession.listenerManager().clear()
    monkeypatch.setattr(observed, "WAIT_SECONDS", 0.5)
    value_batch.write(to, values, records, 1)
    assert delta.read(hits.spark, to.table).count() == 2
    assert hits.quarantined() == REASONS


def test_a_batch_is_not_finished_with_another_schema_than_it_was_begun_with(hits, monkeypatch):
    records = hits.records(b'{"ip":"192.0.2.1","hittime":"2026-01-02T03:04:05Z"}', *BAD)
    Path(f"{hits.folder}/checkpoint").mkdir()
    Path(f"{hits.folder}/checkpoint/metadata").write_text(json.dumps({"id": uuid4().hex}))
    to = ingest.target(hits.settings(), Unmounted())
    values = Values.from_settings(hits.settings().pipeline)
    with monkeypatch.context() as patched:
        patched.setattr(value_batch, "write_left", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            value_batch.write(to, values, records, 0)
    mended = Values.from_settings(hits.settings(value_schema="ip STRING, hittime TIMESTAMP").pipeline)
    with pytest.raises(
        IngestError, match="batch 0 of pipeline isp was written in part with another value_sch"
    ):
        value_batch.write(replace(to, start=uuid4().hex), mended, records, 0)
    assert hits.quarantined() == Counter()
    value_batch.write(replace(to, start=uuid4().hex), values, records, 0)
    assert hits.quarantined() == REASONS
    assert delta.read(hits.spark, to.table).count() == 1


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Asia/Kathmandu", "Australia/Lord_Howe"])
def test_windows_are_those_of_plain_python_in_each_time_zone(hits, zone):
    start = datetime.now(timezone.utc) - timedelta(hours=2)
    hits.publish(2_000, start=start.isoformat(), damaged=3)
    hits.spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        stream = tl.read_values(hits.spark, hits.settings())
        utc = "to_utc_timestamp({0}, current_timezone()) AS {0}"
        rows = hits.result(stream.selectExpr(utc.format("hittime"), "zipcode"), "append")
        counts = tl.hits_per_window(tl.read_values(hits.spark, hits.settings()))
        shown = counts.selectExpr(utc.format("start"), utc.format("end"), "zip", "count")
        found = hits.result(shown, "complete")
    finally:
        hits.spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert len(rows) == 1_997
    assert {tuple(row[:3]): row[3] for row in found} == expected_windows(rows)


def test_what_a_stream_leaves_out_is_in_quarantine_and_one_hit_ahead_closes_no_window(hits):
    now = datetime.now(timezone.utc)
    hits.publish(300, start=(now - timedelta(hours=1)).isoformat(), minutes=30)
    year_ahead = (now + timedelta(days=365)).isoformat()
    hits.send(*BAD, json.dumps({"ip": "192.0.2.9", "zipcode": "10001", "hittime": year_ahead}).encode())
    query = tl.start_quarantine(hits.spark, hits.settings(), Unmounted())
    tl.await_caught_up(query, "availableNow")
    per_zip = dict(hits.result(tl.hits_per_zip(tl.read_values(hits.spark, hits.settings())), "complete"))
    windows = hits.result(tl.hits_per_window(tl.read_values(hits.spark, hits.settings())), "complete")
    assert sum(per_zip.values()) == 301
    assert set(per_zip) >= {"00501", "94016"}
    assert sum(row[3] for row in windows) == 600
    assert hits.quarantined() == REASONS
    again = tl.start_quarantine(hits.spark, hits.settings(), Unmounted())
    tl.await_caught_up(again, "availableNow")
    assert hits.quarantined() == REASONS


def test_plain_avro_is_no_stream_of_values(hits):
    plain = hits.settings(value_format="avro", value_schema=None, avro_form="plain")
    with pytest.raises(ConfigError, match="are plain Avro"):
        tl.read_values(hits.spark, plain)
