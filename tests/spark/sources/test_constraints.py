"""What Topiclake holds against a table's constraints, and what Delta itself does with each row."""

import itertools
import json
from uuid import uuid4

import pytest

from tests.support.crash import CrashError
from topiclake.delta import table as delta
from topiclake.formats.declared import DeclaredFormat, columns_of
from topiclake.ingest import declared_batch
from topiclake.ingest.targets import Target
from topiclake.sources import constraints
from topiclake.sources.layout import Layout
from topiclake.sources.table_snapshot import read_snapshot
from topiclake.sources.topic_schemas import TopicSchemas

TABLE = """
    id INT NOT NULL, name CHAR(3), note VARCHAR(2), amount INT, `odd.name` INT,
    inner STRUCT<x: INT, deep: STRUCT<y: VARCHAR(2)>>,
    items ARRAY<STRUCT<a: VARCHAR(2)>>, tags MAP<VARCHAR(2), VARCHAR(3)>,
    with_default INT NOT NULL DEFAULT 8
"""
CHECKS = {"positive": "amount > 0", "odd": "`odd.name` IS NULL OR `odd.name` < with_default"}
#: Rows as SQL, and what they break.
ROWS = {
    "1 AS id, 3 AS amount": None,
    "1 AS ID, 3 AS Amount, 'abc' AS name, 'xy' AS note": None,
    "1 AS id, -3 AS amount": "CHECK positive",
    "1 AS id": "CHECK positive",
    "CAST(NULL AS INT) AS id, 3 AS amount": "NOT NULL id",
    "3 AS amount": "NOT NULL id",
    "1 AS id, 3 AS amount, 'abc ' AS name": "char(3) name",
    "1 AS id, 3 AS amount, 'xyz' AS note": "varchar(2) note",
    "1 AS id, 3 AS amount, 'äöü' AS name": None,
    "1 AS id, 3 AS amount, 7 AS `odd.name`": None,
    "1 AS id, 3 AS amount, 8 AS `odd.name`": "CHECK odd",
    "1 AS id, 3 AS amount, 9 AS `odd.name`, 10 AS with_default": None,
    "1 AS id, 3 AS amount, CAST(NULL AS INT) AS with_default": "NOT NULL with_default",
    "1 AS id, 3 AS amount, named_struct('x', 1) AS inner": None,
    "1 AS id, 3 AS amount, named_struct('deep', named_struct('y', 'xyz')) AS inner": "inner",
    "1 AS id, 3 AS amount, array(named_struct('a', 'xy'), NULL) AS items": None,
    "1 AS id, 3 AS amount, array(named_struct('a', 'xyz')) AS items": "items",
    "1 AS id, 3 AS amount, map('xy', 'xyz') AS tags": None,
    "1 AS id, 3 AS amount, map('xyz', 'x') AS tags": "tags",
    "1 AS id, 3 AS amount, map('x', 'wxyz') AS tags": "tags",
}


@pytest.fixture(scope="module")
def constrained(spark, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("constrained") / "table")
    defaults = "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
    spark.sql(f"CREATE TABLE delta.`{path}` ({TABLE}) USING delta {defaults}")
    for name, condition in CHECKS.items():
        spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT {name} CHECK ({condition})")
    return path


@pytest.mark.parametrize(("row", "expected"), ROWS.items())
def test_a_row_is_refused_as_delta_refuses_it(spark, constrained, row, expected):
    look, rows = read_snapshot(spark, constrained), spark.sql(f"SELECT {row}")
    (found,) = constraints.with_broken(rows, look.columns, look.constraints, "broken").collect()
    assert found["broken"] is None if expected is None else expected in found["broken"]

    def append(some):
        whole = constraints.with_required(some, look.columns)
        whole.write.format("delta").mode("append").option("mergeSchema", "true").save(constrained)

    if expected is None:
        append(rows)
    else:
        with pytest.raises(Exception, match=r"DELTA_(VIOLATE|NOT_NULL|MISSING_NOT_NULL|EXCEED)"):
            append(rows)
    # Of none that is left, too.
    append(rows.where("false"))


def test_within_a_struct_what_must_not_be_null_must_be_there(spark, tmp_path):
    path = str(tmp_path / "table")
    spark.sql(f"CREATE TABLE delta.`{path}` (id INT, i STRUCT<x: INT NOT NULL, y: INT>) USING delta")
    look = read_snapshot(spark, path)
    for row in ("1 AS id", "1 AS id, named_struct('y', 1) AS i"):
        rows = spark.sql(f"SELECT {row}")
        (found,) = constraints.with_broken(rows, look.columns, look.constraints, "broken").collect()
        assert found["broken"] == "NOT NULL i.x"
        nothing = constraints.with_required(rows.where("false"), look.columns)
        nothing.write.format("delta").mode("append").save(path)


def target_in(folder, **changes):
    (folder / "checkpoint").mkdir(exist_ok=True)
    (folder / "checkpoint" / "metadata").write_text(json.dumps({"id": "11111111-aaaa"}))
    given = {
        "pipeline": "hits",
        "run": "run-1",
        "mode": "PERMISSIVE",
        "schemas": TopicSchemas(None, {}, Layout()),
        "table": str(folder / "hits"),
        "quarantine": str(folder / "hits_quarantine"),
        "checkpoint": str(folder / "checkpoint"),
        "start": uuid4().hex,
    }
    return Target(**given | changes)


def alter(spark, target, change):
    spark.sql(f"ALTER TABLE delta.`{target.table}` {change}")


def in_table(spark, target):
    return sorted(row["id"] for row in delta.read(spark, target.table).collect())


def in_quarantine(spark, target):
    rows = delta.read(spark, target.quarantine).orderBy("batch_id", "offset").collect()
    return [(row["batch_id"], row["offset"], row["reason"], row["detail"]) for row in rows]


def hit(number):
    return json.dumps({"id": number}).encode()


@pytest.mark.thorough("constraints are tested in test_micro_batch")
def test_values_that_a_constraint_refuses_are_in_quarantine_and_the_query_goes_on(
    spark, kafka_records, tmp_path, monkeypatch
):
    values, target = DeclaredFormat("json", columns_of("id INT")), target_in(tmp_path)
    declared_batch.write(target, values, kafka_records([hit(1), hit(-1)]), 0)
    assert in_table(spark, target) == [-1, 1]
    alter(spark, target, "ADD CONSTRAINT positive CHECK (id > -2)")
    # While the query runs, which learns it from its next write.
    declared_batch.write(target, values, kafka_records([hit(2), hit(-2), b"{"]), 1)
    assert in_table(spark, target) == [-1, 1, 2]
    refused = "refused_by_table", "the table demands CHECK positive"
    assert [row[:3] for row in in_quarantine(spark, target)] == [
        (1, 1, refused[0]),
        (1, 2, "undecodable"),
    ]
    assert in_quarantine(spark, target)[0][3] == refused[1]

    with pytest.raises(Exception, match=f"{refused[0]}: {refused[1]}"):
        declared_batch.write(target_in(tmp_path, mode="FAILFAST"), values, kafka_records([hit(-2)]), 2)
    assert in_table(spark, target) == [-1, 1, 2]

    # A batch that was cut off is finished by the constraints that it was begun with.
    calls, append = itertools.count(1), delta.append_once

    def dying(*args, **kwargs):
        append(*args, **kwargs)
        if next(calls) == 1:
            raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(delta, "append_once", dying)
        with pytest.raises(CrashError):
            declared_batch.write(target, values, kafka_records([hit(3), hit(-3)]), 2)
    alter(spark, target, "DROP CONSTRAINT positive")
    declared_batch.write(target_in(tmp_path), values, kafka_records([hit(3), hit(-3)]), 2)
    assert in_table(spark, target) == [-1, 1, 2, 3]
    assert in_quarantine(spark, target)[2:] == [(2, 1, *refused)]
