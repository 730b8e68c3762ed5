"""10,000 damaged records of 20 schemas among 2,000 whole ones, through real tables, against fastavro."""

from __future__ import annotations

import io
import json
import math
import random
from collections import Counter
from datetime import datetime

import fastavro
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests.support.fuzz_oracle import Text, oracle, plain, read, record
from tests.support.local_rows import local_rows
from topiclake.delta import table as delta
from topiclake.formats.avro import decoding as avro_decoding
from topiclake.ingest import registered_batch
from topiclake.ingest.targets import Target
from topiclake.kafka import source as kafka_source
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import HEADER_LENGTH, frame
from topiclake.sources.layout import Layout
from topiclake.sources.topic_schemas import TopicSchemas

SEED = 20261121
DAMAGED, WHOLE = 10_000, 2_000
UNKNOWN_ID = 2**31 - 1


def array(items):
    return {"type": "array", "items": items}


def map_of(values):
    return {"type": "map", "values": values}


def logical(kind, name, **rest):
    return {"type": kind, "logicalType": name, **rest}


def enum(name):
    return {"type": "enum", "name": name, "symbols": ["RED", "GREEN", "BLUE"]}


def fixed(name, size, **rest):
    return {"type": "fixed", "name": name, "size": size, **rest}


def decimal(precision, scale=2):
    return logical("bytes", "decimal", precision=precision, scale=scale)


#: One table: each is a version of one subject.
RECORDS = [
    record("numbers", "int", "long", "int", "long"),
    record("floats", "float", "double", "float"),
    record("flags", "boolean", "boolean", "int", "boolean"),
    record("texts", "string", "string", "bytes"),
    record("nullable", ["null", "string"], ["null", "long"], ["double", "null"], ["null", "boolean"]),
    record("enums", enum("Ea"), ["null", enum("Eb")], array(enum("Ec"))),
    record("fixeds", fixed("Fa", 4), fixed("Fb", 16), ["null", fixed("Fc", 1)]),
    record("arrays", array("long"), array("string"), array(["null", "int"])),
    record("maps", map_of("int"), map_of("string"), map_of(["null", "double"])),
    record("nested", record("inner", "int", record("innermost", "string", "long")), "int"),
    record("rows", array(record("row", "int", "string", ["null", "long"]))),
    record("deep", map_of(array(map_of("long"))), array(array("int"))),
    record("unions", ["null", "string", "long"], ["boolean", "string"], ["bytes", "double"]),
    record("branches", ["string", record("branch", "long", "string")], ["null", record("only", "int")]),
    record("promoted", ["int", "long"], ["float", "double"], ["null", array("int")]),
    record(
        "decimals",
        decimal(4),
        decimal(18),
        decimal(38, 10),
        fixed("Da", 16, logicalType="decimal", precision=30, scale=5),
    ),
    record(
        "times",
        logical("int", "date"),
        logical("long", "timestamp-millis"),
        logical("long", "timestamp-micros"),
        logical("int", "time-millis"),
        logical("long", "time-micros"),
    ),
    record("rest", "null", logical("string", "uuid"), fixed("Ra", 12, logicalType="duration"), "string"),
]
#: A table each.
OTHERS = [array("string"), map_of("long")]


def sample(chance, schema, depth=0):
    """Make a value of a schema, as fastavro's writer takes it."""
    if isinstance(schema, list):
        branch = chance.choice(schema)
        value = sample(chance, branch, depth)
        return (branch["name"], value) if isinstance(branch, dict) and "name" in branch else value
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {field["name"]: sample(chance, field["type"], depth) for field in schema["fields"]}
    if kind == "array":
        return [sample(chance, schema["items"], depth + 1) for _ in range(chance.randrange(4 - depth))]
    if kind == "map":
        return {
            f"k{n}": sample(chance, schema["values"], depth + 1) for n in range(chance.randrange(4 - depth))
        }
    if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
        number = chance.randrange(-(10 ** min(schema["precision"], 9)), 10 ** min(schema["precision"], 9))
        return number.to_bytes(schema.get("size", 5), "big", signed=True)
    simple = {
        "null": lambda: None,
        "boolean": lambda: chance.random() < 0.5,
        "int": lambda: chance.randrange(-(2 ** chance.randrange(1, 32)), 2 ** chance.randrange(1, 31)),
        "long": lambda: chance.randrange(-(2**40), 2 ** chance.randrange(1, 41)),
        "float": lambda: chance.randrange(1000) / 8,
        "double": chance.random,
        "bytes": lambda: chance.randbytes(chance.randrange(6)),
        "string": lambda: "naïve €"[: chance.randrange(8)],
        "enum": lambda: chance.choice(["RED", "GREEN", "BLUE"]),
        "fixed": lambda: chance.randbytes(schema["size"]),
    }
    return simple[kind]()


def encoded(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain(schema)), value)
    return stream.getvalue()


# Twelve kinds of damage: (framed value, chance, where unions, enums and lengths begin, ids) → value, or None


def flip(value, chance, places, ids):
    place = chance.randrange(HEADER_LENGTH, len(value))
    return value[:place] + bytes([value[place] ^ 1 << chance.randrange(8)]) + value[place + 1 :]


def truncate(value, chance, places, ids):
    return value[: chance.randrange(len(value))]


def extend(value, chance, places, ids):
    return value + chance.randbytes(chance.randrange(1, 12))


def swap(value, chance, places, ids):
    mutable = bytearray(value)
    one, other = (chance.randrange(HEADER_LENGTH, len(value)) for _ in range(2))
    mutable[one], mutable[other] = mutable[other], mutable[one]
    return bytes(mutable)


def wrong_id(value, chance, places, ids):
    return frame(chance.choice([*ids, UNKNOWN_ID]), value[HEADER_LENGTH:])


def wrong_magic(value, chance, places, ids):
    return bytes([chance.randrange(1, 256)]) + value[1:]


def instead(value, places, number):
    """Put another number in the place of one of these numbers."""
    if not places:
        return None
    end = places[0]
    while value[end] > 0x7F:
        end += 1
    return value[: places[0]] + avro_decoding.zigzag(number) + value[end + 1 :]


def huge_length(value, chance, places, ids):
    number = chance.choice([2**16, 2**24, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1])
    return instead(value, chance.sample(places["length"], len(places["length"])), number)


def negative_length(value, chance, places, ids):
    number = -chance.choice([1, 2, 3, 2**31, 2**40, 2**63])
    return instead(value, chance.sample(places["length"], len(places["length"])), number)


def bad_branch(value, chance, places, ids):
    number = chance.choice([-1, -2, 2, 3, 4, 63, 2**31 - 1, 2**32, -(2**31)])
    return instead(value, chance.sample(places["union"], len(places["union"])), number)


def bad_symbol(value, chance, places, ids):
    number = chance.choice([-1, -2, 3, 4, 63, 2**31 - 1, 2**32, -(2**31)])
    return instead(value, chance.sample(places["enum"], len(places["enum"])), number)


def double(value, chance, places, ids):
    start = chance.randrange(HEADER_LENGTH, len(value))
    end = start + chance.randrange(1, 9)
    return value[:end] + value[start:]


def zero(value, chance, places, ids):
    start = chance.randrange(HEADER_LENGTH, len(value))
    length = min(chance.randrange(1, 9), len(value) - start)
    return value[:start] + bytes(length) + value[start + length :]


DAMAGE = [flip, truncate, extend, swap, wrong_id, wrong_magic, huge_length, negative_length, bad_branch]
DAMAGE += [bad_symbol, double, zero]


def values(chance, schemas, damaged, whole):
    """Make framed values in random order: `whole` good ones, and `damaged`, as many of each kind."""
    ids, made = list(schemas), []
    while len(made) < whole + damaged:
        schema_id = chance.choice(ids)
        payload = encoded(schemas[schema_id], sample(chance, schemas[schema_id]))
        value = frame(schema_id, payload)
        if len(made) >= whole and payload:
            found = read(schemas[schema_id], payload)[1]
            places = {name: [HEADER_LENGTH + at for at in each] for name, each in found.items()}
            kinds = [kind for kind in DAMAGE if len(payload) > 1 or kind in (extend, wrong_magic, wrong_id)]
            value = kinds[len(made) % len(kinds)](value, chance, places, ids)
        if value is not None and (payload or len(made) < whole):
            made.append(value)
    chance.shuffle(made)
    return made


# What the tables hold


def comparable(column, kind):
    """Turn a column into one that Python gets without loss: bytes of text, µs, digits of decimals."""
    if isinstance(kind, T.StringType):
        return column.cast("binary")
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, T.DateType):
        return F.unix_date(column)
    if isinstance(kind, T.DecimalType):
        return column.cast("string")
    if isinstance(kind, T.ArrayType):
        return F.transform(column, lambda each: comparable(each, kind.elementType))
    if isinstance(kind, T.MapType):
        key, value = kind.keyType, kind.valueType
        return F.transform(
            F.map_entries(column),
            lambda entry: F.struct(
                comparable(entry["key"], key).alias("key"), comparable(entry["value"], value).alias("value")
            ),
        )
    if isinstance(kind, T.StructType):
        fields = [comparable(column[field.name], field.dataType).alias(field.name) for field in kind]
        return F.when(column.isNotNull(), F.struct(*fields))
    return column


def plainly(value, kind):
    """Return a collected value in the form of the oracle's."""
    if value is None:
        return None
    if isinstance(kind, T.DecimalType):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(kind, T.StructType):
        return tuple(plainly(each, field.dataType) for each, field in zip(value, kind, strict=True))
    if isinstance(kind, T.ArrayType):
        return tuple(plainly(each, kind.elementType) for each in value)
    if isinstance(kind, T.MapType):
        return tuple(sorted((bytes(key), plainly(each, kind.valueType)) for key, each in value))
    return value


def landed(spark, path):
    """Return (offset, value by column) of each row; columns of other schemas are null."""
    rows = delta.read(spark, path)
    kinds = {field.name: field.dataType for field in rows.schema if field.name != "_kafka"}
    shown = [comparable(F.col(name), kind).alias(name) for name, kind in kinds.items()]
    for row in rows.select("_kafka.offset", *shown).collect():
        yield row["offset"], {name: plainly(row[name], kind) for name, kind in kinds.items()}


def as_columns(schema, value, columns):
    """Return what each column holds of a value of the oracle's."""
    if not isinstance(schema, dict) or schema["type"] != "record":
        return {"value": value}
    own = dict(zip((field["name"] for field in schema["fields"]), value, strict=True))
    return {name: own.get(name) for name in columns}


def why_not(value, schemas):
    """Name the reason of a record that the oracle does not read."""
    if len(value) < HEADER_LENGTH:
        return "too_short"
    if value[0] != 0:
        return "bad_magic"
    return "undecodable" if int.from_bytes(value[1:HEADER_LENGTH], "big") in schemas else "unknown_schema_id"


def check(spark, target, schemas, sent):
    """Return every difference between the tables and the oracle; count what became of the records."""
    rows = list(landed(spark, target.table))
    bad = delta.read(spark, target.quarantine).select("offset", "reason", "value").collect()
    places = Counter([offset for offset, _ in rows] + [row["offset"] for row in bad])
    differences = [
        f"offset {each} is {places[each]} times there" for each in range(len(sent)) if places[each] != 1
    ]
    kept, thrown = dict(rows), {row["offset"]: (row["reason"], bytes(row["value"])) for row in bad}
    for offset, value in enumerate(sent):
        schema = schemas.get(int.from_bytes(value[1:HEADER_LENGTH], "big"))
        is_framed = len(value) >= HEADER_LENGTH and value[0] == 0 and schema is not None
        right = oracle(schema, value[HEADER_LENGTH:]) if is_framed else None
        found = kept.get(offset, thrown.get(offset))
        row = None if right is None else as_columns(schema, right, kept.get(offset, ()))
        if found != ((why_not(value, schemas), value) if right is None else row):
            differences.append(f"{value.hex()} of {json.dumps(schema)}: {found}, and the oracle says {row}")
    return differences, len(kept), len(thrown)


@pytest.mark.timeout(300)
@pytest.mark.slow("2,000 records of twenty schemas")
@pytest.mark.parametrize(
    ("groups", "part"),
    [
        pytest.param([RECORDS], 0.2, id="some records"),
        pytest.param([RECORDS], 1, id="records", marks=pytest.mark.thorough("more records of each schema")),
        pytest.param(
            [[each] for each in OTHERS],
            1,
            id="other types",
            marks=[
                pytest.mark.slow("a batch for each schema that is no record"),
                pytest.mark.thorough("the same bytes outside of records"),
            ],
        ),
    ],
)
def test_damaged_records_come_out_as_fastavro_reads_them(embedded, spark, tmp_path, groups, part):
    registry, chance = SchemaRegistry(embedded[1].schema_registry_url), random.Random(SEED)
    assert (len(RECORDS) + len(OTHERS), len(DAMAGE)) == (20, 12)
    totals, of_all = Counter(), part * sum(map(len, groups)) / 20
    for number, group in enumerate(groups):
        subject, folder = f"fuzz-{len(group)}-{number}-value", tmp_path / str(number)
        schemas = {registry.register(subject, json.dumps(schema)): schema for schema in group}
        share = part * len(group) / 20
        sent = values(chance, schemas, math.ceil(DAMAGED * share), math.ceil(WHOLE * share))
        target = target_in(folder, registry, subject)
        when = datetime(2026, 1, 1)
        rows = [("fuzz", 0, offset, when, None, value, []) for offset, value in enumerate(sent)]
        registered_batch.write(target, local_rows(spark, rows, kafka_source.RECORD_SCHEMA), 0)

        differences, kept, thrown = check(spark, target, schemas, sent)

        assert differences[:5] == [], f"{len(differences)} differences"
        totals.update(sent=len(sent), kept=kept, thrown=thrown)
    assert totals["sent"] >= of_all * (DAMAGED + WHOLE)
    assert totals["kept"] > of_all * 1.2 * WHOLE, "no damaged record was readable: one side is not tested"
    assert totals["thrown"] > of_all * DAMAGED / 2


def target_in(folder, registry, subject):
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint" / "metadata").write_text(json.dumps({"id": "fuzz"}))
    return Target(
        pipeline="fuzz",
        run="run",
        mode="PERMISSIVE",
        schemas=TopicSchemas(registry, {"value": (subject,)}, Layout()),
        table=str(folder / "table"),
        quarantine=str(folder / "table_quarantine"),
        checkpoint=str(folder / "checkpoint"),
    )


def test_the_oracle_is_fastavro_itself_on_whole_records():
    """Where nothing is damaged, what was replaced in the oracle changes nothing."""
    chance = random.Random(SEED)
    for schema in RECORDS + OTHERS:
        for _ in range(20):
            payload = encoded(schema, sample(chance, schema))
            own = fastavro.schemaless_reader(io.BytesIO(payload), plain(schema), return_record_name=True)
            assert untexted(read(schema, payload)[0]) == own


def untexted(value):
    if isinstance(value, Text):
        return value.decode()
    if isinstance(value, dict):
        return {untexted(key): untexted(each) for key, each in value.items()}
    return type(value)(map(untexted, value)) if isinstance(value, (list, tuple)) else value
