"""The offsets that a commit keeps, against those of its batch now."""

from functools import partial

import pytest

from topiclake.errors import IngestError
from topiclake.streaming import batch_offsets

PLACES = {"table": "/t", "checkpoint": "/c"}
require_same = partial(batch_offsets.require_same, batch_id=3, **PLACES)
require_same_ends = partial(batch_offsets.require_same_ends, **PLACES)
KEPT = {"batch_id": 3, "offsets": {"gps": {"0": [5, 9], "1": [2, 2]}}}


def refusal(check, *given):
    with pytest.raises(IngestError) as raised:
        check(*given)
    return raised.value.fields


def test_the_same_offsets_are_right():
    require_same(KEPT, {"gps": {0: (5, 9), 1: (2, 2)}})
    require_same_ends(KEPT, {"gps": {0: 9, 1: 2}, "other": {0: 1}})


def test_what_nobody_says_is_not_compared():
    require_same(None, {"gps": {0: (5, 9)}})
    require_same(KEPT, {})
    require_same({"batch_id": 3, "offsets": {}}, {"gps": {0: (5, 9)}})


def test_other_offsets_are_refused_with_both():
    fields = refusal(require_same, KEPT, {"gps": {0: (5, 8), 1: (2, 2)}})
    assert (fields["reason"], fields["batch_id"]) == ("offsets_changed", 3)
    assert (fields["offsets"]["gps"]["0"], fields["expected"]["gps"]["0"]) == ([5, 8], [5, 9])
    assert refusal(require_same_ends, KEPT, {"gps": {0: 8, 1: 2}})["reason"] == "offsets_changed"


@pytest.mark.parametrize("check", [require_same, require_same_ends])
def test_a_commit_of_another_version_is_refused_with_the_way_out(check):
    with pytest.raises(
        IngestError, match=r"another version of Topiclake .* start with resume=table"
    ) as raised:
        check({"batch_id": 3}, {"gps": {}})
    assert raised.value.fields["reason"] == "other_version"


def test_offsets_of_many_partitions_are_cut_in_a_message():
    ranges = {"gps": {one: (one, one + 1) for one in range(200)}}
    with pytest.raises(IngestError) as raised:
        require_same(KEPT, ranges)
    assert len(raised.value.cause) < 800
