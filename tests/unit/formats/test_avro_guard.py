"""The check of records by fastavro: what a few bytes claim takes neither time nor memory."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from tests.spark.formats.test_bombs import BOMBS, REFUSED, schema, z
from topiclake.formats.avro.decoding import END_BYTES, framed_row
from topiclake.formats.avro.diagnosis import has_free_items
from topiclake.formats.avro.guard import _is_whole, _of_bytes, _parsed
from topiclake.formats.codec import END

PREFIX = bytes(5)
OF = z(1) + b"a"
#: Whole records, whose numbers Spark finds too large.
WHOLE = {"decimal_of_1000_bytes", "small_decimal_of_1000_bytes"}
#: More than a record of 1 KB takes, and less than any bomb claims.
MOST_BYTES = 2**24


@pytest.fixture
def traced():
    tracemalloc.start()
    yield tracemalloc.get_traced_memory
    tracemalloc.stop()


def parsed(name, kind):
    return _parsed(_of_bytes(framed_row(schema(name, kind), after_prefix=True)))


@pytest.mark.parametrize("name", sorted(BOMBS.keys() - WHOLE))
def test_a_bomb_is_no_whole_record_and_its_neighbour_is_one(name, traced):
    kind, good, bomb = BOMBS[name]
    reader = parsed(name, kind)
    neighbour = PREFIX + good + OF
    # fastavro could be kept busy by such an array, so none of its records is read.
    assert _is_whole(neighbour + END_BYTES, reader) is not has_free_items(json.loads(schema(name, kind)))
    assert not _is_whole(PREFIX + bomb + OF + END_BYTES, reader)
    for end in (b"", b"\0" + END_BYTES, END_BYTES + b"\0", z(END - 1)):
        assert not _is_whole(neighbour + end, reader)
    assert traced()[1] < MOST_BYTES


@pytest.mark.parametrize("name", REFUSED)
def test_a_bomb_of_a_refused_schema_is_no_whole_record(name, traced):
    kind, bomb = REFUSED[name]
    assert not _is_whole(PREFIX + bomb + OF + END_BYTES, parsed(name, kind))
    assert traced()[1] < MOST_BYTES
