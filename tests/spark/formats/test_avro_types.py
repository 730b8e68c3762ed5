"""What Spark makes of every Avro type, beside fastavro and beside docs/avro.md."""

import copy
import io
import json
import re
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import fastavro
import pytest
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from tests.spark.formats.plain_values import plain
from tests.support.local_rows import local_rows
from topiclake.formats.avro.decoding import END_BYTES, framed, zigzag
from topiclake.formats.avro.reader_schema import unite
from topiclake.formats.codec import END, END_FIELD

DOCS = Path(__file__).parents[3] / "docs" / "avro.md"


def logical(kind, logical_type, **rest):
    return {"type": kind, "logicalType": logical_type, **rest}


def decimal(precision, scale):
    return logical("bytes", "decimal", precision=precision, scale=scale)


def fixed(size, **rest):
    return {"type": "fixed", "name": "n.F", "size": size, **rest}


def record(*fields, name="n.R"):
    keys = ("name", "type", "default", "aliases")
    written = [{k: v for k, v in zip(keys, each, strict=False) if v != "none"} for each in fields]
    return {"type": "record", "name": name, "fields": written}


def encoded(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(copy.deepcopy(schema)), value)
    return stream.getvalue()


def fastavro_reads(payload, writer, reader):
    parsed = [fastavro.parse_schema(json.loads(each)) for each in (writer, reader)]
    return fastavro.schemaless_reader(io.BytesIO(payload), *parsed)


def event(frame, writer, reader):
    """The decoded `event` and whether all of it was read, as numbers where Python's types are narrower."""
    options = {"mode": "PERMISSIVE", "avroSchema": framed(reader)}
    decoded = from_avro("payload", framed(writer), options)
    column_type = frame.select(decoded["event"].alias("event")).schema["event"].dataType.simpleString()
    exact = {
        "date": F.unix_date,
        "timestamp": F.unix_micros,
        "timestamp_ntz": lambda value: F.unix_micros(value.cast("timestamp")),  # the session's zone is UTC
    }.get(column_type, lambda value: value)
    right = F.struct(
        exact(decoded["event"]).alias("event"), decoded[END_FIELD].eqNullSafe(END).alias("is_right")
    )
    return column_type, right


def spark_reads_all(spark, cases):
    """The type of the column and the values, for each (payloads, writer, reader); all in one job."""
    rows = [
        (case, number, payload + END_BYTES)
        for case, (payloads, _, _) in enumerate(cases)
        for number, payload in enumerate(payloads)
    ]
    frame = local_rows(spark, rows, "kase INT, n INT, payload BINARY").coalesce(1)
    events = [event(frame, writer, reader) for _, writer, reader in cases]
    columns = [F.when(F.col("kase") == k, each).alias(f"c{k}") for k, (_, each) in enumerate(events)]
    found = [[] for _ in cases]
    for row in frame.select("kase", "n", *columns).orderBy("kase", "n").collect():
        read = row[2 + row["kase"]]
        found[row["kase"]].append(plain(read["event"]) if read["is_right"] else UNDECODABLE)
    return [(column_type, values) for (column_type, _), values in zip(events, found, strict=True)]


def spark_reads(spark, payloads, writer, reader):
    return spark_reads_all(spark, [(payloads, writer, reader)])[0]


UNDECODABLE = "undecodable"


EPOCH = datetime(1970, 1, 1)
MICROSECOND = timedelta(microseconds=1)


def number(value):
    """fastavro's dates and times as the numbers of `spark_reads`."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=None) - EPOCH) // MICROSECOND
    if isinstance(value, date):
        return (value - EPOCH.date()).days
    return value


ALL = [
    ("null", "void", [None]),
    ("boolean", "boolean", [True, False]),
    ("int", "int", [0, -1, 2**31 - 1, -(2**31)]),
    ("long", "bigint", [0, -1, 2**63 - 1, -(2**63)]),
    ("float", "float", [0.5, -1.5, float("inf"), 2.0**-149]),
    ("double", "double", [0.1, -0.1, float("-inf"), 5e-324, 1.7976931348623157e308]),
    ("string", "string", ["", "žito", "a\0b", "😀"]),
    ("bytes", "binary", [b"", b"\x00\xff"]),
    (fixed(3), "binary", [b"a\x00\xff"]),
    (fixed(0), "binary", [b""]),
    ({"type": "enum", "name": "n.E", "symbols": ["A", "B"]}, "string", ["B", "A"]),
    ({"type": "array", "items": "int"}, "array<int>", [[], [3, -1]]),
    ({"type": "array", "items": ["null", "string"]}, "array<string>", [[None, "a"]]),
    ({"type": "map", "values": ["null", "long"]}, "map<string,bigint>", [{}, {"a": None, "": 2}]),
    (
        {"type": "array", "items": {"type": "map", "values": {"type": "array", "items": "int"}}},
        "array<map<string,array<int>>>",
        [[{"a": [1]}, {}]],
    ),
    (record(), "struct<>", [{}]),
    (
        record(("a", "int"), ("b", record(("c", ["null", "string"]), name="n.S"))),
        "struct<a:int,b:struct<c:string>>",
        [{"a": 1, "b": {"c": None}}, {"a": 2, "b": {"c": "x"}}],
    ),
    (["null", "int"], "int", [None, -5]),
    (["int", "null"], "int", [None, -5]),
    (["string"], "string", ["a"]),
    (["int", "long"], "bigint", [5, 2**40]),
    (["null", "float", "double"], "double", [None, 0.1]),
    (["int", "string", "null"], "struct<member0:int,member1:string>", [5, "a", None]),
    (
        [
            "null",
            record(("p", "int")),
            fixed(2),
            {"type": "enum", "name": "n.E", "symbols": ["A"]},
            "boolean",
            {"type": "array", "items": "int"},
            {"type": "map", "values": "int"},
        ],
        "struct<member0:struct<p:int>,member1:binary,member2:string,member3:boolean,member4:array<int>,"
        "member5:map<string,int>>",
        [None, ("n.R", {"p": 1}), b"ab", "A", True, [1], {"k": 1}],
    ),
    (
        ["null", record(("p", "int"), name="n.A"), record(("p", "int"), name="n.B")],
        "struct<member0:struct<p:int>,member1:struct<p:int>>",
        [("n.A", {"p": 1}), ("n.B", {"p": 2})],
    ),
    ({"type": "array", "items": ["int", "string"]}, "array<struct<member0:int,member1:string>>", [[1, "a"]]),
    (
        logical("int", "date"),
        "date",
        [
            date(1970, 1, 1),
            date(1969, 12, 31),
            date(1582, 10, 15),
            date(1582, 10, 14),
            date(1, 1, 1),
            date(9999, 12, 31),
        ],
    ),
    (
        logical("long", "timestamp-millis"),
        "timestamp",
        [
            datetime(*at, tzinfo=timezone.utc)
            for at in [
                (1969, 12, 31, 23, 59, 59, 999000),
                (1582, 10, 4),
                (1, 1, 1),
                (9999, 12, 31, 23, 59, 59, 999000),
            ]
        ],
    ),
    (
        logical("long", "timestamp-micros"),
        "timestamp",
        [
            datetime(*at, tzinfo=timezone.utc)
            for at in [
                (1969, 12, 31, 23, 59, 59, 999999),
                (1582, 10, 4),
                (1, 1, 1),
                (9999, 12, 31, 23, 59, 59, 999999),
            ]
        ],
    ),
    (
        logical("long", "local-timestamp-millis"),
        "timestamp_ntz",
        [
            datetime(1969, 12, 31, 23, 59, 59, 999000),
            datetime(1582, 10, 4),
            datetime(1, 1, 1),
            datetime(9999, 12, 31),
        ],
    ),
    (
        logical("long", "local-timestamp-micros"),
        "timestamp_ntz",
        [
            datetime(1969, 12, 31, 23, 59, 59, 999999),
            datetime(1582, 10, 4),
            datetime(1, 1, 1),
            datetime(9999, 12, 31),
        ],
    ),
    (logical("long", "timestamp-nanos"), "bigint", [-1, 2**63 - 1, -(2**63)]),
    (logical("long", "local-timestamp-nanos"), "bigint", [-1, 2**63 - 1, -(2**63)]),
    (
        decimal(9, 2),
        "decimal(9,2)",
        [Decimal(each) for each in ("0.00", "-2.56", "9999999.99", "-9999999.99")],
    ),
    (decimal(38, 0), "decimal(38,0)", [Decimal(10**38 - 1), Decimal(1 - 10**38)]),
    (decimal(38, 38), "decimal(38,38)", [Decimal("0." + "9" * 38), Decimal("-0." + "9" * 38)]),
    (
        fixed(4, logicalType="decimal", precision=9, scale=2),
        "decimal(9,2)",
        [Decimal("-2.56"), Decimal("9999999.99")],
    ),
    (logical("string", "uuid"), "string", ["6f1ed002-ab5d-4b5b-8b1f-000000000001"]),
    (fixed(16, logicalType="uuid"), "binary", [bytes(range(16))]),
    (fixed(12, logicalType="duration"), "binary", [bytes(range(12))]),
]


@pytest.fixture(scope="module")
def read_by_spark(spark):
    """What Spark makes of the values of ALL, in its order; each with what fastavro makes of them."""
    cases, expected = [], []
    for schema, _, values in ALL:
        payloads = [encoded(writable(schema), value) for value in values]
        united = unite({1: json.dumps(schema)})
        assert united.incompatible == {}
        cases.append((payloads, united.writers[1], united.reader))
        expected.append([number(fastavro_reads(each, united.writers[1], united.reader)) for each in payloads])
    return list(zip(spark_reads_all(spark, cases), expected, strict=True))


@pytest.mark.parametrize("case", range(len(ALL)), ids=lambda case: str(ALL[case][0])[:60])
def test_each_type_has_its_column_and_its_values(read_by_spark, case):
    _, column_type, values = ALL[case]
    by_spark, by_fastavro = read_by_spark[case]
    expected = [number(value[1] if isinstance(value, tuple) else value) for value in values]
    assert by_spark == (column_type, expected)
    assert by_fastavro == expected


def writable(schema):
    """The schema as fastavro writes the value: it takes an uuid of its own class only."""
    return (
        without_logical(schema)
        if isinstance(schema, dict) and schema.get("logicalType") == "uuid"
        else schema
    )


def without_logical(schema):
    rest = {key: value for key, value in schema.items() if key != "logicalType"}
    return rest["type"] if len(rest) == 1 else rest


@pytest.mark.parametrize(
    ("schema", "column_type", "at"),
    [
        (logical("int", "time-millis"), "int", [0, 1, 86_399_999]),
        (logical("long", "time-micros"), "bigint", [0, 1, 86_399_999_999]),
    ],
)
def test_times_are_numbers_since_midnight(spark, schema, column_type, at):
    unit = timedelta(milliseconds=1) if "millis" in schema["logicalType"] else MICROSECOND
    payloads = [encoded(schema, (EPOCH + each * unit).time()) for each in at]
    united = unite({1: json.dumps(schema)})
    times = [fastavro_reads(each, united.writers[1], united.reader) for each in payloads]
    assert [(datetime.combine(EPOCH, each) - EPOCH) // unit for each in times] == at
    assert times[0] == time(0, 0)
    assert spark_reads(spark, payloads, united.writers[1], united.reader) == (column_type, at)


EXTREMES = [2**63 - 1, -(2**63)]


@pytest.mark.parametrize(
    ("schema", "numbers", "expected"),
    [
        (logical("int", "date"), [2**31 - 1, -(2**31), -719_163], [2**31 - 1, -(2**31), -719_163]),
        (logical("int", "time-millis"), [-1, 2**31 - 1, -(2**31)], [-1, 2**31 - 1, -(2**31)]),
        (logical("long", "time-micros"), EXTREMES, EXTREMES),
        (logical("long", "timestamp-micros"), EXTREMES, EXTREMES),
        (logical("long", "local-timestamp-micros"), EXTREMES, EXTREMES),
        *(
            (
                logical("long", kind),
                [9_223_372_036_854_775, 9_223_372_036_854_776, *EXTREMES],
                [9_223_372_036_854_775_000, UNDECODABLE, UNDECODABLE, UNDECODABLE],
            )
            for kind in ("timestamp-millis", "local-timestamp-millis")
        ),
    ],
)
def test_numbers_beyond_pythons_calendar_come_out_exact_or_not_at_all(spark, schema, numbers, expected):
    united = unite({1: json.dumps(schema)})
    _, found = spark_reads(spark, [zigzag(each) for each in numbers], united.writers[1], united.reader)
    assert found == expected


def test_old_dates_need_the_corrected_calendar(spark):
    """What docs/avro.md says of the setting: the values shift with LEGACY, and are refused with EXCEPTION."""
    key = "spark.sql.avro.datetimeRebaseModeInRead"
    assert spark.conf.get(key) == "CORRECTED"
    united = unite({1: json.dumps(logical("int", "date"))})
    found = {}
    try:
        for mode in ("CORRECTED", "LEGACY", "EXCEPTION"):
            spark.conf.set(key, mode)
            payloads = [zigzag(-719_162), zigzag(0)]
            found[mode] = spark_reads(spark, payloads, united.writers[1], united.reader)[1]
    finally:
        spark.conf.unset(key)
    assert found == {"CORRECTED": [-719_162, 0], "LEGACY": [-719_160, 0], "EXCEPTION": [UNDECODABLE, 0]}


def test_a_decimal_with_too_many_digits_is_undecodable_unless_it_is_longer_than_a_long(spark):
    """The last one is the known limit that docs/avro.md tells: Spark takes the last 8 bytes."""
    texts = [b"\x7f\xff\xff\xff", b"", b"\x01" + bytes(7) + b"\x05"]
    united = unite({1: json.dumps(decimal(9, 2))})
    payloads = [zigzag(len(each)) + each for each in texts]
    found = spark_reads(spark, payloads, united.writers[1], united.reader)
    assert found == ("decimal(9,2)", [UNDECODABLE, UNDECODABLE, Decimal("0.05")])
    wide = unite({1: json.dumps(decimal(20, 2))})
    payloads = [zigzag(len(each)) + each for each in (b"\x7f" + bytes(9), texts[2])]
    assert spark_reads(spark, payloads, wide.writers[1], wide.reader)[1] == [
        UNDECODABLE,
        Decimal(2**64 + 5) / 100,
    ]


@pytest.mark.parametrize(
    ("schema", "payload", "expected"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A", "žito"]}, zigzag(1), ("string", ["žito"])),
        (fixed(2, logicalType="decimal", precision=9, scale=2), b"ab", ("binary", [b"ab"])),  # no room for 9
        (logical("bytes", "decimal", precision=2, scale=3), zigzag(1) + b"a", ("binary", [b"a"])),
        (logical("string", "date"), zigzag(1) + b"a", ("string", ["a"])),
    ],
)
def test_what_fastavro_refuses_and_java_reads_is_read(spark, schema, payload, expected):
    united = unite({1: json.dumps(schema)})
    assert spark_reads(spark, [payload], united.writers[1], united.reader) == expected


# The table of docs/avro.md


def documented():
    section = DOCS.read_text("utf-8").split("## Types")[1].split("## ")[0]
    return re.findall(r"^\| `(.+?)` \| `(.+?)` \|", section, re.MULTILINE)


def test_the_documented_types_are_those_of_the_tests_above():
    assert {kind(json.loads(text)) for text, _ in documented()} >= {kind(schema) for schema, *_ in ALL}
    assert len(documented()) == 31


def kind(schema):
    """A type without its names, sizes and parts."""
    if isinstance(schema, list):
        return "union"
    return (schema["type"], schema.get("logicalType")) if isinstance(schema, dict) else schema


@pytest.mark.parametrize(("text", "column_type"), documented())
def test_the_documented_column_is_what_spark_makes(spark, text, column_type):
    united = unite({1: text})
    frame = local_rows(spark, [], "payload BINARY")
    assert event(frame, united.writers[1], united.reader)[0] == column_type


# Versions


KIND = json.dumps({"type": "enum", "name": "Kind", "namespace": "geo", "symbols": ["HOME", "WORK"]})
PLACE = json.dumps(record(("city.name", "string"), ("kind", "geo.Kind"), name="geo.Place"))
FIRST = record(
    ("Id", "int"),
    ("id", "string"),
    ("from", "geo.Place"),
    ("fare", "float"),
    ("x", ["null", record(("p", "int"), name="n.A"), "int"]),
    ("gone", "boolean"),
    ("text", "bytes"),
    name="a.Trip",
)
POINT = record(("z", "int", 9), ("w", "string"), name="n.Point")
SECOND = record(
    ("price", "double", "none", ["fare"]),
    ("id", "string"),
    ("Id", "long"),
    (
        "from",
        record(
            ("kind", {"type": "enum", "name": "b.Kind", "symbols": ["WORK", "FARM", "HOME"]}),
            ("city.name", ["null", "string"]),
            name="b.Place",
        ),
    ),
    ("x", [record(("p", "long"), ("q", "int", 3), name="n.A"), "null", "boolean"]),
    ("text", "string"),
    ("list", {"type": "array", "items": "int"}, [1, 2]),
    ("dict", {"type": "map", "values": "int"}, {"a": 1}),
    ("point", POINT, {"w": "d"}),
    ("hash", fixed(2), "\x00\u00ff"),
    ("day", logical("int", "date"), -1),
    ("kind", {"type": "enum", "name": "n.K", "symbols": ["A", "B"]}, "B"),
    ("cost", decimal(9, 2), "\x01\x00"),
    ("one", ["string", "int"], "s"),
    ("maybe", ["null", "int"], None),
    ("blob", "bytes", "\u00fe"),
    name="b.Journey",
)
THIRD = record(("Id", "string"))


def test_versions_with_references_renames_and_defaults_of_every_type_become_one_table(spark):
    texts = {1: json.dumps(FIRST), 2: json.dumps(SECOND), 3: json.dumps(THIRD)}
    united = unite(texts, references={1: [KIND, PLACE]})
    assert united.incompatible == {3: "field Id: string cannot be read as long"}

    old = {
        "Id": 1,
        "id": "i",
        "from": {"city.name": "c", "kind": "WORK"},
        "fare": 0.5,
        "gone": True,
        "text": b"t",
    }
    values = [old | {"x": each} for each in (None, 5, {"p": 6})]
    named = {}
    for text in (KIND, PLACE):
        fastavro.parse_schema(json.loads(text), named)
    payloads = [encoded(fastavro.parse_schema(FIRST, named), each) for each in values]
    column_type, found = spark_reads(spark, payloads, united.writers[1], united.reader)

    assert column_type == (
        "struct<Id:bigint,id_2:string,from:struct<city_name:string,kind:string>,fare:double,"
        "x:struct<member0:struct<p:bigint,q:int>,member1:int,member2:boolean>,gone:boolean,text:binary,"
        "list:array<int>,dict:map<string,int>,point:struct<z:int,w:string>,hash:binary,day:date,kind:string,"
        "cost:decimal(9,2),one:struct<member0:string,member1:int>,maybe:int,blob:binary>"
    )
    defaults = {
        "list": [1, 2],
        "dict": {"a": 1},
        "point": {"z": 9, "w": "d"},
        "hash": b"\x00\xff",
        "day": date(1969, 12, 31),
        "kind": "B",
        "cost": Decimal("2.56"),
        "one": "s",
        "maybe": None,
        "blob": b"\xfe",
    }
    same = {
        "Id": 1,
        "id_2": "i",
        "from": {"city_name": "c", "kind": "WORK"},
        "fare": 0.5,
        "gone": True,
        "text": b"t",
    }
    assert found == [same | {"x": each} | defaults for each in (None, 5, {"p": 6, "q": 3})]

    new = {
        "price": 0.1,
        "id": "i",
        "Id": 2**40,
        "from": {"kind": "FARM", "city.name": None},
        "x": {"p": 7, "q": 8},
        "text": "ž",
        "list": [],
        "dict": {},
        "point": {"z": 1, "w": "w"},
        "hash": b"ab",
        "day": date(2026, 1, 2),
        "kind": "A",
        "cost": Decimal("-0.01"),
        "one": 5,
        "maybe": 4,
        "blob": b"",
    }
    payload = encoded(SECOND, new)
    expected = {key: value for key, value in new.items() if key not in ("price", "id", "from", "text")} | {
        "fare": 0.1,
        "id_2": "i",
        "from": {"city_name": None, "kind": "FARM"},
        "gone": None,
        "text": "ž".encode(),
    }
    assert spark_reads(spark, [payload], united.writers[2], united.reader)[1] == [expected]
    assert fastavro_reads(payload, united.writers[2], united.reader) == expected


@pytest.mark.parametrize(
    ("one", "other", "column_type", "values", "expected"),
    [
        ("int", "double", "double", (1, 0.1), [1.0, 0.1]),
        ("long", ["null", "float"], "float", (3, None), [3.0, None]),
        ("string", "bytes", "string", ("ž", "ž".encode()), ["ž", "ž"]),
        (
            ["int", "string"],
            ["boolean", "string", "null"],
            "struct<member0:int,member1:string,member2:boolean>",
            (5, True),
            [5, True],
        ),
        (
            decimal(4, 2),
            decimal(20, 2),
            "decimal(20,2)",
            (Decimal("-1.23"), Decimal("123456789012345678.90")),
            [Decimal("-1.23"), Decimal("123456789012345678.90")],
        ),
        (
            {"type": "array", "items": "int"},
            {"type": "array", "items": ["null", "long"]},
            "array<bigint>",
            ([1], [None, 2**40]),
            [[1], [None, 2**40]],
        ),
    ],
)
def test_versions_that_are_no_records_become_one_column(spark, one, other, column_type, values, expected):
    united = unite({1: json.dumps(one), 2: json.dumps(other)})
    found = []
    for key, schema, value in zip((1, 2), (one, other), values, strict=True):
        read_type, (read,) = spark_reads(spark, [encoded(schema, value)], united.writers[key], united.reader)
        assert read_type == column_type
        found.append(read)
    assert found == expected
