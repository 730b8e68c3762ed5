"""Server-sent events from a real server that breaks off, as Wikimedia's does after a quarter of an hour."""

from __future__ import annotations

import time
from collections import deque
from itertools import islice

import pytest

from tests.support.stand_in import stand_in
from tests.unit.examples.sse_server import event_id, serving
from topiclake.errors import EventStreamError
from topiclake_examples.wikimedia import event_stream

LINES = [f"line {number} {'ü' * (number % 7)}" for number in range(60)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Waits of a few milliseconds."""
    monkeypatch.setattr(event_stream, "_FIRST_WAIT", 0.001)


def follow(server, **given):
    return event_stream.follow(server.url, user_agent="topiclake/1 (tests)", **given)


def test_events_come_in_order_with_their_ids():
    with serving(LINES) as server:
        found = list(islice(follow(server, params={"since": "2026-01-02T00:00:00Z"}), len(LINES)))
    assert [event.data for event in found] == LINES
    assert [event.id for event in found] == [event_id(number) for number in range(len(LINES))]
    (asked,) = server.asked
    assert asked["User-Agent"] == "topiclake/1 (tests)"
    assert asked["Accept"] == "text/event-stream"
    assert asked["since"] == "2026-01-02T00:00:00Z"
    assert "Last-Event-ID" not in asked


@pytest.mark.parametrize("where", range(0, 460, 23))
def test_a_stream_that_breaks_off_anywhere_loses_and_doubles_nothing(where):
    # The second connection breaks behind the id of an event whose data never came, which some clients take
    # for the last one that they know.
    with serving(LINES, answers=[float(where), float(5 + len(b"event: message\nid: ") + 90), 503]) as server:
        found = list(islice(follow(server), len(LINES)))
    assert [event.data for event in found] == LINES
    assert len(server.asked) == 4


def test_a_stream_goes_on_behind_an_event_that_is_known():
    with serving(LINES) as server:
        found = list(islice(follow(server, after=event_id(41), params={"since": "x"}), 3))
    assert [event.data for event in found] == LINES[42:45]
    assert "since" not in server.asked[0], "an id says more"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_cannot_for_now_is_asked_again(status):
    with serving(LINES, answers=[status, status]) as server:
        assert next(follow(server)).data == LINES[0]
    assert len(server.asked) == 3


def test_a_server_is_not_asked_sooner_than_it_wants(monkeypatch):
    waited = []
    monkeypatch.setattr(event_stream, "time", stand_in(time, sleep=waited.append))
    with serving(LINES, answers=[429], headers={"Retry-After": "7"}) as server:
        next(follow(server))
    assert waited == [7]


@pytest.mark.parametrize("status", [400, 403, 404])
def test_a_refusal_for_good_is_told_at_once(status):
    with serving(LINES, answers=[status]) as server, pytest.raises(EventStreamError) as raised:
        next(follow(server))
    assert raised.value.fields == {
        "url": server.url,
        "status": status,
        "reason": "InvalidStatusCodeError",
        "last_event": None,
    }
    assert raised.value.remedy == "run it again later"
    assert len(server.asked) == 1


def test_what_is_no_stream_of_events_is_told():
    with serving(LINES, content_type="text/html") as server, pytest.raises(EventStreamError) as raised:
        next(follow(server))
    assert raised.value.fields == {
        "url": server.url,
        "reason": "InvalidContentTypeError",
        "last_event": None,
    }


def test_a_server_that_does_not_come_back_is_told_with_where_to_go_on():
    with serving(LINES, answers=[400.0]) as server:
        events = follow(server, patience=0.2)
        seen = [next(events)]
        server.answers += [503] * 10_000
        with pytest.raises(EventStreamError) as raised:
            deque(map(seen.append, events))
    assert raised.value.fields["status"] == 503
    assert raised.value.fields["last_event"] == seen[-1].id
    assert raised.value.remedy == f"run it again with after={seen[-1].id!r}"


def test_nobody_listens():
    with serving(LINES) as server:
        pass
    with pytest.raises(EventStreamError, match="cannot be reached"):
        next(follow(server, patience=0.1))


def test_what_is_no_utf_8_is_told_with_where_it_stands():
    with serving(LINES) as server:
        whole = server.stream
        server.stream = lambda after: whole(after)[:400] + b"data: \xff\n\n"
        events, seen = follow(server), []
        with pytest.raises(EventStreamError, match="sends what is no UTF-8") as raised:
            deque(map(seen.append, events))
    assert raised.value.fields["reason"] == "UnicodeDecodeError"
    assert raised.value.fields["last_event"] == seen[-1].id
    assert raised.value.remedy == f"run it again with after={seen[-1].id!r}"
