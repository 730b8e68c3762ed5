"""When an open transaction of Kafka is named."""

from __future__ import annotations

from topiclake.streaming.open_transactions import STALLED_SECONDS, Stalls

FIRST, NEXT, OTHER = {("gps", 0): 5}, {("gps", 0): 9}, {("gps", 1): 3}


def test_each_is_named_once_after_five_minutes() -> None:
    stalls = Stalls()
    assert STALLED_SECONDS == 300
    assert stalls.update(FIRST, 0) == []
    assert stalls.update(FIRST | OTHER, 299) == []
    assert stalls.update(FIRST | OTHER, 300) == [("gps", 0, 5)]
    assert stalls.update(FIRST | OTHER, 599) == [("gps", 1, 3)]
    assert stalls.update(FIRST | OTHER, 10_000) == []


def test_one_transaction_behind_another_is_no_long_one() -> None:
    stalls = Stalls()
    assert stalls.update(FIRST, 0) == []
    assert stalls.update(NEXT, 299) == []
    assert stalls.update(NEXT, 301) == []
    assert stalls.update({}, 400) == []
    assert stalls.update(NEXT, 600) == [], "it may be another one"
    assert stalls.update(NEXT, 900) == [("gps", 0, 9)]
