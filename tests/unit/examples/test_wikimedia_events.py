"""Wikimedia's events as Avro, recorded and made."""

from __future__ import annotations

import io
import json
import time
from datetime import datetime
from pathlib import Path

import fastavro
import pytest

from tests.support.stand_in import stand_in
from topiclake.errors import ConfigError
from topiclake_examples.wikimedia import events as wikimedia_events

RECORDED = Path(__file__).parents[3] / "data" / "wikimedia_recentchange.ndjson"
LINES = [json.loads(line) for line in RECORDED.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def events():
    return wikimedia_events.read_events(RECORDED)


def round_trip(value):
    schema, stream = (
        fastavro.parse_schema(json.loads(json.dumps(wikimedia_events.RECENT_CHANGE))),
        io.BytesIO(),
    )
    fastavro.schemaless_writer(stream, schema, value)
    stream.seek(0)
    return fastavro.schemaless_reader(stream, schema)


def test_every_field_of_every_recorded_event_is_in_its_avro(events):
    assert sorted(LINES, key=lambda event: event["timestamp"]) == events
    for event in events:
        found = {
            name: value
            for name, value in round_trip(wikimedia_events.as_value(event)).items()
            if value is not None
        }
        found["$schema"] = found.pop("schema")
        assert found == event


@pytest.mark.parametrize(
    "params", [{"img": "ä.png"}, [], [1, "a"], "plain", 'with "quotes"', 3, None, {"a": {"b": [None, 1.5]}}]
)
def test_parameters_of_a_log_are_json_whatever_they_are(events, params):
    event = events[0] | {
        "type": "log",
        "log_params": params,
        "length": None,
        "revision": {"old": None, "new": 7},
    }
    found = round_trip(wikimedia_events.as_value(event))
    assert json.loads(found["log_params"]) == params
    assert found["length"] is None
    assert found["revision"] == {"old": None, "new": 7}


def test_an_event_may_lack_all_but_its_meta_and_hold_what_nobody_knows():
    event = {
        "$schema": "/mediawiki/recentchange/1.0.1",
        "meta": {"dt": "2026-01-02T03:04:05Z", "stream": "s"},
    }
    found = round_trip(wikimedia_events.as_value(event | {"new_field": 1}))
    assert {name for name, value in found.items() if value is not None} == {"schema", "meta"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bot": "no"}, "bot"),
        ({"id": 1.5}, "id"),
        ({"length": 7}, "length"),
        ({"meta": None}, "meta"),
        ({"$schema": None}, "schema"),
    ],
)
def test_what_is_no_event_is_refused_with_its_field(events, change, message):
    with pytest.raises(ValueError, match=message):
        wikimedia_events.as_value(events[0] | change)
    with pytest.raises(ValueError, match="no JSON object"):
        wikimedia_events.as_value([events[0]])


@pytest.mark.parametrize("line", ["{", "[]", "7", "{}", '{"$schema": "x", "meta": {"dt": "", "stream": ""}}'])
def test_a_broken_line_is_named(tmp_path, line):
    file = tmp_path / "events.ndjson"
    file.write_text(f"{json.dumps(LINES[0])}\n{line}\n")
    with pytest.raises(ConfigError, match=f"{file}, line 2 ") as raised:
        wikimedia_events.read_events(file)
    assert raised.value.fields == {"file": str(file), "line": 2, "reason": "line"}


def test_files_without_events_are_told(tmp_path):
    with pytest.raises(ConfigError, match="; try: git checkout") as raised:
        wikimedia_events.read_events(tmp_path / "none.ndjson")
    assert raised.value.fields == {"file": str(tmp_path / "none.ndjson"), "reason": "missing"}
    (tmp_path / "empty.ndjson").touch()
    with pytest.raises(ConfigError) as raised:
        wikimedia_events.read_events(tmp_path / "empty.ndjson")
    assert raised.value.fields == {"file": str(tmp_path / "empty.ndjson"), "reason": "empty"}


def test_made_events_follow_the_recorded_ones_the_same_for_the_same_seed(events):
    made = list(wikimedia_events.multiplied(events, 350, 7))
    assert made[:100] == events
    assert made == list(wikimedia_events.multiplied(events, 350, 7))
    assert made != list(wikimedia_events.multiplied(events, 350, 8))
    assert len({event["meta"]["id"] for event in made}) == 350
    assert len({event["id"] for event in made}) == 350
    times = [event["timestamp"] for event in made]
    assert times == sorted(times)
    assert times[100] == times[99] + 1
    for event in made:
        assert datetime.fromisoformat(
            event["meta"]["dt"].replace("Z", "+00:00")
        ).timestamp() == pytest.approx(event["timestamp"], abs=120)
        wikimedia_events.as_value(event)
    assert list(wikimedia_events.multiplied(events, 30, 7)) == events[:30]
    assert events == wikimedia_events.read_events(RECORDED), "making leaves them alone"


def test_a_shift_moves_both_times_of_an_event(events):
    event = wikimedia_events.shifted(events[0], 86_400)
    assert (event["meta"]["dt"], event["timestamp"]) == ("2023-07-30T07:51:39Z", 1690617099 + 86_400)
    assert events[0]["meta"]["dt"] == "2023-07-29T07:51:39Z"


def test_events_are_played_as_far_apart_as_they_were(events, monkeypatch):
    now, waited = [100.0], []

    def sleep(seconds):
        waited.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(wikimedia_events, "time", stand_in(time, monotonic=lambda: now[0], sleep=sleep))
    assert list(wikimedia_events.played(events, 10)) == events
    assert sum(waited) == pytest.approx((events[-1]["timestamp"] - events[0]["timestamp"]) / 10)
    del waited[:]
    assert list(wikimedia_events.played(events, 0)) == events
    assert waited == []
