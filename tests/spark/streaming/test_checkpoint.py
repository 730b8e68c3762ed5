"""What a checkpoint says of a batch before it begins."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError

from topiclake.delta import table as delta
from topiclake.errors import IngestError
from topiclake.sinks.delta_table import DeltaBatches
from topiclake.streaming import checkpoint, lost_offsets, queries
from topiclake.streaming.checkpoint import NONE, Planned

FIRST, ANEW = "qX3a0Zl7Qk6n1hYb2cV9Lg", "u0Pp5m1TRXmW8d3Zs7JrKA"
METADATA = '{"batchWatermarkMs":1500,"batchTimestampMs":9,"conf":{}}'


def write(folder, files):
    for name, lines in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines))
    return folder.as_uri()


def test_the_offsets_of_a_topic_are_found_among_those_of_other_sources(spark, tmp_path):
    path = write(
        tmp_path,
        {
            "sources/1/0": ["\0v1", '{"hits":{"0":3}}'],
            "offsets/4": ["v1", METADATA, "17", "-"],
            "offsets/5": ["v1", METADATA, "18", '{"hits":{"0":5,"1":2}}'],
            "offsets/6": ["v1", METADATA, "19", '{"hits":{"0":5,"1":4}}', '{"logOffset":0}'],
        },
    )
    four, five, six = (checkpoint.planned(spark, path, one) for one in (4, 5, 6))
    assert four == Planned(1500, (17, None))
    assert checkpoint.range_of(spark, path, four, four, "hits") == {}, "nothing has come yet"
    assert checkpoint.range_of(spark, path, four, five, "hits") == {0: (3, 5), 1: (0, 2)}
    assert checkpoint.range_of(spark, path, five, six, "hits") == {1: (2, 4)}
    assert checkpoint.range_of(spark, path, checkpoint.planned(spark, path, NONE), five, "hits") == {
        0: (3, 5),
        1: (0, 2),
    }
    with pytest.raises(IngestError) as raised:
        checkpoint.range_of(spark, path, five, six, "gps")
    assert raised.value.fields == {"checkpoint": path, "topic": "gps", "sources": 0}


def test_a_topic_that_is_read_twice_and_files_that_are_gone_are_named(spark, tmp_path):
    twice = ['{"hits":{"0":5}}'] * 2
    path = write(tmp_path, {"offsets/0": ["v1", METADATA, *twice], "offsets/1": ["v1", METADATA, twice[0]]})
    none, first, second = (checkpoint.planned(spark, path, one) for one in (NONE, 0, 1))
    with pytest.raises(IngestError) as raised:
        checkpoint.range_of(spark, path, none, first, "hits")
    assert raised.value.fields == {"checkpoint": path, "topic": "hits", "sources": 2}
    with pytest.raises(IngestError) as raised:
        checkpoint.range_of(spark, path, none, second, "hits")
    assert raised.value.fields == {"checkpoint": path, "file": "sources/0/0", "reason": "damaged"}
    with pytest.raises(IngestError) as raised:
        checkpoint.planned(spark, path, 7)
    assert raised.value.fields == {"checkpoint": path, "file": "offsets/7", "reason": "damaged"}


def test_the_id_of_a_query_is_read_once_a_start_and_anew_by_the_next_one(spark, tmp_path):
    path = write(tmp_path / "checkpoint", {"metadata": ['{"id":"one"}']})
    sink, rows = DeltaBatches(f"{tmp_path}/table", "append", ()), spark.range(1)
    queries.write_to(sink, path, "a start", rows, 0)
    write(tmp_path / "checkpoint", {"metadata": ['{"id":"two"}']})
    queries.write_to(sink, path, "a start", rows, 0)
    assert delta.read(spark, sink.table).count() == 1, "batch 0 of the same start"
    queries.write_to(sink, path, "another start", rows, 0)
    assert delta.read(spark, sink.table).count() == 2, "batch 0 of another checkpoint"
    assert checkpoint.query_id(spark, path, "another start") == "two"
    write(tmp_path / "checkpoint", {"metadata": ['{"id":"three"}']})
    assert checkpoint.query_id(spark, path, None) == "three", "outside a start nothing is remembered"


def test_ids_that_cannot_be_kept_are_right_where_a_start_beside_this_one_has_kept_them(spark, tmp_path):
    path = tmp_path.as_uri()
    lost_offsets.save_topic_ids(spark, {"gps": FIRST}, path)
    # In the way of each further job that writes there.
    (tmp_path / "topiclake/topics/_temporary").write_text("")
    lost_offsets.save_topic_ids(spark, {"gps": FIRST}, path)
    for new in ({"gps": ANEW}, {"gps": FIRST, "hits": ANEW}):
        with pytest.raises(Py4JError):
            lost_offsets.save_topic_ids(spark, new, path)
