from datetime import datetime

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.testing import assertDataFrameEqual

from topiclake.formats.avro.codec import AvroCodec
from topiclake.formats.codec import Codecs
from topiclake.ingest import quarantine_rows
from topiclake.schema_registry.registry import SubjectVersion
from topiclake.schema_registry.wire_format import frame
from topiclake.sources.layout import Layout
from topiclake.sources.registered_rows import decode

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
    frame(9, b"\0"),
    frame(10, b"\0"),
]
CODECS = Codecs(
    AvroCodec.of(
        {
            7: LONG,
            9: SubjectVersion("gps-value", 2, 9, "PROTOBUF", 'syntax = "proto3";'),
            10: SubjectVersion("gps-value", 3, 10, "AVRO", '"boolean"'),
        }
    )
)


@pytest.fixture
def bad(kafka_records):
    decoded = decode(kafka_records([*BAD, frame(7, b"\0\0\0")]), CODECS, Layout())
    return quarantine_rows.with_reasons(decoded, CODECS, {"value": {8}}, needs_python=True)


def names_and_types(schema):
    return [(field.name, field.dataType) for field in schema]


def test_the_columns_are_those_of_the_schema(bad):
    rows = quarantine_rows.quarantined(bad, pipeline="p", batch_id=0)
    assert names_and_types(rows.schema) == names_and_types(StructType.fromDDL(quarantine_rows.SCHEMA))


def test_the_schema_is_the_designs():
    assert quarantine_rows.SCHEMA == (
        "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
        "headers ARRAY<STRUCT<key STRING, value BINARY>>, schema_id INT, reason STRING, detail STRING, "
        "pipeline STRING, batch_id BIGINT, quarantined_at TIMESTAMP"
    )


def test_reason_id_and_detail_say_what_is_wrong(bad):
    rows = quarantine_rows.quarantined(bad, pipeline="p", batch_id=0).orderBy("offset")
    assert [tuple(row) for row in rows.select("reason", "schema_id", "detail").collect()] == [
        ("tombstone", None, "the value is null"),
        ("too_short", None, "0 bytes, fewer than the header's 5"),
        ("too_short", None, "3 bytes, fewer than the header's 5"),
        ("bad_magic", None, "byte 0 is 0x7B, not 0x00"),
        ("bad_magic", None, "byte 0 is 0x80, not 0x00"),
        ("unknown_schema_id", 8, "the registry does not know schema id 8"),
        (
            "unknown_schema_id",
            -1,
            "schema id -1 was not looked up, after others that the registry does not know; replay it",
        ),
        (
            "undecodable",
            7,
            "the 0 bytes are not one record of schema id 7: "
            "the record is cut off or claims more than there is: end of input",
        ),
        ("wrong_schema_type", 9, "schema 9 is PROTOBUF, not AVRO"),
        ("incompatible_schema", 10, "the value: boolean cannot be read as long"),
        (
            "undecodable",
            7,
            "the 3 bytes are not one record of schema id 7: 2 bytes remain after the record, which has 1",
        ),
    ]


def test_without_fastavro_the_reason_is_shorter(kafka_records):
    decoded = decode(kafka_records([frame(7, b"")]), CODECS, Layout())
    (row,) = quarantine_rows.with_reasons(decoded, CODECS, {}, needs_python=False).select("detail").collect()
    assert row["detail"] == "the 0 bytes are not one record of schema id 7"


def test_a_record_that_decodes_by_now_waits_for_a_replay(kafka_records):
    decoded = decode(kafka_records([frame(7, b"\0")]), CODECS, Layout())
    (row,) = quarantine_rows.with_reasons(decoded, CODECS, {}, needs_python=False).collect()
    assert (row["reason"], row["detail"]) == (
        "unknown_schema_id",
        "its schema was registered after its batch was written; replay it",
    )


def test_the_record_is_kept_whole(bad, kafka_records):
    rows = quarantine_rows.quarantined(bad, pipeline="p", batch_id=0).select(*kafka_records([]).columns)
    assertDataFrameEqual(rows, kafka_records([*BAD, frame(7, b"\0\0\0")]), rtol=0, atol=0)


def test_pipeline_batch_and_time_stand_in_each_row(bad):
    before = datetime.now()
    rows = quarantine_rows.quarantined(bad, pipeline="gps", batch_id=2**40).collect()
    after = datetime.now()
    assert {(row["pipeline"], row["batch_id"]) for row in rows} == {("gps", 2**40)}
    assert all(before <= row["quarantined_at"] <= after for row in rows)


def test_records_of_an_unknown_reason_are_still_kept(kafka_records):
    records = decode(kafka_records([None]), CODECS, Layout()).withColumns(
        {"reason": F.lit("a reason of tomorrow"), "detail": F.lit(None).cast("string")}
    )
    (row,) = quarantine_rows.quarantined(records, pipeline="p", batch_id=0).collect()
    assert row["reason"] == "a reason of tomorrow"
