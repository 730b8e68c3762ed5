import io
import itertools
import json
import time
from pathlib import Path

import fastavro
import pytest

from tests.support.stand_in import stand_in
from topiclake.config.load import load_settings
from topiclake.errors import ConfigError
from topiclake_examples import avro_producer
from topiclake_examples.gps import tracks as gps_tracks

PROJECT = Path(__file__).parents[3]
TRACKS = PROJECT / "data" / "gps_tracks.csv"
HEAD = "track,timestamp_ms,latitude,longitude,altitude_m,speed_kmh\n"


@pytest.fixture(scope="module")
def tracks():
    return gps_tracks.read_tracks(TRACKS)


@pytest.fixture
def csv_file(tmp_path):
    def written(text):
        (tmp_path / "tracks.csv").write_text(text)
        return tmp_path / "tracks.csv"

    return written


# Reading


def test_the_recorded_tracks_are_three_with_993_points(tracks):
    assert [track[0]["deviceId"] for track in tracks] == sorted(
        {e["deviceId"] for t in tracks for e in t},
        key=list(dict.fromkeys(line.split(",")[0] for line in TRACKS.read_text().splitlines()[1:])).index,
    )
    assert len(tracks) == 3
    assert sum(map(len, tracks)) == 993


def test_each_point_is_kept_as_it_stands_in_the_file(tracks):
    lines = TRACKS.read_text().splitlines()[1:]
    events = {name: iter(track) for track in tracks for name in [track[0]["deviceId"]]}
    for line in lines:
        name, timestamp, *numbers = line.split(",")
        event = next(events[name])
        assert list(event.values()) == [int(timestamp), name, *map(float, numbers)]


def test_times_of_a_broken_clock_stay_negative(tracks):
    assert tracks[0][0]["timestamp"] == -2147483647792
    assert any(event["timestamp"] > 0 for track in tracks for event in track)


def test_tracks_as_of_now_end_now_and_keep_the_time_between_their_points(tracks):
    now = 1_800_000_000_000
    for recorded, played in zip(tracks, gps_tracks.as_of(tracks, now), strict=True):
        times = [[event["timestamp"] for event in track] for track in (recorded, played)]
        assert max(times[1]) == now
        assert [one - times[0][0] for one in times[0]] == [one - times[1][0] for one in times[1]]
        assert [event | {"timestamp": 0} for event in recorded] == [
            event | {"timestamp": 0} for event in played
        ]


def test_each_event_can_be_written_with_the_registered_schema(tracks):
    schema = fastavro.parse_schema(json.loads(json.dumps(gps_tracks.GPS_SCHEMA)))
    event = tracks[0][0]
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, event)
    stream.seek(0)
    found = fastavro.schemaless_reader(stream, schema)
    assert {key: found[key] for key in event if key != "timestamp"} == {
        key: event[key] for key in event if key != "timestamp"
    }


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ("A,1,1,1,1,1\nA,x,1,1,1,1\n", 3),
        ("A,1,1,1,1\n", 2),
        ("A,1,1,1,1,1\n\n\nA,1,,1,1,1\n", 5),
    ],
)
def test_a_broken_line_is_named(csv_file, lines, number):
    file = csv_file(HEAD + lines)
    with pytest.raises(ConfigError, match=f"{file}, line {number} ") as raised:
        gps_tracks.read_tracks(file)
    assert raised.value.fields == {"file": str(file), "line": number, "reason": "line"}


def test_a_file_with_other_columns_is_refused(csv_file):
    file = csv_file("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=r"\(KeyError\('timestamp_ms'\)\)") as raised:
        gps_tracks.read_tracks(file)
    assert raised.value.fields == {"file": str(file), "line": 2, "reason": "line"}


def test_a_missing_file_names_the_command_that_brings_it_back(tmp_path):
    with pytest.raises(ConfigError, match="; try: git checkout") as raised:
        gps_tracks.read_tracks(tmp_path / "none.csv")
    assert raised.value.fields == {"file": str(tmp_path / "none.csv"), "reason": "missing"}


# Playing


def by_device(events):
    found = {}
    for event in events:
        found.setdefault(event["deviceId"], []).append({**event, "deviceId": None})
    return found


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 7, 10])
def test_each_device_walks_one_track_from_start_to_end(tracks, devices):
    played = by_device(gps_tracks.play(tracks, devices))
    assert len(played) == devices
    assert [len(walk) for walk in played.values()] == [len(tracks[n % 3]) for n in range(devices)]
    for number, walk in enumerate(played.values()):
        assert walk == [{**event, "deviceId": None} for event in tracks[number % 3]]


def test_the_first_devices_have_the_tracks_names_and_later_ones_a_number(tracks):
    names = [track[0]["deviceId"] for track in tracks]
    played = by_device(gps_tracks.play(tracks, 7))
    assert list(played) == [*names, *(f"{name}-2" for name in names), f"{names[0]}-3"]


def test_devices_walk_at_the_same_time(tracks):
    first = [event["deviceId"] for event in itertools.islice(gps_tracks.play(tracks, 3), 6)]
    assert first == [track[0]["deviceId"] for track in tracks] * 2


def test_three_devices_send_each_recorded_point_once(tracks):
    assert sum(1 for _ in gps_tracks.play(tracks, 3)) == 993


# Pace


def test_paced_events_keep_the_rate_and_the_order():
    start = time.monotonic()
    assert list(avro_producer.rate_limited(range(21), 200)) == list(range(21))
    elapsed = time.monotonic() - start
    assert elapsed >= 20 / 200


def test_the_first_event_does_not_wait(monkeypatch):
    monkeypatch.setattr(avro_producer, "time", stand_in(time, sleep=lambda _: pytest.fail("it waited")))
    assert next(avro_producer.rate_limited([7], 0.001)) == 7


def test_a_rate_of_zero_never_waits(monkeypatch):
    monkeypatch.setattr(avro_producer, "time", stand_in(time, sleep=lambda _: pytest.fail("it waited")))
    assert sum(avro_producer.rate_limited(range(10_000), 0)) == sum(range(10_000))


# What publishing refuses before it asks any service


@pytest.fixture
def settings(monkeypatch):
    """Addresses at which nothing answers: who asks them gets another error."""
    monkeypatch.setenv("WORKBENCH_KAFKA", "localhost:1")
    monkeypatch.setenv("WORKBENCH_DATALAKE", "file:///nowhere")
    monkeypatch.setenv("WORKBENCH_SCHEMA_REGISTRY", "http://localhost:1")
    return load_settings("gps", {}, conf=PROJECT / "conf")


@pytest.mark.parametrize("devices", ["abc", "", 0, "0", -1, "-1", "nan", "inf", "-inf", "1.5", 2.5])
def test_a_number_of_devices_that_makes_no_sense_is_refused(settings, devices):
    with pytest.raises(ConfigError) as raised:
        gps_tracks.publish_tracks(settings, TRACKS, devices=devices)
    assert raised.value.fields == {"parameter": "devices", "found": devices, "minimum": 1}
    assert f"devices is {devices!r}" in raised.value.cause
    assert "at least 1" in raised.value.cause


@pytest.mark.parametrize("rate", ["abc", "", -1, "-0.5", "nan", "inf"])
def test_a_rate_that_makes_no_sense_is_refused(settings, rate):
    with pytest.raises(ConfigError) as raised:
        gps_tracks.publish_tracks(settings, TRACKS, devices="3", records_per_second=rate)
    assert raised.value.fields == {"parameter": "records_per_second", "found": rate, "minimum": 0}
    assert "a number, at least 0" in raised.value.cause


def test_times_that_are_neither_are_refused(settings):
    with pytest.raises(ConfigError) as raised:
        gps_tracks.publish_tracks(settings, TRACKS, devices=3, times="later")
    assert raised.value.fields == {"parameter": "times", "found": "later", "allowed": ("now", "recorded")}


def test_missing_tracks_are_noticed_before_the_broker(settings, tmp_path):
    with pytest.raises(ConfigError) as raised:
        gps_tracks.publish_tracks(settings, tmp_path / "none.csv", devices=3, records_per_second=0)
    assert raised.value.fields == {"file": str(tmp_path / "none.csv"), "reason": "missing"}
