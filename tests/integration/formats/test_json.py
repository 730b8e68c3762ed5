"""Topics of JSON into Delta tables, into windows and into the quarantine, on the embedded broker."""

import json
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from uuid import uuid4

import pytest

import topiclake as tl
from tests.support.local_rows import local_rows
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, DecodeError, IngestError
from topiclake.formats.declared import DeclaredFormat
from topiclake.ingest import declared_batch, targets
from topiclake.streaming import observation
from topiclake_examples.isp import hits_per_window, hits_per_zip

RIGHT = b'{"ip":"192.0.2.1","hittime":"2026-01-02T03:04:05Z"}'
CUT = b'{"ip":"192.0.2.1","is'
BAD = [CUT, b'{"ip":"192.0.2.1"}', b"", b"\xff", None]
REASONS = Counter(undecodable=4, tombstone=1)


def expected_windows(rows):
    """Count in plain Python: windows of 10 minutes every 5 minutes from 2 minutes past the hour."""
    counts = Counter()
    for hit_seconds, zipcode in rows:
        latest = (hit_seconds - 120) // 300 * 300 + 120
        for start in (latest, latest - 300):
            counts[start, start + 600, zipcode[:5]] += 1
    return counts


@pytest.mark.thorough("classes of a jar are tested in test_deserializers")
def test_what_a_kafka_class_reads_is_in_the_table_and_the_rest_in_quarantine(hits):
    tl.ensure_topic(hits.settings().kafka, hits.topic, 2)
    hits.send(*[b'{"ip":"192.0.2.1","status":200}'] * 17, *[CUT] * 3)
    given = {
        "value_format": "custom",
        "deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        "value_schema": "ip STRING NOT NULL, status INT",
    }
    assert hits.ingest(**given).count() == 17
    assert hits.quarantined() == Counter(undecodable=3)
    assert tl.audit_ingest(hits.spark, hits.settings(**given)).ok
    rows = tl.read_values(hits.spark, hits.settings(**given))
    assert len(hits.result(rows.select("ip"), "append")) == 17
    with pytest.raises(ConfigError, match="is no deserializer"):
        hits.ingest(**given | {"deserializer": "os:system"})


def test_failfast_names_the_record_and_writes_nothing_of_its_batch(hits):
    tl.ensure_topic(hits.settings().kafka, hits.topic, 2)
    hits.send(*[RIGHT] * 20, CUT)
    with pytest.raises(
        DecodeError, match=f"topic {hits.topic}, partition \\d, offset \\d+, reason undecodable"
    ):
        hits.ingest(mode="FAILFAST")
    assert delta.read(hits.spark, f"{hits.folder}/table").count() == 0
    assert hits.quarantined() == Counter()


# Batches without a query: cut off between their commits, and finished by another start


@pytest.fixture
def begun(hits):
    """Where the batches of a checkpoint go, and what their values mean."""
    Path(f"{hits.folder}/checkpoint").mkdir()
    Path(f"{hits.folder}/checkpoint/metadata").write_text(json.dumps({"id": uuid4().hex}))
    settings = hits.settings()
    return targets.target(settings), DeclaredFormat.from_settings(settings.pipeline)


def another_start(target):
    return replace(target, start=uuid4().hex)


@pytest.mark.slow("three batches, and the starts that are refused between them")
def test_batches_land_once_after_a_crash_as_they_were_begun_and_where_spark_loses_their_counts(
    hits, begun, monkeypatch, caplog
):
    (to, values), records = begun, hits.records(RIGHT, *BAD, RIGHT)
    with monkeypatch.context() as patched:
        patched.setattr(declared_batch, "write_rejected", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            declared_batch.write(to, values, records, 0, resumed_offsets={"isp": {0: (0, 5)}})
    mended = DeclaredFormat.from_settings(hits.settings(value_schema="ip STRING, hittime TIMESTAMP").pipeline)
    # A time without a zone is read in the session's.
    other_zone = hits.spark.newSession()
    other_zone.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    elsewhere = local_rows(other_zone, [], records.schema)
    for changed, given in ((mended, records), (values, elsewhere)):
        with pytest.raises(IngestError) as raised:
            declared_batch.write(another_start(to), changed, given, 0)
        assert raised.value.fields == {"pipeline": "isp", "batch_id": 0, "reason": "values_changed"}
    with pytest.raises(IngestError) as raised:
        declared_batch.write(another_start(to), values, records, 0, resumed_offsets={"isp": {0: (0, 4)}})
    assert raised.value.fields["reason"] == "offsets_changed"
    assert hits.quarantined() == Counter()

    anew, session = another_start(to), hits.spark.newSession()
    declared_batch.write(anew, values, records, 0)
    declared_batch.write(anew, values, local_rows(session, [], records.schema), 1)
    # A listener tells the counts: of a bus that drops what it cannot hold, and that anybody may clear.
    session._jsparkSession.listenerManager().clear()
    monkeypatch.setattr(observation, "WAIT_SECONDS", 0.5)
    declared_batch.write(anew, values, local_rows(session, records.collect(), records.schema), 2)
    assert f"batch 2 is in {to.table}, but Spark did not deliver its metrics" in caplog.text

    assert delta.read(hits.spark, to.table).count() == 2 + 0 + 2
    assert hits.quarantined() == REASONS + REASONS


@pytest.mark.thorough("the other side of the same commit")
def test_batches_that_were_whole_before_a_crash_are_not_written_again(hits, begun):
    (to, values), records = begun, hits.records(RIGHT, *BAD, RIGHT)
    declared_batch.write(to, values, records, 0)
    anew = another_start(to)
    declared_batch.write(anew, values, records, 0)
    declared_batch.write(anew, values, hits.records(RIGHT), 1)
    assert delta.read(hits.spark, to.table).count() == 3
    assert hits.quarantined() == REASONS


# Streams of values


@pytest.mark.thorough("counts by windows are tested in test_late")
def test_a_stream_counts_as_plain_python_does_and_what_it_leaves_out_is_in_quarantine(hits):
    now = datetime.now(timezone.utc)
    hits.publish(500, start=(now - timedelta(hours=2)).isoformat(), damaged=3)
    year_ahead = (now + timedelta(days=365)).isoformat()
    hits.send(*BAD, json.dumps({"ip": "192.0.2.9", "zipcode": "10001", "hittime": year_ahead}).encode())
    hits.spark.conf.set("spark.sql.session.timeZone", "Australia/Lord_Howe")
    try:
        rows, windows = read_and_counted(hits)
    finally:
        hits.spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert len(rows) == 498
    # The hit ahead closes no window, and is in none.
    in_time = [row for row in rows if row[0] < now.timestamp()]
    assert len(in_time) == 497
    assert windows == expected_windows(in_time)

    per_zip = dict(hits.result(hits_per_zip(tl.read_values(hits.spark, hits.settings())), "complete"))
    assert per_zip == Counter(zipcode[:5] for _, zipcode in rows)
    assert set(per_zip) >= {"00501", "94016"}
    query = tl.start_quarantine(hits.spark, hits.settings())
    tl.await_caught_up(query, "availableNow")
    assert hits.quarantined() == REASONS + Counter(undecodable=3)


def read_and_counted(hits):
    """What a stream reads, and what another one counts in windows; times as seconds since 1970."""
    values = tl.read_values(hits.spark, hits.settings())
    rows = hits.result(values.selectExpr("unix_seconds(hittime)", "zipcode"), "append")
    counts = hits_per_window(tl.read_values(hits.spark, hits.settings()))
    shown = counts.selectExpr("unix_seconds(start)", "unix_seconds(end)", "zip", "count")
    return rows, {tuple(row[:3]): row[3] for row in hits.result(shown, "complete")}


def test_plain_avro_is_no_stream_of_values(hits):
    plain = hits.settings(value_format="avro", value_schema=None, avro_form="plain")
    with pytest.raises(ConfigError, match="are plain Avro"):
        tl.read_values(hits.spark, plain)
