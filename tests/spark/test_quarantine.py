from datetime import datetime

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.testing import assertDataFrameEqual

from topiclake import avro, ingest, quarantine
from topiclake.schema_registry import SubjectVersion
from topiclake.wire_format import frame

LONG = SubjectVersion("gps-value", 1, 7, "AVRO", '"long"')
BAD = [
    None,
    b"",
    b"\0\0\0",
    b"{}...",
    b"\x80\0\0\0\x07",
    frame(8, b"\0"),
    frame(2**32 - 1, b""),
    frame(7, b""),
]


@pytest.fixture
def bad(kafka_records):
    judged = ingest.judge(kafka_records([*BAD, frame(7, b"\0\0\0")]), [LONG])
    return judged.withColumn("verdict", avro.verdict(F.col("value"), F.col("decoded"), {7: LONG.schema}))


def names_and_types(schema):
    return [(field.name, field.dataType) for field in schema]


def test_the_columns_are_those_of_the_schema(bad):
    rows = quarantine.quarantined(bad, pipeline="p", batch_id=0)
    assert names_and_types(rows.schema) == names_and_types(StructType.fromDDL(quarantine.SCHEMA))


def test_the_schema_is_the_designs():
    assert quarantine.SCHEMA == (
        "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
        "headers ARRAY<STRUCT<key STRING, value BINARY>>, schema_id INT, reason STRING, detail STRING, "
        "pipeline STRING, batch_id BIGINT, quarantined_at TIMESTAMP"
    )


def test_reason_id_and_detail_say_what_is_wrong(bad):
    rows = quarantine.quarantined(bad, pipeline="p", batch_id=0).orderBy("offset")
    assert [tuple(row) for row in rows.select("reason", "schema_id", "detail").collect()] == [
        ("tombstone", None, "the value is null"),
        ("too_short", None, "0 bytes, fewer than the header's 5"),
        ("too_short", None, "3 bytes, fewer than the header's 5"),
        ("bad_magic", None, "byte 0 is 0x7B, not 0x00"),
        ("bad_magic", None, "byte 0 is 0x80, not 0x00"),
        ("unknown_schema_id", 8, "the subject has no schema with id 8"),
        ("unknown_schema_id", -1, "the subject has no schema with id -1"),
        ("undecodable", 7, "the 0 bytes after the header are not one record of schema id 7"),
        ("undecodable", 7, "the 3 bytes after the header are not one record of schema id 7"),
    ]


def test_the_record_is_kept_whole(bad, kafka_records):
    rows = quarantine.quarantined(bad, pipeline="p", batch_id=0).select(*kafka_records([]).columns)
    assertDataFrameEqual(rows, kafka_records([*BAD, frame(7, b"\0\0\0")]), rtol=0, atol=0)


def test_pipeline_batch_and_time_stand_in_each_row(bad):
    before = datetime.now()
    rows = quarantine.quarantined(bad, pipeline="gps", batch_id=2**40).collect()
    after = datetime.now()
    assert {(row["pipeline"], row["batch_id"]) for row in rows} == {("gps", 2**40)}
    assert all(before <= row["quarantined_at"] <= after for row in rows)


def test_records_of_an_unknown_reason_are_still_kept(kafka_records):
    records = kafka_records([None]).withColumn("verdict", F.lit("a reason of tomorrow"))
    (row,) = quarantine.quarantined(records, pipeline="p", batch_id=0).collect()
    assert row["reason"] == "a reason of tomorrow"
