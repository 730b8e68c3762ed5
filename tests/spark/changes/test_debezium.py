"""Records of Debezium 3.3.1 (PostgreSQL 16, pgoutput), taken from a real run; long values are shortened."""

import json
import random
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from tests.spark.changes.target import Target
from tests.support.local_rows import local_rows
from topiclake.changes.rows import ChangeRows
from topiclake.changes.rules import ChangeRules
from topiclake.errors import ConfigError
from topiclake.formats import envelope as envelopes

RECORDS = Path(__file__).parent / "debezium"
CUSTOMER = "id BIGINT, name STRING, tags ARRAY<STRING>, notes STRING, photo BINARY, level INT"
LINE = "order_id BIGINT, line INT, quantity INT"
KAFKA = "_kafka STRUCT<partition INT, offset BIGINT>"
SOURCE = "op STRING, ts_ms BIGINT, source STRUCT<lsn BIGINT, sequence STRING>"
#: The customers at the end, in PostgreSQL. The notes and the photo of 100 are in no record of its key.
CUSTOMERS = {2: ("Bobby", 7), 4: ("Dov", 1)}


def read(spark, name, value, key="id BIGINT"):
    """Return decoded records in the order of their time; a null value has null columns."""
    lines = [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text().splitlines()]
    texts = [
        (r["partition"], r["offset"], *(r[part] and json.dumps(r[part]) for part in ("key", "value")))
        for r in lines
    ]
    rows = local_rows(spark, texts, "partition INT, offset BIGINT, key STRING, value STRING")
    decoded = F.from_json("value", value).alias("value")
    # As `read_values` makes it.
    return rows.select(
        decoded,
        F.from_json("key", key).alias("_key"),
        F.struct("partition", "offset").alias("_kafka"),
    ).select("value.*", "_key", "_kafka")


def enveloped(columns, *, schema=False):
    fields = f"before STRUCT<{columns}>, after STRUCT<{columns}>, {SOURCE}, status STRING"
    return f"payload STRUCT<{fields}>" if schema else fields


def flat(added):
    return f"{CUSTOMER}, {added}"


FORMS = {
    "shopjp": ("debezium", enveloped(CUSTOMER), "id BIGINT"),
    "shopjs": ("debezium", enveloped(CUSTOMER, schema=True), "payload STRUCT<id BIGINT>"),
    "shopflat": ("debezium_flat", flat("__op STRING, __lsn BIGINT"), "id BIGINT"),
    "shoprew": ("debezium_flat", flat("__op STRING, __lsn BIGINT, __deleted STRING"), "id BIGINT"),
}


@pytest.mark.parametrize("columns", [CUSTOMER, "op STRING, after STRING", "after STRUCT<id BIGINT>"])
def test_records_without_the_envelope_are_refused(spark, columns):
    rows = local_rows(spark, [], f"{columns}, _key STRUCT<id BIGINT>, {KAFKA}")
    with pytest.raises(ConfigError) as raised:
        ChangeRows.of(rows, ChangeRules(keys=("id",), envelope="debezium"))
    assert raised.value.fields["reason"] == "no_envelope"


@pytest.mark.parametrize("form", FORMS)
def test_each_form_has_the_same_changes(spark, form):
    envelope, value, key = FORMS[form]
    rows = read(spark, f"{form}.customers", value, key)
    prepared = ChangeRows.of(rows, ChangeRules(keys=("id",), envelope=envelope)).prepare(rows)
    assert {"id", "name", "notes"} < set(prepared.columns)
    assert not {"__op", "op", "source", "_key", "payload"} & set(prepared.columns)
    found = prepared.select("id", "name", "notes", "_change.*", "_cdc.deleted").collect()
    assert {row["reason"] for row in found} == {None}
    changes = {1: [], 2: [], 3: [], 4: [], 100: []}
    for row in found:
        changes[row["id"]].append((row["operation"], row["deleted"], row["name"], sorted(row["unavailable"])))
    deletions = [("delete", True, None, [])] * (2 if envelope == "debezium" else 1)
    unavailable = ["notes", "photo"]
    assert changes == {
        1: [("upsert", False, "Ada", []), ("upsert", False, "Ada", unavailable), *deletions],
        2: [("upsert", False, "Bob", []), ("upsert", False, "Bobby", [])],
        3: [("upsert", False, "Cem", []), *deletions],
        4: [("upsert", False, "Dov", [])],
        100: [("upsert", False, "Ada", unavailable)],
    }
    assert {row["notes"] for row in found} == {None, "nnnnnnnn", "cccccccc"}


@pytest.mark.slow("three MERGEs")
def test_customers_follow_debezium(spark, tmp_path):
    target = Target(
        spark,
        tmp_path,
        f"{enveloped(CUSTOMER)}, _key STRUCT<id BIGINT>, {KAFKA}",
        keys=("id",),
        envelope="debezium",
    ).ensure()
    value = enveloped(CUSTOMER)
    customers = read(spark, "shopjp.customers", value)
    is_first = F.col("_kafka.partition") == 0
    inserts = customers.where("op IN ('r', 'c') AND after.id < 4")
    toast = customers.where(is_first & (F.col("_kafka.offset") == 2))
    others = customers.where("NOT (op IN ('r', 'c') AND after.id < 4) OR op IS NULL").where(
        ~(is_first & (F.col("_kafka.offset") == 2))
    )
    noise = [
        read(spark, f"shopjp.{name}", value, "id STRING") for name in ("heartbeat", "transaction", "message")
    ]
    target.target.write(inserts, writer="w", batch_id=0)
    target.target.write(toast, writer="w", batch_id=1)
    # The large values that did not change are those of the table.
    assert target.current("id", "name", "notes") == {
        1: ("Ada", "nnnnnnnn"),
        2: ("Bob", None),
        3: ("Cem", "cccccccc"),
    }
    assert target.stored().where("id = 1 AND photo IS NOT NULL").count() == 1
    for rows in noise:
        others = others.unionByName(
            rows.drop("_key").withColumn("_key", F.lit(None).cast("struct<id:bigint>"))
        )
    target.target.write(others, writer="w", batch_id=2)
    assert target.current("id", "name", "level") == CUSTOMERS
    ((place, row),) = target.rejected().items()
    assert (place, row["after"]["id"]) == ((5, "unavailable_value"), 100)
    assert target.commits()[0]["changes"] == {
        "merged": 4,
        "superseded": 2,
        "deleted": 2,
        "skipped": 5,
        "quarantined": 1,
    }


@pytest.mark.slow("a MERGE")
def test_a_truncate_that_the_table_refuses_is_in_quarantine(spark, tmp_path):
    row = "STRUCT<id: INT, v: INT>"
    columns = (
        f"before {row}, after {row}, source STRUCT<lsn: BIGINT>, op STRING, "
        "_kafka STRUCT<partition INT, offset BIGINT>"
    )
    rules = {"keys": ("id",), "envelope": "debezium", "sequence_by": ("source.lsn",)}
    target = Target(spark, tmp_path, columns, **rules)
    spark.sql(f"CREATE TABLE delta.`{target.table}` (id INT NOT NULL, v INT) USING delta")
    target.ensure()
    rows = [(None, (1, 1), (1,), "c", (0, 0)), (None, None, (2,), "t", (0, 1))]
    target.write(rows, 0)
    assert target.current("id", "v") == {1: 1}
    assert target.rejected().keys() == {(1, "refused_by_table")}


@pytest.mark.thorough("a truncate is tested in test_rows")
@pytest.mark.slow("two MERGEs")
def test_order_lines_follow_a_truncate_in_another_partition(spark, tmp_path):
    key = "order_id BIGINT, line INT"
    rules = {"keys": ("order_id", "line"), "envelope": "debezium", "sequence_by": ("source.lsn",)}
    target = Target(spark, tmp_path, f"{enveloped(LINE)}, _key STRUCT<{key}>, {KAFKA}", **rules).ensure()
    records = read(spark, "shopjp.order_lines", enveloped(LINE), key)
    rows = records.collect()
    random.Random(32).shuffle(rows)
    for batch_id, part in enumerate((rows[:7], rows[7:])):
        target.target.write(local_rows(spark, part, records.schema), writer="w", batch_id=batch_id)
    current = {(row["order_id"], row["line"]): row["quantity"] for row in target.view().collect()}
    assert current == {(110, 1): 9}


def test_placeholders_are_found_in_each_type_that_has_one(spark):
    text = "__debezium_unavailable_value"
    # Java's UUID.nameUUIDFromBytes of the placeholder.
    uuid = envelopes._PLACEHOLDER_UUID
    numbers = list(text.encode())
    columns = {
        "STRING": text,
        "BINARY": text.encode(),
        "ARRAY<STRING>": [text],
        "ARRAY<BINARY>": [text.encode()],
        "ARRAY<INT>": numbers,
        "ARRAY<BIGINT>": numbers,
        "MAP<STRING, STRING>": {text: text},
    }
    schema = ", ".join(f"c{index} {kind}" for index, kind in enumerate(columns))
    rows = local_rows(spark, [tuple(columns.values()), (None,) * len(columns)], schema)
    found = rows.select(*(envelopes.is_unavailable(F.col(f.name), f.dataType) for f in rows.schema)).collect()
    assert [set(row) for row in found] == [{True}, {False}]
    uuids = local_rows(spark, [([uuid],)], "c ARRAY<STRING>")
    assert uuids.where(envelopes.is_unavailable(F.col("c"), uuids.schema["c"].dataType)).count() == 1
    others = local_rows(spark, [], "i INT, t TIMESTAMP, s STRUCT<a: INT>").schema
    assert [envelopes.is_unavailable(F.col(field.name), field.dataType) for field in others] == [None] * 3


@pytest.mark.parametrize(
    ("row", "operation", "reason"),
    [
        ((None, (1,), "x"), None, "undecodable"),
        ((None, (None,), "u"), "upsert", "no_key"),
        ((None, None, "t"), "truncate", "no_order"),
        ((None, (1,), None), None, "undecodable"),
        ((None, None, "m"), "skip", None),
    ],
)
def test_an_unusable_change_has_its_reason(spark, row, operation, reason):
    columns = f"before STRUCT<id: INT>, after STRUCT<id: INT>, op STRING, {KAFKA}"
    rows = local_rows(spark, [(*row, (0, 1))], columns)
    prepared = ChangeRows.of(rows, ChangeRules(keys=("id",), envelope="debezium")).prepare(rows)
    ((found, rejected),) = prepared.select("_change.operation", "_change.reason").collect()
    assert (found, rejected) == (operation, reason)
