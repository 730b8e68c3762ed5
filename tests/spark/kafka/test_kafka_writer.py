"""The ids of produced records: a hash of what they are, whatever Spark does to their order."""

from datetime import datetime, timezone

import pytest
from pyspark.sql import functions as F

from tests.support.local_rows import local_rows
from topiclake.kafka.writer import ID_HEADER, identified

RECORDS = "topic STRING, key BINARY, value BINARY, headers ARRAY<STRUCT<key STRING, value BINARY>>"


def ids(frame):
    """Return each record with its id, without the order."""
    last = F.element_at("headers", -1)
    rows = frame.select("topic", "key", "value", F.size("headers"), last["key"], last["value"]).collect()
    return sorted((tuple(None if one is None else str(one) for one in row) for row in rows), key=repr)


def ids_by_record(frame):
    rows = identified(frame.coalesce(1), "gps/query/7", "gps").collect()
    return {repr((*row[:3], row["headers"][:-1])): bytes(row["headers"][-1]["value"]) for row in rows}


@pytest.fixture
def records(spark):
    def made(*rows):
        return local_rows(spark, rows, RECORDS)

    return made


def test_equal_records_are_numbered_the_same_however_they_are_dealt_out(spark, records):
    rows = [("t", f"{number % 3}".encode(), f"{number % 7}".encode(), None) for number in range(100)]
    rows += [("t", None, b"0", None)] * 5
    whole = ids(identified(records(*rows), "b", "gps"))
    assert len({one[-1] for one in whole}) == 105
    assert {one[-2] for one in whole} == {ID_HEADER}
    for shuffled in (records(*reversed(rows)).repartition(7), records(*rows).coalesce(1)):
        assert ids(identified(shuffled, "b", "gps")) == whole
    other = ids(identified(records(*rows), "another", "gps"))
    assert not {one[-1] for one in other} & {one[-1] for one in whole}


def test_no_two_different_records_have_one_id(records):
    """Null is not empty, and what stands in one column does not run into the next."""
    rows = [
        ("t", None, b"", None),
        ("t", b"", None, None),
        ("t", b"", b"", None),
        ("t", b"a", b"b", None),
        ("t", b"ab", b"", None),
        ("t", b"", b"ab", None),
        ("u", b"", b"ab", None),
        ("t", b"a", b"b", [("x", b"1")]),
        ("t", b"a", b"b", [("x", None)]),
        ("t", b"a", b"b", [("x1", b"")]),
        ("t", b"-", b"-", None),
        ("t", None, None, None),
    ]
    found = ids_by_record(records(*rows))
    assert len(set(found.values())) == len(rows)
    # Were two taken for equal, their numbers would follow the order in which they come.
    assert ids_by_record(records(*reversed(rows))) == found


def test_an_id_that_a_record_brings_along_is_replaced(records):
    brought = records(("t", b"k", b"v", [(ID_HEADER, b"old"), ("x", b"y")]))
    (one,) = identified(brought, "b", "gps").collect()
    assert [header["key"] for header in one["headers"]] == ["x", ID_HEADER]
    assert bytes(one["headers"][1]["value"]) != b"old"


def test_columns_that_tell_need_no_shuffle_and_no_batch(spark, records):
    rows = [(partition, offset) for partition in range(2) for offset in range(50)]
    frame = local_rows(spark, rows, "partition INT, offset BIGINT").withColumn("value", F.lit("same"))

    def named(batch, **more):
        return identified(frame.withColumns(more), batch, "gps", ["partition", "offset"])

    first = sorted(bytes(row["headers"][0]["value"]) for row in named("one").collect())
    assert len(set(first)) == 100
    # The value may come out differently when it is made again.
    again = named("two", value=F.lit("other")).collect()
    assert sorted(bytes(row["headers"][0]["value"]) for row in again) == first
    assert "Exchange" not in named("one")._jdf.queryExecution().toString()
    assert "Exchange" in identified(frame, "one", "gps")._jdf.queryExecution().toString()


def test_columns_that_tell_are_told_apart_to_the_microsecond(spark):
    times = [datetime(2026, 1, 1, 0, 0, 0, micro, timezone.utc) for micro in (1, 2)]
    frame = local_rows(spark, [(time, "v") for time in times], "at TIMESTAMP, value STRING")
    for at in ("at", "CAST(at AS TIMESTAMP_NTZ)"):
        found = identified(frame.withColumn("at", F.expr(at)), "b", "gps", ["at"]).collect()
        assert len({bytes(row["headers"][0]["value"]) for row in found}) == 2
