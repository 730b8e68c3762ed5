"""Logs of Nest devices: made, read, and what is taken out of them."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from tests.support.local_rows import local_rows
from topiclake.config.load import load_settings
from topiclake.errors import ConfigError
from topiclake.formats.declared import DeclaredFormat
from topiclake_examples.nest import cameras as nest_cameras
from topiclake_examples.nest import report as nest_report
from topiclake_examples.nest.locations import read_locations
from topiclake_examples.nest.logs import NestLogs

CONF = Path(__file__).parents[3] / "conf"
START = datetime(2026, 1, 2, 3, tzinfo=timezone.utc)
ENVIRONMENT = {
    "WORKBENCH_KAFKA": "k:1",
    "WORKBENCH_SCHEMA_REGISTRY": "http://r",
    "WORKBENCH_DATALAKE": "file:///d",
}


@pytest.fixture
def pipeline(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return load_settings("nest", {}, conf=CONF).pipeline


@pytest.fixture
def logs(spark, pipeline):
    """Make logs and read them, as pipeline `nest` does."""

    def made(count=60, **given):
        values = {"seed": 1, "logs": count, "homes": 6, "start": START, "minutes": 90, "offline": 2}
        text = (
            NestLogs(pipeline.value_schema, pipeline.timestamp_format, **(values | given))
            .text()
            .cast("binary")
            .alias("value")
        )
        records = spark.range(count).select("id", text)
        decoded = DeclaredFormat.from_settings(pipeline).decode(records)
        assert decoded.where("reason <> 'ok'").count() == 0
        kafka = F.struct(
            F.lit(0).alias("partition"), F.col("id").alias("offset"), F.lit(START).alias("timestamp")
        )
        return decoded.select("event.*", kafka.alias("_kafka"))

    return made


def empty(value, path=""):
    """Say where a value holds nulls or nothing."""
    if isinstance(value, dict) and value:
        return [one for name, inner in value.items() for one in empty(inner, f"{path}.{name}")]
    if isinstance(value, list) and value:
        return [one for inner in value for one in empty(inner, f"{path}[]")]
    return [path] if value in (None, {}, []) else []


def test_a_log_has_every_field_of_the_schema_and_its_own_devices(logs):
    row = logs(1, homes=1, seed=3).first().asDict(recursive=True)
    assert empty(row) == []
    assert list(row["structures"]) == ["home-0000"]
    assert row["structures"]["home-0000"]["cameras"] == list(row["devices"]["cameras"])
    ids = {name: list(devices) for name, devices in row["devices"].items()}
    assert ids == {
        "thermostats": ["home-0000-thermostat"],
        "smoke_co_alarms": ["home-0000-alarm"],
        "cameras": ["home-0000-camera-1"],
        "companyName": ["home-0000-meter"],
    }


@pytest.mark.thorough("made data of an example")
def test_the_same_seed_makes_the_same_logs_in_each_time_zone(spark, logs):
    def rows_of(**given):
        seen = nest_cameras.nest_cameras(logs(20, **given)).select(
            "device_id", "last_event.has_person", F.unix_micros("last_event.start_time")
        )
        return sorted(map(tuple, seen.collect()))

    first = rows_of()
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        assert rows_of() == first
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert rows_of(seed=2) != first
    begin = START.timestamp()
    assert all(begin - 60 < micros / 1e6 <= begin + 90 * 60 for _, _, micros in first)


def test_the_newest_state_of_a_camera_is_by_its_own_time_whatever_the_order(logs):
    cameras = nest_cameras.nest_cameras(logs())
    states = {row["device_id"]: row for row in nest_cameras.camera_states(cameras).collect()}
    assert len(states) == 12
    failed = {device for device, row in states.items() if not row["is_online"]}
    assert failed == {"home-0000-camera-1", "home-0001-camera-1"}
    first_told = cameras.where("device_id = 'home-0000-camera-1' AND is_online").limit(1)
    late = first_told.withColumn(
        "_kafka",
        F.struct(F.lit(0), F.lit(10**9), F.lit(START)).cast(
            "STRUCT<partition: INT, offset: BIGINT, timestamp: TIMESTAMP>"
        ),
    )
    again = (
        nest_cameras.camera_states(cameras.unionByName(late))
        .where("device_id = 'home-0000-camera-1'")
        .first()
    )
    assert again == states["home-0000-camera-1"]


def test_a_notification_says_which_camera_and_since_when(logs):
    notifications = (
        nest_cameras.camera_notifications(nest_cameras.camera_states(nest_cameras.nest_cameras(logs())))
        .orderBy("subject")
        .collect()
    )
    assert [row["is_wrong"] for row in notifications[:3]] == [True, True, False]
    assert (
        notifications[0]["text"]
        == "camera home-0000-camera-1 Hallway Camera is offline since 2026-01-02 03:45:00 UTC"
    )


@pytest.mark.thorough("a further row of the example")
def test_a_camera_that_is_nowhere_counts_without_zip_code(spark, logs):
    cameras = nest_cameras.nest_cameras(logs())
    places = local_rows(spark, [("home-0000-camera-1", "94103")], "device_id STRING, zip_code STRING")
    counts = nest_cameras.sightings_per_hour(cameras, places)
    seen = cameras.where("last_event.has_person")
    assert counts.agg(F.sum("count")).first()[0] == seen.count()
    of_first = counts.where("zip_code = '94103'").agg(F.sum("count")).first()[0]
    assert of_first == seen.where("device_id = 'home-0000-camera-1'").count() > 0
    keys = {row["key"] for row in nest_cameras.sighting_records(counts).collect()}
    assert '{"zip_code":"94103","start":"2026-01-02T03:00:00Z","end":"2026-01-02T04:00:00Z"}' in keys
    assert any(key.startswith('{"zip_code":null,') for key in keys)


def test_lines_of_the_old_system_are_read_and_others_told():
    line = "cam;02108;Montréal".encode("latin-1")
    assert list(read_locations([line])) == [{"device_id": "cam", "zip_code": "02108", "city": "Montréal"}]
    with pytest.raises(ValueError, match="a line has 2 parts"):
        list(read_locations([line, b"cam;02108"]))


def test_the_report_holds_what_is_more_than_asked_and_the_chart_shows_it(spark):
    key = '{"zip_code":"94103","start":"2026-01-02T03:00:00Z","end":"2026-01-02T04:00:00Z"}'
    values = [(key, "1001"), (key.replace("94103", "10001"), "1000"), ("no key", "5000"), (key, "many")]
    records = local_rows(spark, values, "key STRING, value STRING").select(
        F.col("key").cast("binary"), F.col("value").cast("binary")
    )
    rows = [tuple(row) for row in nest_report.sightings_report(records).collect()]
    assert [(row[0], row[3]) for row in rows] == [("94103", 1001)]
    chart = nest_report.sightings_chart(nest_report.sightings_report(records))
    assert "94103" in chart
    assert "2026-01-02 03:00" in chart
    assert "10001" not in chart
    assert "nothing to draw" in nest_report.sightings_chart(
        nest_report.sightings_report(records, more_than="9999")
    )
    with pytest.raises(ConfigError, match="more_than is 'many'"):
        nest_report.sightings_report(records, more_than="many")
