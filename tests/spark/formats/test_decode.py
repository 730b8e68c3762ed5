import contextlib
import copy
import io
import json
import random
import re
from functools import reduce
from pathlib import Path

import fastavro
import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from topiclake.errors import DecodeError
from topiclake.formats.avro import decoding as avro_decoding
from topiclake.formats.avro.codec import AvroCodec
from topiclake.formats.codec import Codecs, decode_status, is_decoded
from topiclake.schema_registry import wire_format
from topiclake.schema_registry.registry import SubjectVersion
from topiclake.schema_registry.wire_format import frame
from topiclake.sources.layout import Layout
from topiclake.sources.registered_rows import (
    as_rows,
    count_records,
    decode,
    fail_on_bad_record,
    valid_rows,
)
from topiclake.streaming.failure import query_failure

PAGE = Path(__file__).parents[3] / "docs" / "decoding.md"


def version(schema_id, schema, number=1):
    return SubjectVersion("gps-value", number, schema_id, "AVRO", schema)


def record(*fields, name="Reading"):
    fields = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return json.dumps({"type": "record", "name": name, "namespace": "io.topiclake.test", "fields": fields})


V1 = record(("id", "int"), ("total", "long"), ("name", "string"))
V2 = record(("id", "int"), ("total", "long"), ("name", "string"), ("unit", "string", "km"))
V3 = record(("id", "long"), ("total", "double"), ("name", "string"), ("unit", "string", "km"))
VERSIONS = [version(1, V1, 1), version(70_000, V2, 2), version(3, V3, 3)]

MIXED = record(
    ("id", "long"),
    ("count", "int"),
    ("name", "string"),
    ("note", ["null", "string"]),
    ("ratio", "double"),
    ("share", "float"),
    ("counts", {"type": "array", "items": "long"}),
    ("blob", "bytes"),
    ("tags", {"type": "map", "values": "string"}),
    ("colour", {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}),
)
ONE_OF_EACH = {
    "id": -5,
    "count": 300,
    "name": "čaršija",
    "note": "n",
    "ratio": 2.5,
    "share": 0.5,
    "counts": [1, -70_000],
    "blob": b"\x00\xff",
    "tags": {"k": "v"},
    "colour": "GREEN",
}


def codecs(versions):
    return Codecs(AvroCodec.of({each.schema_id: each for each in versions}))


def decoded(records, versions):
    """Decoded records with what became of each, as the quarantine tells it."""
    known = codecs(versions)
    return decode(records, known, Layout()).withColumn(
        "verdict", decode_status(F.col("decoded"), known.value)
    )


def table_rows(records, versions, layout=Layout()):  # noqa: B008 (it is frozen)
    known = codecs(versions)
    return valid_rows(as_rows(decode(records, known, layout), known, layout))


def verdicts(records, versions):
    """Each record's verdict in the order of offsets; the table takes those that are `ok`, and no others."""
    found = decoded(records, versions).withColumn("is_row", is_decoded(F.col("decoded")))
    rows = found.orderBy("offset").select("verdict", "is_row").collect()
    assert all(row["is_row"] is (row["verdict"] == "ok") for row in rows)
    return [row["verdict"] for row in rows]


def events(records, versions):
    """The rows of the table in the order of their offsets, without where they came from."""
    rows = table_rows(records, versions).orderBy("_kafka.offset")
    return [tuple(row) for row in rows.drop("_kafka").collect()]


def node_names(plan):
    """Return the names of a plan's nodes, from the top."""
    return re.findall(r"^(?: *\+- |(?=[A-Z]))(?:\*\(\d+\) )?(\w+)", plan, re.M)


def plan(rows):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        rows.explain()
    return text.getvalue()


# Each record by its own writer schema


def test_three_versions_interleaved_decode_to_the_newest(kafka_records, avro_bytes):
    values, expected = [], []
    for number in range(-30, 30):
        old = {"id": number, "total": number * 2**40, "name": f"n{number}"}
        values.append(frame(1, avro_bytes(V1, old)))
        values.append(frame(70_000, avro_bytes(V2, old | {"unit": "m"})))
        values.append(frame(3, avro_bytes(V3, old | {"id": 2**40 + number, "total": 0.1, "unit": "cm"})))
        expected.append((number, float(number * 2**40), f"n{number}", "km"))
        expected.append((number, float(number * 2**40), f"n{number}", "m"))
        expected.append((2**40 + number, 0.1, f"n{number}", "cm"))
    random.Random(7).shuffle(order := list(range(len(values))))

    found = events(kafka_records([values[place] for place in order]), VERSIONS)

    assert found == [expected[place] for place in order]


def test_columns_and_types_are_those_of_the_union_of_the_versions(kafka_records):
    assert table_rows(kafka_records([]), VERSIONS).schema.simpleString() == (
        "struct<id:bigint,total:double,name:string,unit:string,_kafka:struct<partition:int,offset:bigint>>"
    )
    without = table_rows(kafka_records([]), VERSIONS, Layout(kafka=()))
    assert without.columns == ["id", "total", "name", "unit"]


def test_rows_carry_partition_and_offset(kafka_records, avro_bytes):
    good = frame(1, avro_bytes(V1, {"id": 1, "total": 2, "name": "x"}))
    rows = table_rows(kafka_records([None, good, b"", good]), VERSIONS).select("_kafka.*").collect()
    assert sorted(map(tuple, rows)) == [(3, 1), (3, 3)]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ('"string"', ["žito", ""]),
        ('{"type": "array", "items": "int"}', [[3, 1], []]),
        ('{"type": "map", "values": "double"}', [{"a": 0.1}, {}]),
    ],
    ids=["string", "array", "map"],
)
def test_a_schema_that_is_no_record_becomes_the_column_value(kafka_records, avro_bytes, schema, values):
    versions = [version(5, schema)]
    whole = [frame(5, avro_bytes(schema, value)) for value in values]
    records = kafka_records([*whole, whole[0] + b"\0"])
    assert table_rows(records, versions, Layout(kafka=())).columns == ["value"]
    assert events(records, versions) == [(value,) for value in values]
    assert verdicts(records, versions) == ["ok", "ok", "undecodable"]


# Every verdict


def test_a_value_that_names_no_known_schema_has_the_verdict_of_its_first_bytes(kafka_records, avro_bytes):
    whole = frame(1, avro_bytes(V1, {"id": 1, "total": 2, "name": "x"}))
    shorter = [whole[:length] for length in range(5)] + [b"\x01", b"\xff\xff\xff\xff"]
    other_firsts = [bytes([first]) + whole[1:] for first in (1, 0x7B, 0x80, 0xFF)]
    ids = [0, 2, 4, 256, 2**24 + 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1]
    values = [None, *shorter, *other_firsts, *(frame(each, whole[5:]) for each in ids), whole]
    assert verdicts(kafka_records(values), VERSIONS) == [
        "tombstone",
        *["too_short"] * 7,
        *["bad_magic"] * 4,
        *["unknown_schema_id"] * len(ids),
        "ok",
    ]


def test_an_id_with_the_top_bit_set_decodes_when_the_subject_has_it(kafka_records, avro_bytes):
    value = {"id": 1, "total": 2, "name": "x"}
    versions = [version(1, V1), version(2**31 + 1, V1, 2)]
    records = kafka_records([frame(each, avro_bytes(V1, value)) for each in (1, 2**31 + 1, 2**31)])
    assert verdicts(records, versions) == ["ok", "ok", "unknown_schema_id"]


def test_a_record_cut_at_any_byte_is_undecodable(kafka_records, avro_bytes):
    payload = avro_bytes(MIXED, ONE_OF_EACH)
    values = [frame(9, payload[:length]) for length in range(len(payload) + 1)]
    found = verdicts(kafka_records(values), [version(9, MIXED)])
    assert found == ["undecodable"] * len(payload) + ["ok"]


def test_bytes_behind_the_record_are_undecodable(kafka_records, avro_bytes):
    whole = frame(9, avro_bytes(MIXED, ONE_OF_EACH))
    trailing = [b"\0", b"\xff", b"\x02", avro_decoding.END_BYTES[:-1], b"\0" + avro_decoding.END_BYTES]
    found = verdicts(kafka_records([whole, *(whole + each for each in trailing)]), [version(9, MIXED)])
    assert found == ["ok", *["undecodable"] * len(trailing)]


def test_only_the_end_itself_behind_a_record_goes_unnoticed(kafka_records, avro_bytes):
    """The known limit: ten bytes that no serializer writes look like the end of the frame."""
    payload = avro_bytes(MIXED, ONE_OF_EACH)
    values = [frame(9, payload), frame(9, payload + avro_decoding.END_BYTES)]
    assert verdicts(kafka_records(values), [version(9, MIXED)]) == ["ok", "ok"]


def test_a_union_branch_that_does_not_exist_is_undecodable(kafka_records):
    schema = record(("note", ["null", "string"]))
    values = [frame(9, payload) for payload in (b"\x00", b"\x02\x02a", b"\x04\x02a", b"\x01\x02a")]
    found = verdicts(kafka_records(values), [version(9, schema)])
    assert found == ["ok", "ok", "undecodable", "undecodable"]


@pytest.mark.parametrize(
    "field",
    ["string", "bytes", {"type": "array", "items": "long"}, {"type": "map", "values": "long"}],
    ids=["string", "bytes", "array", "map"],
)
def test_a_length_that_is_negative_or_longer_than_the_record_is_undecodable(kafka_records, field):
    """Six bytes that claim 2 GiB would end the JVM, were it not for the limits in `session.AVRO_LIMITS`."""
    versions = [version(9, record(("text", field)))]
    lengths = [-1, -2, -(2**31), -(2**63), 2, 2**24, 2**31 - 1, 2**31, 2**40, 2**63 - 1]
    claimed = [frame(9, avro_decoding.zigzag(length) + b"a") for length in lengths]
    assert verdicts(kafka_records(claimed), versions) == ["undecodable"] * len(lengths)


def test_an_array_that_claims_many_items_without_bytes_is_undecodable(kafka_records):
    versions = [version(9, record(("nothings", {"type": "array", "items": "null"})))]
    values = [frame(9, avro_decoding.zigzag(count) + b"\0") for count in (3, 2**31 - 1, 2**40)]
    assert verdicts(kafka_records(values), versions) == ["ok", "undecodable", "undecodable"]


def test_a_record_whose_fields_are_all_null_is_ok(kafka_records):
    schema = record(("a", ["null", "string"]), ("b", ["null", "long"]))
    records = kafka_records([frame(9, b"\0\0"), frame(9, b"\0")])
    assert verdicts(records, [version(9, schema)]) == ["ok", "undecodable"]
    assert events(records, [version(9, schema)]) == [(None, None)]


def test_a_record_without_fields_is_ok(kafka_records):
    records = kafka_records([frame(9, b""), frame(9, b"\0")])
    assert verdicts(records, [version(9, record())]) == ["ok", "undecodable"]


def test_names_that_the_frame_uses_may_stand_in_the_schema(kafka_records, avro_bytes):
    schema = record(("event", "string"), ("end", "long"), ("verdict", "string"), ("decoded", "int"))
    value = {"event": "e", "end": 1, "verdict": "bad", "decoded": 2}
    assert events(kafka_records([frame(9, avro_bytes(schema, value))]), [version(9, schema)]) == [
        ("e", 1, "bad", 2)
    ]


# 500 records with random damage, against fastavro


COLOURS = ["RED", "GREEN"]


def for_oracle(schema):
    """The same binary form, without the two types that fastavro reads otherwise than Avro says.

    It refuses text that is not UTF-8, where Java's Avro and Spark keep the bytes; and it takes a negative
    index of an enum, as Python does, where Java's Avro refuses it.
    """
    if isinstance(schema, dict) and schema["type"] == "enum":
        return "int"
    if isinstance(schema, dict):
        return {key: value if key == "name" else for_oracle(value) for key, value in schema.items()}
    if isinstance(schema, list):
        return [for_oracle(each) for each in schema]
    return "bytes" if schema == "string" else schema


FUZZED = record(
    ("id", "long"),
    ("name", "string"),
    ("note", ["null", "string"]),
    ("ratio", "double"),
    ("counts", {"type": "array", "items": "long"}),
    ("blob", "bytes"),
    ("colour", {"type": "enum", "name": "Colour", "symbols": COLOURS}),
)
ORACLE = fastavro.parse_schema(for_oracle(json.loads(FUZZED)))


def oracle(payload):
    """What fastavro reads, if it reads all of it; else None."""
    stream = io.BytesIO(payload)
    try:
        event = fastavro.schemaless_reader(stream, copy.deepcopy(ORACLE))
    except Exception:  # noqa: BLE001 (whatever it says: it does not read this)
        return None
    if stream.tell() != len(payload) or event["colour"] not in range(len(COLOURS)):
        return None
    return event | {"colour": COLOURS[event["colour"]]}


def damaged(chance, payload):
    mutable = bytearray(payload)
    for _ in range(chance.choice([0, 1, 1, 2])):
        place = chance.randrange(len(mutable))
        match chance.randrange(4):
            case 0:
                mutable[place] ^= 1 << chance.randrange(8)
            case 1:
                mutable[place] = chance.randrange(256)
            case 2:
                del mutable[place]
            case 3:
                mutable.insert(place, chance.randrange(256))
    return bytes(mutable)


def test_500_damaged_records_come_out_as_fastavro_reads_them(kafka_records, avro_bytes):
    chance = random.Random(20260102)
    payloads = []
    for _ in range(500):
        event = {
            "id": chance.randrange(-(2**40), 2**40),
            "name": "ab€"[: chance.randrange(4)],
            "note": chance.choice([None, "n"]),
            "ratio": chance.random(),
            "counts": [chance.randrange(1000) for _ in range(chance.randrange(3))],
            "blob": chance.randbytes(chance.randrange(3)),
            "colour": chance.choice(COLOURS),
        }
        payloads.append(damaged(chance, avro_bytes(FUZZED, event)))
    versions = [version(9, FUZZED)]
    records = decoded(kafka_records([frame(9, payload) for payload in payloads]), versions)
    text = ["CAST({0}.name AS BINARY) name", "CAST({0}.note AS BINARY) note"]
    rest = ["{0}.id", "{0}.ratio", "{0}.counts", "{0}.blob", "{0}.colour"]
    columns = [column.format("decoded") for column in text + rest]
    rows = records.orderBy("offset").selectExpr("verdict", "offset", *columns).collect()

    differences = []
    for row in rows:
        expected = oracle(payloads[row["offset"]])
        found = row.asDict()
        kind = found.pop("verdict")
        del found["offset"]
        if kind != ("undecodable" if expected is None else "ok") or (expected and not same(found, expected)):
            differences.append((payloads[row["offset"]].hex(), kind, found, expected))

    assert differences == []
    kinds = [row["verdict"] for row in rows]
    assert min(kinds.count("ok"), kinds.count("undecodable")) > 100, "the damage tests one side only"


def same(found, expected):
    """Equal, and a NaN is equal to itself."""
    return repr(sorted(normal(found).items())) == repr(sorted(normal(expected).items()))


def normal(event):
    return {key: bytes(value) if isinstance(value, bytearray) else value for key, value in event.items()}


def test_text_that_is_not_utf_8_keeps_its_bytes(kafka_records):
    """Avro says UTF-8; neither Java's Avro nor Spark checks it, fastavro does."""
    schema = record(("name", "string"))
    records = kafka_records([frame(9, b"\x04\xff\xfe")])
    assert verdicts(records, [version(9, schema)]) == ["ok"]
    texts = decoded(records, [version(9, schema)])
    assert texts.selectExpr("CAST(decoded.name AS BINARY)").collect()[0][0] == b"\xff\xfe"
    with pytest.raises(UnicodeDecodeError):
        fastavro.schemaless_reader(io.BytesIO(b"\x04\xff\xfe"), json.loads(schema))


# The plan


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("with_key", [False, True])
def test_each_schema_is_decoded_once_in_the_plan(kafka_records, fails, with_key):
    value = codecs(VERSIONS).value
    known = Codecs(value, value if with_key else None)
    layout = Layout(key="avro" if with_key else "none")
    records = decode(kafka_records([None]), known, Layout())
    rows = valid_rows(
        as_rows(fail_on_bad_record(records, known, layout) if fails else records, known, layout)
    )
    assert plan(rows).count("from_avro(") == len(VERSIONS) * (2 if with_key else 1)


def test_the_page_about_decoding_has_the_nodes_of_the_plan(kafka_records):
    known, layout = codecs(VERSIONS), Layout()
    records = kafka_records([None]).observe(Observation(), count_records(layout))
    rows = valid_rows(as_rows(decode(records, known, layout), known, layout))
    nodes = node_names(plan(rows.observe(Observation(), F.count("*"))))
    section = PAGE.read_text("utf-8").partition("## The plan of a micro-batch")[2]
    _, *documented, _ = node_names(section.split("```")[1])
    # The records of this test are not from Kafka.
    assert [*documented, "Scan"] == nodes


def test_versions_that_differ_in_texts_alone_share_a_branch_of_the_plan(kafka_records, avro_bytes):
    schema = record(("name", "string"), ("size", "int", 1))
    documented = json.dumps(json.loads(schema) | {"doc": "Of a later version."})
    versions = [version(1, schema), version(2, documented), version(3, record(("name", "string")))]
    event = {"name": "a", "size": 7}
    records = kafka_records([frame(number, avro_bytes(schema, event)) for number in (1, 2, 3, 4)])
    assert verdicts(records, versions) == ["ok", "ok", "undecodable", "unknown_schema_id"]
    rows = decode(records, Codecs(codecs(versions).value), Layout())
    assert plan(rows).count("from_avro(") == 2
    found = rows.selectExpr("decoded.name", "decoded.size").limit(2).collect()
    assert [tuple(row) for row in found] == [("a", 7), ("a", 7)]


def test_without_the_guard_the_optimizer_decodes_more_often(kafka_records):
    """The failing twin of the test above: the same expression, with nothing that stops the push-down."""
    payload = F.concat(wire_format.payload_of(F.col("value")), F.lit(avro_decoding.END_BYTES))
    known = codecs(VERSIONS)
    options = {"mode": "PERMISSIVE", "avroSchema": avro_decoding.framed_row(known.value.reader)}
    unguarded = reduce(
        lambda case, each: case.when(
            wire_format.header_of(F.col("value")) == F.lit(wire_format.header(each[0])),
            from_avro(payload, avro_decoding.framed_row(each[1]), options),
        ),
        known.value.writers.items(),
        F.when(F.lit(False), None),
    )
    records = kafka_records([None]).withColumn("decoded", unguarded)
    assert plan(valid_rows(as_rows(records, known, Layout()))).count("from_avro(") > len(VERSIONS)


# FAILFAST


def failing(records, versions, layout=Layout()):  # noqa: B008 (it is frozen)
    known = codecs(versions)
    return valid_rows(
        as_rows(fail_on_bad_record(decode(records, known, layout), known, layout), known, layout)
    )


@pytest.mark.parametrize(
    ("value", "schema_id", "reason"),
    [
        (None, "none", "tombstone"),
        (b"\0\0", "none", "too_short"),
        (b"{json}", "none", "bad_magic"),
        (frame(3, b"\0"), "3", "undecodable"),
    ],
)
def test_failfast_names_the_record_and_the_reason(kafka_records, avro_bytes, value, schema_id, reason):
    good = frame(1, avro_bytes(V1, {"id": 1, "total": 2, "name": "x"}))
    with pytest.raises(SparkRuntimeException) as raised:
        failing(kafka_records([good, good, value]), VERSIONS).collect()
    error = query_failure("gps", str(raised.value))
    assert type(error) is DecodeError
    assert error.cause == (
        "query gps met a record that does not decode: "
        f"topic gps, partition 3, offset 2, schema id {schema_id}, reason {reason}"
    )
    assert error.fields == {
        "query": "gps",
        "topic": "gps",
        "partition": 3,
        "offset": 2,
        "schema_id": None if schema_id == "none" else int(schema_id),
        "reason": reason,
    }


def test_failfast_lets_good_records_pass(kafka_records, avro_bytes):
    good = frame(1, avro_bytes(V1, {"id": 1, "total": 2, "name": "x"}))
    rows = failing(kafka_records([good]), VERSIONS).collect()
    assert [tuple(row)[:-1] for row in rows] == [(1, 2.0, "x", "km")]


def test_failfast_lets_a_schema_pass_that_is_still_to_be_looked_up(kafka_records, avro_bytes):
    """It is no row yet; the micro-batch fails when the registry does not know it (test_micro_batch.py)."""
    good = frame(1, avro_bytes(V1, {"id": 1, "total": 2, "name": "x"}))
    unknown = [frame(schema_id, b"\0") for schema_id in (12, 2**31, 2**32 - 1)]
    assert failing(kafka_records([good, *unknown]), VERSIONS).count() == 1


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (SubjectVersion("gps-value", 4, 12, "PROTOBUF", "syntax"), "wrong_schema_type"),
        (version(12, V1.replace('"long"', '"boolean"'), 4), "incompatible_schema"),
    ],
)
def test_failfast_stops_at_a_schema_that_cannot_be_used(kafka_records, late, reason):
    with pytest.raises(SparkRuntimeException, match=f"offset 0, schema id 12, reason {reason} "):
        failing(kafka_records([frame(12, b"\0")]), [*VERSIONS, late]).collect()


def test_failfast_lets_a_tombstone_pass_where_it_is_skipped(kafka_records):
    assert failing(kafka_records([None]), VERSIONS, Layout(skips_tombstones=True)).count() == 0
