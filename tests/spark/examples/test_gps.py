"""Questions to GPS events, and their picture."""

from datetime import datetime
from pathlib import Path

import pytest

from tests.support.local_rows import local_rows
from topiclake_examples.gps import counts_per_device, last_positions, recorded_positions, track_map

TRACKS = Path(__file__).parents[3] / "data" / "gps_tracks.csv"
SCHEMA = (
    "deviceId STRING, timestamp TIMESTAMP, latitude DOUBLE, longitude DOUBLE, altitude DOUBLE, speed DOUBLE"
)


def at(second: int) -> datetime:
    return datetime(2026, 1, 2, 3, 4, second)


@pytest.fixture
def gps_events(spark):
    rows = [
        ("near-1", at(2), 45.2, 14.2, 500.0, 5.0),
        ("near-1", at(1), 45.1, 14.1, 501.0, 4.0),
        ("near-2", at(7), 45.1, 14.2, 502.0, 330.0),
        ("far <b>", at(3), 60.0, 5.0, 3.0, 0.0),
    ]
    return local_rows(spark, rows, SCHEMA)


def test_records_are_counted_per_device_most_first(gps_events):
    counts = counts_per_device(gps_events)
    assert counts.columns == ["deviceId", "records", "first", "last"]
    assert [tuple(row) for row in counts.collect()] == [
        ("near-1", 2, at(1), at(2)),
        ("far <b>", 1, at(3), at(3)),
        ("near-2", 1, at(7), at(7)),
    ]


def test_the_last_position_is_that_of_the_newest_time(gps_events):
    positions = last_positions(gps_events)
    assert positions.columns == gps_events.columns
    assert [(row["deviceId"], row["latitude"]) for row in positions.collect()] == [
        ("far <b>", 60.0),
        ("near-1", 45.2),
        ("near-2", 45.1),
    ]


def test_the_map_has_a_panel_for_each_region_and_needs_no_network(gps_events):
    page = track_map(gps_events)
    assert '"text":"near-1, near-2"' in page
    # Plotly takes tags in titles for its own.
    assert "far &lt;b&gt;" in page
    assert r"far \u003cb" not in page
    assert "<script src" not in page
    assert page.count('"type":"scatter"') >= 3


def test_a_map_of_nothing_says_so(gps_events):
    assert track_map(gps_events.limit(0)) == "<p>No GPS events yet: nothing to draw.</p>"


def test_a_map_draws_at_most_what_it_is_told(gps_events):
    assert "near-2" not in track_map(gps_events, max_points=2)


def test_recorded_tracks_are_positions_of_numbered_devices(spark):
    positions = recorded_positions(spark, TRACKS)
    assert positions.schema.simpleString() == (
        "struct<timestamp:bigint,deviceId:bigint,latitude:double,longitude:double,altitude:double,speed:double>"
    )
    assert not any(field.nullable for field in positions.schema)
    counts = positions.groupBy("deviceId").count().orderBy("deviceId")
    assert [tuple(row) for row in counts.collect()] == [(1001, 184), (1002, 296), (1003, 513)]
    assert tuple(positions.first()) == (-2147483647792, 1001, 46.434981, 13.748273, 1614.68, 0.0)
