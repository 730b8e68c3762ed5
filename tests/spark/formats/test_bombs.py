"""Records of at most 1 KB that claim gigabytes, decoded by a JVM with a heap of 1 GB.

Run as a program, this is the process that decodes them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.environment import quiet_conf
from tests.support.local_rows import local_rows
from topiclake.delta import table as delta
from topiclake.formats.avro import decoding as avro_decoding
from topiclake.ingest import registered_batch
from topiclake.ingest.targets import Target
from topiclake.kafka import source as kafka_source
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame
from topiclake.session import local_session
from topiclake.sources.layout import Layout
from topiclake.sources.topic_schemas import TopicSchemas

PROJECT = Path(__file__).resolve().parents[3]
SUBJECT = "bombs-value"
HUGE, WIDEST, LIMIT = 2**31 - 1, 2**62, 2**24
z = avro_decoding.zigzag


def array(items, depth=1):
    for _ in range(depth):
        items = {"type": "array", "items": items}
    return items


def map_of(values):
    return {"type": "map", "values": values}


def record(name, *types):
    fields = [{"name": f"{name}_{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def decimal(precision):
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}


def unions(depth):
    kind = ["null", "string"]
    for level in range(depth):
        kind = ["null", record(f"level_{level}", kind)]
    return kind


ENUM = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
EMPTY = {"type": "fixed", "name": "Empty", "size": 0}

#: name: (type of the field, the smallest good payload, the bomb)
BOMBS = {
    "string_2_gib": ("string", b"\0", z(HUGE) + b"a"),
    "string_2_62": ("string", b"\0", z(WIDEST) + b"a"),
    "string_at_the_limit": ("string", b"\0", z(LIMIT) + b"a" * 900),
    "bytes_2_gib": ("bytes", b"\0", z(HUGE) + b"a"),
    "bytes_2_62": ("bytes", b"\0", z(WIDEST) + b"a"),
    "array_2_gi": (array("long"), b"\0", z(HUGE) + b"\2\0"),
    "array_2_62": (array("long"), b"\0", z(WIDEST) + b"\2\0"),
    "array_at_the_limit": (array("boolean"), b"\0", z(LIMIT) + b"\1" * 900),
    "map_2_gi": (map_of("long"), b"\0", z(HUGE) + b"\2a\2\0"),
    "map_2_62": (map_of("long"), b"\0", z(WIDEST) + b"\2a\2\0"),
    "map_at_the_limit": (map_of("long"), b"\0", z(LIMIT) + b"\2a\2" * 300),
    "negative_count": (array("long"), b"\0", z(-(2**40)) + z(WIDEST) + b"\2\0"),
    "most_negative_count": (array("long"), b"\0", z(-(2**63)) + z(1) + b"\2\0"),
    "negative_size": (map_of("long"), b"\0", z(-3) + z(-(2**63)) + b"\2a\2\0"),
    "blocks_that_lie": (array("string"), b"\0", (z(-1) + z(WIDEST) + b"\0") * 80),
    "free_items": (array(EMPTY), b"\0", z(LIMIT - 1) + b"\0"),
    "free_items_2_40": (array(EMPTY), b"\0", z(2**40) + b"\0"),
    "free_records": (array(record("Free", EMPTY)), b"\0", z(LIMIT // 2) + b"\0"),
    "free_items_in_arrays": (array(EMPTY, 2), b"\0", z(100) + (z(2**17) + b"\0") * 100 + b"\0"),
    "free_items_in_a_map": (map_of(array(EMPTY)), b"\0", z(90) + (b"\2a" + z(2**18) + b"\0") * 90 + b"\0"),
    "free_items_in_blocks": (array(EMPTY), b"\0", z(2**16) * 200 + b"\0"),
    "arrays_in_arrays": (array("long", 20), b"\0", z(LIMIT) * 20),
    "arrays_end_to_end": (array("long", 20), b"\0", (z(HUGE) + b"\0") * 150),
    "deep_unions": (unions(30), b"\0", b"\2" * 30 + z(2) + b"a"),
    "union_branch_2_gi": (["null", "string"], b"\0", z(HUGE)),
    "union_branch_negative": (["null", "string"], b"\0", z(-(2**31))),
    "enum_2_gi": (ENUM, b"\0", z(HUGE)),
    "enum_negative": (ENUM, b"\0", z(-(2**31))),
    "decimal_of_1000_bytes": (decimal(38), b"\2\1", z(1000) + b"\x7f" * 1000),
    "small_decimal_of_1000_bytes": (decimal(4), b"\2\1", z(1000) + b"\x7f" * 1000),
    "number_without_end": ("long", b"\0", b"\xff" * 1000),
}
#: A table cannot hold these at all, or a JVM cannot hold one value: no record of theirs is decoded.
REFUSED = {
    "nulls": (array("null"), z(LIMIT - 1) + b"\0"),
    "nulls_in_arrays": (array("null", 2), z(150) + (z(LIMIT - 1) + b"\0") * 150 + b"\0"),
    "records_without_fields": (array(record("Nothing")), z(LIMIT - 1) + b"\0"),
    "records_of_nulls": (array(record("Nulls", "null", "null")), z(LIMIT - 1) + b"\0"),
    "fixed_of_1_gib": ({"type": "fixed", "name": "Huge", "size": 2**30}, b"\0"),
}


#: A bomb for each type, and one for each limit of its own.
EACH_LIMIT = ("string_2_gib", "bytes_2_62", "array_2_gi", "map_2_gi", "negative_count", "free_items")
EACH_LIMIT += ("arrays_in_arrays", "decimal_of_1000_bytes", "nulls", "fixed_of_1_gib")
OTHERS = tuple(name for name in (*BOMBS, *REFUSED) if name not in EACH_LIMIT)


@pytest.mark.slow("a separate JVM of 1 GB")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(EACH_LIMIT, id="each limit"),
        pytest.param(OTHERS, id="others", marks=pytest.mark.thorough("further bombs of each limit")),
    ],
)
def test_bombs_are_quarantined_and_their_neighbours_decoded(embedded, tmp_path, names):
    _, addresses = embedded
    command = [
        sys.executable,
        "-m",
        "tests.spark.formats.test_bombs",
        addresses.schema_registry_url,
        str(tmp_path),
        *names,
    ]
    with subprocess.Popen(
        command,
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=240)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"the JVM died: {errors[-3000:]}"
    found = json.loads(out.splitlines()[-1])

    assert len(BOMBS) >= 30
    assert {name: found["quarantined"][name][0] for name in names} == {
        name: "undecodable" if name in BOMBS else "incompatible_schema" for name in names
    }
    assert sorted(found["rows"]) == sorted(2 * [*names]), "each neighbour once, and no bomb"
    details = {name: detail for name, (_, detail) in found["quarantined"].items()}
    assert not [name for name, detail in details.items() if "MemoryError" in detail], "fastavro took the bait"


def schema(name, kind):
    return json.dumps(
        {
            "type": "record",
            "name": name,
            "fields": [{"name": name, "type": kind}, {"name": "of", "type": "string"}],
        }
    )


def values(registry, names):
    """Return (name, value): each bomb between two good records, which carry its name in `of`."""
    good_id, made = registry.register(SUBJECT, schema("good", "long")), []
    for name, (kind, good, bomb) in BOMBS.items():
        assert len(bomb) <= 1024, name
        if name not in names:
            continue
        schema_id = registry.register(SUBJECT, schema(name, kind))
        neighbour = frame(schema_id, good + z(len(name)) + name.encode())
        made += [(name, neighbour), (name, frame(schema_id, bomb + b"\0")), (name, neighbour)]
    for name, (kind, bomb) in REFUSED.items():
        if name not in names:
            continue
        neighbour = frame(good_id, b"\0" + z(len(name)) + name.encode())
        schema_id = registry.register(SUBJECT, schema(name, kind))
        made += [(name, neighbour), (name, frame(schema_id, bomb + b"\0")), (name, neighbour)]
    return made


def main(registry_url, folder, *names):
    """Decode them in one micro-batch, and print what is where."""
    spark = local_session(
        "bombs",
        PROJECT / "jars",
        quiet_conf(folder)
        # A worker of Python that takes more than this gets a MemoryError.
        | {"spark.driver.memory": "1g", "spark.executor.pyspark.memory": "600m"},
    )
    registry = SchemaRegistry(registry_url)
    named = values(registry, names)
    when = datetime(2026, 1, 1)
    rows = [("bombs", 0, place, when, name.encode(), value, []) for place, (name, value) in enumerate(named)]
    records = local_rows(spark, rows, kafka_source.RECORD_SCHEMA)
    checkpoint = Path(folder) / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id": "bombs"}')
    target = Target(
        pipeline="bombs",
        run="run",
        mode="PERMISSIVE",
        schemas=TopicSchemas(registry, {"value": (SUBJECT,)}, Layout()),
        table=f"{folder}/table",
        quarantine=f"{folder}/table_quarantine",
        checkpoint=str(checkpoint),
    )
    registered_batch.write(target, records, 0)
    bad = delta.read(spark, target.quarantine).selectExpr("cast(key AS STRING)", "reason", "detail").collect()
    assert len(bad) == len({row["key"] for row in bad}), "a neighbour is in quarantine"
    kept = [row["of"] for row in delta.read(spark, target.table).select("of").collect()]
    sys.stdout.write(json.dumps({"quarantined": {row["key"]: row[1:] for row in bad}, "rows": kept}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
