"""20 writer schemas by 20 reader schemas: our rules, Avro's own, and what Spark and fastavro read."""

import copy
import io
import json

import fastavro
import pytest
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from tests.spark.formats.plain_values import plain
from tests.support.avro_resolution import resolves
from tests.support.local_rows import local_rows
from topiclake.formats.avro.decoding import END_BYTES, framed
from topiclake.formats.codec import END, END_FIELD


def record(*fields, name="n.R", **rest):
    keys = ("name", "type", "default", "aliases")
    written = [{k: v for k, v in zip(keys, each, strict=False) if v != "none"} for each in fields]
    return {"type": "record", "name": name, "fields": written, **rest}


def colour(*symbols, **rest):
    return {"type": "enum", "name": "n.Colour", "symbols": list(symbols), **rest}


P, Q = record(("p", "int"), name="n.P"), record(("q", "long", 4), name="n.Q")
X = {"type": "fixed", "name": "n.X", "size": 2}
#: Name → schema, and values that together use every branch and symbol.
SCHEMAS = {
    "int": ("int", [-5, 7]),
    "double": ("double", [0.5]),
    "string": ("string", ["", "ž"]),
    "long or null": (["null", "long"], [None, 2**40]),
    "string or int": (["string", "int"], [5, "s"]),
    "most": (["double", "null", "bytes", "long", colour("C", "B", "A")], [b"b", None, 0.5, 3, "A", "B", "C"]),
    "AB": (colour("A", "B"), ["A", "B"]),
    "A, else A": (colour("A", default="A"), ["A"]),
    "renamed": ({"type": "enum", "name": "m.F", "symbols": ["A", "B"], "aliases": ["n.Colour"]}, ["A", "B"]),
    "int map": ({"type": "map", "values": "int"}, [{"a": 5}]),
    "map": ({"type": "map", "values": ["null", "double"]}, [{"a": 0.5, "b": None}]),
    "R a b": (record(("a", "int"), ("b", "string", "bb")), [{"a": 1, "b": "x"}]),
    "R long a": (record(("a", ["null", "long"], None)), [{"a": None}, {"a": 2**40}]),
    "R b a": (
        record(("b", ["null", "bytes"], None), ("a", "double", 0.25)),
        [{"b": b"y", "a": 1.5}, {"b": None, "a": 1.5}],
    ),
    "R renamed a": (
        record(("f", ["double", "null"], 1.5, ["a"]), ("b", "string", "ff")),
        [{"f": 0.5, "b": "z"}],
    ),
    "R e": (
        record(("a", "int", 9), ("e", ["null", colour("A", "B")], None)),
        [{"a": 1, "e": "A"}, {"a": 1, "e": "B"}, {"a": 1, "e": None}],
    ),
    "R wider e": (
        record(("e", colour("C", "B", "A"), "C"), ("a", ["int", "string", "null"], 6)),
        [{"e": "A", "a": 2}, {"e": "C", "a": "t"}, {"e": "B", "a": None}],
    ),
    "R p x l": (
        record(
            ("a", "int", 8), ("p", P, {"p": 3}), ("x", X, "ab"), ("l", {"type": "array", "items": "int"}, [7])
        ),
        [{"a": 2, "p": {"p": 5}, "x": b"yz", "l": [1, 2]}],
    ),
    "R q l": (
        record(("p", ["null", Q, P], None), ("l", {"type": "array", "items": ["null", "double"]}, [0.5])),
        [{"p": ("n.P", {"p": 5}), "l": [0.5, None]}, {"p": ("n.Q", {"q": 5}), "l": []}, {"p": None, "l": []}],
    ),
    "null, P or R": (
        ["null", P, record(("a", "long", 2), name="n.R")],
        [None, ("n.P", {"p": 6}), ("n.R", {"a": 7})],
    ),
}
PAIRS = [(writer, reader) for writer in SCHEMAS for reader in SCHEMAS]
UNREADABLE = "unreadable"


def text(name):
    return json.dumps(SCHEMAS[name][0])


def payloads(name):
    schema, values = SCHEMAS[name]
    found = []
    for value in values:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(copy.deepcopy(schema)), value)
        found.append(stream.getvalue())
    return found


@pytest.fixture(scope="module")
def java(spark):
    """Avro's own verdict for each pair."""
    avro = spark._jvm.org.apache.avro
    schemas = {name: avro.Schema.Parser().parse(text(name)) for name in SCHEMAS}
    check = avro.SchemaCompatibility.checkReaderWriterCompatibility
    return {
        (writer, reader): check(schemas[reader], schemas[writer]).getType().toString() == "COMPATIBLE"
        for writer, reader in PAIRS
    }


@pytest.fixture(scope="module")
def by_spark(spark):
    """What Spark reads of each writer's values, for each pair; a job for five readers."""
    rows = [(writer, n, each + END_BYTES) for writer in SCHEMAS for n, each in enumerate(payloads(writer))]
    frame = local_rows(spark, rows, "writer STRING, n INT, payload BINARY").coalesce(1)
    found = {pair: [] for pair in PAIRS}
    readers = list(SCHEMAS)
    for some in (readers[start : start + 5] for start in range(0, len(readers), 5)):
        columns = [decoded(reader).alias(f"c{n}") for n, reader in enumerate(some)]
        for row in frame.select("writer", "n", *columns).orderBy("writer", "n").collect():
            for reader, read in zip(some, row[2:], strict=True):
                is_right = read[END_FIELD] == END
                found[row["writer"], reader].append(plain(read["event"]) if is_right else UNREADABLE)
    return found


def decoded(reader):
    """Each writer's payload as this reader reads it."""
    options = {"mode": "PERMISSIVE", "avroSchema": framed(text(reader))}
    each = {writer: from_avro("payload", framed(text(writer)), options) for writer in SCHEMAS}
    return F.coalesce(*(F.when(F.col("writer") == writer, value) for writer, value in each.items()))


def by_fastavro(writer, reader):
    parsed = [fastavro.parse_schema(json.loads(text(each))) for each in (writer, reader)]
    read = [fastavro.schemaless_reader(io.BytesIO(each), *parsed) for each in payloads(writer)]
    for value in read:
        # fastavro gives the default of a fixed as JSON's text; Java as the bytes that it means.
        if isinstance(value, dict) and isinstance(value.get("x"), str):
            value["x"] = value["x"].encode("latin-1")
    return read


def test_our_rules_are_avros(java):
    ours = {pair: resolves(text(pair[0]), text(pair[1])) for pair in PAIRS}
    assert {pair: why for pair, why in ours.items() if (why is None) != java[pair]} == {}
    assert len(PAIRS) == 400
    assert sum(java.values()) > 70, "too few pairs resolve to tell anything"


def test_spark_reads_every_value_of_a_pair_that_resolves_and_not_of_another(by_spark, java):
    readable = {pair: UNREADABLE not in values for pair, values in by_spark.items()}
    assert {pair: by_spark[pair] for pair in PAIRS if readable[pair] != java[pair]} == {}


def test_spark_reads_what_fastavro_reads(by_spark, java):
    different = {}
    for pair in PAIRS:
        if java[pair]:
            expected = by_fastavro(*pair)
            if by_spark[pair] != expected:
                different[pair] = (by_spark[pair], expected)
    assert different == {}
