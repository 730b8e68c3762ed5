"""Changes without all values: null that keeps a value, unavailable values, and columns that changes lack."""

import json
import os
from urllib.parse import urlsplit

import pytest

from tests.spark.changes.target import Target
from tests.support.local_rows import local_rows
from topiclake.changes import lookup
from topiclake.changes.batch import resolved
from topiclake.delta import table as delta

UNAVAILABLE = "__debezium_unavailable_value"
FLAT = (
    "id INT, name STRING, notes STRING, __op STRING, __lsn BIGINT, "
    "_headers ARRAY<STRUCT<key STRING, value BINARY>>, _kafka STRUCT<partition INT, offset BIGINT>"
)


def partial_table(spark, folder):
    """Return a table of the user, with a note that changes don't have."""
    columns = "id INT, a INT, op STRING, lsn BIGINT, _kafka STRUCT<partition INT, offset BIGINT>"
    target = Target(
        spark,
        folder,
        columns,
        keys=("id",),
        sequence_by=("lsn",),
        apply_as_deletes="op = 'd'",
        apply_as_truncates="op = 't'",
        ignore_null_updates=("a",),
        column_list=("a",),
    )
    spark.sql(f"CREATE TABLE delta.`{target.table}` (id INT, note STRING, a INT) USING delta")
    spark.sql(f"INSERT INTO delta.`{target.table}` VALUES (1, 'n', 1), (2, 'n', 1), (NULL, 'n', 1)")
    return target.ensure()


def test_no_value_that_is_older_than_a_deletion_survives(spark, tmp_path):
    target = partial_table(spark, tmp_path)
    batch = [(1, None, "d", 14, (0, 14)), (1, None, "c", 15, (0, 15)), (2, None, "u", 16, (0, 16))]
    target.write(batch, 0)
    assert target.current("id", "a", "note") == {1: (None, None), 2: (1, "n"), None: (1, "n")}


@pytest.mark.thorough("a replay between two jobs of a batch")
def test_a_change_is_merged_or_rejected_though_a_replay_brings_its_row_meanwhile(spark, tmp_path):
    rules = {"keys": ("id",), "envelope": "debezium_flat", "sequence_by": ("__lsn",)}
    target = Target(spark, tmp_path, FLAT, **rules).ensure()
    rows = local_rows(spark, [(1, "Ada", UNAVAILABLE, "u", 9, [], (0, 9))], FLAT)
    with resolved(rows, target.table, target.rules) as changes:
        assert changes.rejections == 1
        target.write([(1, "Eve", "n", "c", 2, [], (0, 2))], 0, writer="replay")
        assert changes.merged.isEmpty()


@pytest.mark.thorough("each order of deletions and truncates")
@pytest.mark.slow("three MERGEs")
def test_no_value_that_is_older_than_a_deletion_or_a_truncate_survives(spark, tmp_path):
    target = partial_table(spark, tmp_path)
    target.write([(key, 1, "c", lsn, (0, lsn)) for key, lsn in ((1, 1), (2, 2), (3, 10))], 0)
    spark.sql(f"UPDATE delta.`{target.table}` SET note = 'n'")
    batch = [
        (1, None, "d", 14, (0, 14)),
        (1, None, "c", 15, (0, 15)),
        (2, None, "u", 16, (0, 16)),
        # This deletion is older than the row.
        (3, None, "d", 6, (0, 17)),
        (3, None, "u", 18, (0, 18)),
    ]
    target.write(batch, 1)
    assert target.current("id", "a", "note") == {1: (None, None), 2: (1, "n"), 3: (1, "n"), None: (1, "n")}
    target.write([(None, None, "t", 20, (0, 20)), (2, None, "u", 21, (0, 21))], 2)
    assert target.current("id", "a", "note") == {2: (None, None)}


@pytest.mark.thorough("further types of columns")
@pytest.mark.slow("three MERGEs")
def test_a_struct_may_get_a_field_and_lack_it_where_null_keeps_a_value(spark, tmp_path):
    narrow = "id INT, s STRUCT<a: INT>, l ARRAY<STRUCT<a: INT>>, _kafka STRUCT<partition INT, offset BIGINT>"
    wide = narrow.replace("a: INT", "a: INT, b: STRING")
    target = Target(spark, tmp_path, narrow, keys=("id",), ignore_null_updates=True).ensure()
    target.write([(1, (1,), [(1,)], (0, 0)), (2, (2,), [(2,)], (0, 1))], 0)
    target.write([(1, (5, "x"), None, (0, 2)), (2, None, [(6, "y")], (0, 3))], 1, columns=wide)
    target.write([(1, None, [(7,)], (0, 4)), (3, (8,), None, (0, 5))], 2)
    rows = {row["id"]: row for row in target.view().collect()}
    assert {key: row["s"].asDict() for key, row in rows.items()} == {
        1: {"a": 5, "b": "x"},
        2: {"a": 2, "b": None},
        3: {"a": 8, "b": None},
    }
    lists = {key: row["l"] and [item.asDict() for item in row["l"]] for key, row in rows.items()}
    assert lists == {1: [{"a": 7, "b": None}], 2: [{"a": 6, "b": "y"}], 3: None}


def flat(key, notes, op, lsn, place, old=None):
    headers = [("__debezium.oldkey", json.dumps({"id": old}).encode())] if old else []
    return key, f"name {lsn}", notes, op, lsn, headers, place


def notes_table(spark, folder):
    return Target(
        spark, folder, FLAT, keys=("id",), envelope="debezium_flat", sequence_by=("__lsn",)
    ).ensure()


@pytest.mark.thorough("each place of the old row")
@pytest.mark.slow("two MERGEs")
def test_an_unavailable_value_of_a_new_key_is_that_of_the_old_key(spark, tmp_path):
    target = notes_table(spark, tmp_path)
    target.write([flat(key, f"n{key}", "c", key, (0, key)) for key in (1, 2)], 0)
    first = [
        # The old row is in the table.
        flat(1, None, "d", 10, (0, 10)),
        flat(11, UNAVAILABLE, "c", 10, (1, 0), 1),
        # It is in the batch, deleted twice by a tombstone.
        flat(3, "n3", "c", 11, (0, 11)),
        flat(3, UNAVAILABLE, "u", 12, (0, 12)),
        flat(3, None, "d", 13, (0, 13)),
        flat(3, None, "d", 13, (0, 14)),
        flat(13, UNAVAILABLE, "c", 13, (2, 0), 3),
        flat(13, UNAVAILABLE, "u", 14, (2, 1)),
        # The table never had it.
        flat(14, UNAVAILABLE, "c", 15, (2, 2), 4),
        # The old key is not deleted yet.
        flat(12, UNAVAILABLE, "c", 20, (2, 3), 2),
    ]
    target.write(first, 1)
    assert target.current("id", "name", "notes") == {
        2: ("name 2", "n2"),
        11: ("name 10", "n1"),
        12: ("name 20", "n2"),
        13: ("name 14", "n3"),
    }
    assert {(row["id"], reason) for (_, reason), row in target.rejected().items()} == {
        (14, "unavailable_value"),
    }


@pytest.mark.thorough("the speed of a batch")
@pytest.mark.slow("two MERGEs")
def test_a_batch_reads_only_files_that_may_have_its_keys(spark, tmp_path, capsys):
    target = notes_table(spark, tmp_path)
    target.write([flat(1, "n1", "c", 1, (0, 1))], 0)
    before = files(target)
    spark.sql(
        f"INSERT INTO delta.`{target.table}` SELECT 100 AS id, * EXCEPT (id) FROM delta.`{target.table}`"
    )
    (other,) = files(target) - before
    # Without this file, each read of it fails.
    os.rename(other, f"{other}.hidden")
    target.write([flat(1, UNAVAILABLE, "u", 3, (0, 3)), flat(2, UNAVAILABLE, "c", 4, (0, 4), 1)], 1)
    os.rename(f"{other}.hidden", other)
    assert target.current("id", "notes") == {1: "n1", 2: "n1", 100: "n1"}

    session = spark.newSession()
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    wanted = session.createDataFrame([(1,)], "id INT")
    lookup.stored(delta.read(session, target.table), wanted, ("id",)).explain()
    plan = capsys.readouterr().out
    assert "BroadcastHashJoin" in plan
    assert "SortMergeJoin" not in plan


def files(target):
    return {urlsplit(name).path for name in target.stored().inputFiles()}
