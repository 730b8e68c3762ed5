"""Changes into a table of SCD type 2: all versions of a row."""

import json

import pytest

from tests.spark.changes.target import Target
from tests.support.crash import CrashError
from topiclake.changes import tables
from topiclake.changes.batch import Changes
from topiclake.delta import merge
from topiclake.errors import ConfigError

UNAVAILABLE = "__debezium_unavailable_value"
COLUMNS = (
    "id INT, name STRING, notes STRING, tags MAP<STRING, INT>, __op STRING, __lsn BIGINT, "
    "_headers ARRAY<STRUCT<key STRING, value BINARY>>, _kafka STRUCT<partition INT, offset BIGINT>"
)


def change(key, name, notes, op, lsn, old=None):
    headers = [("__debezium.oldkey", json.dumps({"id": old}).encode())] if old else []
    return key, name, notes, name and {name: 1}, op, lsn, headers, (0, lsn)


def small_table(spark, folder):
    columns = "id INT, v STRING, op STRING, at BIGINT, _kafka STRUCT<partition INT, offset BIGINT>"
    return Target(
        spark,
        folder,
        columns,
        keys=("id",),
        sequence_by=("at",),
        apply_as_deletes="op = 'd'",
        column_list=("v",),
        stored_as_scd_type=2,
    ).ensure()


def before_merge(monkeypatch, write):
    """Let another writer write between the first batch's computation and its MERGE."""
    execute = merge.execute_once

    def slower(*args, **given):
        monkeypatch.setattr(merge, "execute_once", execute)
        write()
        return execute(*args, **given)

    monkeypatch.setattr(merge, "execute_once", slower)


def test_late_changes_rewrite_the_history_of_a_row(spark, tmp_path):
    target = small_table(spark, tmp_path)
    changes = [("a", "u", 10), ("b", "u", 40), ("b", "u", 50), (None, "d", 60), ("b", "u", 20)]
    rows = [(1, *values, (0, offset)) for offset, values in enumerate(changes)]
    target.write(rows[:3], 0)
    # A deletion, and a change in the middle of a version.
    target.write(rows[3:], 1)
    found = target.view().orderBy("__START_AT").select("v", "__START_AT", "__END_AT").collect()
    assert found == [("a", 10, 20), ("b", 20, 60)]


@pytest.mark.slow("three MERGEs")
def test_two_writers_make_the_history_of_one(spark, tmp_path, monkeypatch):
    target = small_table(spark, tmp_path)
    change = (1, "b", "u", 20, (0, 2))
    before_merge(monkeypatch, lambda: target.write([change], 0, writer="replay"))
    target.write([(1, "a", "u", 10, (0, 0)), (1, "c", "u", 40, (0, 1))], 0)
    found = target.view().orderBy("__START_AT").select("v", "__START_AT", "__END_AT").collect()
    assert found == [("a", 10, 20), ("b", 20, 40), ("c", 40, None)]
    assert [commit["changes"]["merged"] for commit in target.commits()] == [2, 1]


@pytest.mark.thorough("a crash between the MERGE of a batch and the correction of its versions")
@pytest.mark.slow("three MERGEs")
def test_a_repeated_batch_corrects_its_versions_whatever_others_commit(spark, tmp_path, monkeypatch):
    target = small_table(spark, tmp_path)
    batch = [(1, "a", "u", 10, (0, 0)), (1, "c", "u", 40, (0, 1)), (2, "x", "u", 10, (0, 3))]
    correct = Changes.correct

    def dying(self, version=None):
        if self.counts.rows == len(batch):
            raise CrashError
        correct(self, version)

    def later(self, version=None):
        spark.sql(f"ALTER TABLE delta.`{self.path}` SET TBLPROPERTIES ('shop.state' = 'open')")
        correct(self, version)

    before_merge(monkeypatch, lambda: target.write([(1, "b", "u", 20, (0, 2))], 0, writer="replay"))
    with monkeypatch.context() as patched:
        patched.setattr(Changes, "correct", dying)
        with pytest.raises(CrashError):
            target.write(batch, 0)
    # The batch has a new row again, so its MERGE has an id, and Delta skips it. Another commit follows.
    spark.sql(f"DELETE FROM delta.`{target.table}` WHERE id = 2")
    monkeypatch.setattr(Changes, "correct", later)
    target.write(batch, 0)
    found = target.view().orderBy("__START_AT").select("v", "__START_AT", "__END_AT").collect()
    assert found == [("a", 10, 20), ("b", 20, 40), ("c", 40, None)]


@pytest.mark.thorough("a user's DELETE between two steps of a batch")
@pytest.mark.slow("two MERGEs")
def test_a_version_that_a_user_deletes_meanwhile_does_not_come_back(spark, tmp_path, monkeypatch):
    target = small_table(spark, tmp_path)
    target.write([(1, "a", "u", 10, (0, 0))], 0)
    before_merge(monkeypatch, lambda: spark.sql(f"DELETE FROM delta.`{target.table}`"))
    target.write([(1, "b", "u", 20, (0, 1))], 1)
    assert target.view().select("v", "__START_AT", "__END_AT").collect() == [("b", 20, None)]


@pytest.mark.thorough("unavailable values")
@pytest.mark.slow("two MERGEs")
def test_late_changes_of_debezium_rewrite_the_history_of_a_row(spark, tmp_path):
    target = Target(
        spark,
        tmp_path,
        COLUMNS,
        keys=("id",),
        envelope="debezium_flat",
        sequence_by=("__lsn",),
        stored_as_scd_type=2,
    ).ensure()
    first = [
        change(1, "Ada", "n", "c", 10),
        change(1, "Ada", UNAVAILABLE, "u", 30),
        change(2, "Bob", "b", "c", 10),
        change(2, None, None, "d", 20),
        change(2, "Bob", "b", "c", 40),
        change(3, "?", UNAVAILABLE, "u", 5),
    ]
    target.write(first, 0)
    assert versions(target) == [
        (1, "Ada", "n", 10, None),
        (2, "Bob", "b", 10, 20),
        (2, "Bob", "b", 40, None),
    ]
    # A change in the middle of a version, one before all others, and a deletion after it.
    second = [
        change(1, "Eve", "e", "u", 20),
        change(2, "Bo", UNAVAILABLE, "u", 15),
        change(2, "B", "b", "c", 3),
        change(2, None, None, "d", 4),
        # The values of an old key, which was deleted in the batch before.
        change(4, "Ada", UNAVAILABLE, "c", 20, 2),
    ]
    target.write(second, 1)
    expected = [
        (1, "Ada", "n", 10, 20),
        (1, "Eve", "e", 20, 30),
        (1, "Ada", "e", 30, None),
        (2, "B", "b", 3, 4),
        (2, "Bob", "b", 10, 15),
        (2, "Bo", "b", 15, 20),
        (2, "Bob", "b", 40, None),
        (4, "Ada", "b", 20, None),
    ]
    assert versions(target) == expected
    assert target.rejected().keys() == {(5, "unavailable_value")}
    later, earlier = target.commits()
    assert earlier["changes"] == {"merged": 5, "superseded": 0, "deleted": 1, "skipped": 0, "quarantined": 1}
    assert later["changes"] == {"merged": 5, "superseded": 0, "deleted": 1, "skipped": 0, "quarantined": 0}

    with pytest.raises(ConfigError) as raised:
        tables.purge(spark, target.table, 0)
    assert raised.value.fields["reason"] == "scd_type"


@pytest.mark.thorough("further forms of the order")
@pytest.mark.slow("two MERGEs")
def test_an_order_of_two_columns_is_a_struct_and_an_untracked_column_begins_no_version(spark, tmp_path):
    columns = "id INT, v INT, day STRING, n INT, _kafka STRUCT<partition INT, offset BIGINT>"
    wider = columns.replace("day", "note STRING, day")
    target = Target(
        spark,
        tmp_path,
        columns,
        keys=("id",),
        sequence_by=("day", "n"),
        except_column_list=("day", "n"),
        track_history_except_column_list=("v",),
        stored_as_scd_type=2,
    ).ensure()
    target.write([(1, 1, "3/9", 1, (0, 0)), (1, 2, "3/9", 2, (0, 1))], 0)
    target.write([(1, 3, "new", "3/10", 0, (0, 2))], 1, columns=wider)
    ends = ("to_json(__START_AT)", "to_json(__END_AT)")
    found = target.view().orderBy("v").selectExpr("v", "note", *ends).collect()
    starts = [f'{{"day":"{day}","n":{n}}}' for day, n in (("3/9", 1), ("3/10", 0))]
    assert found == [
        (2, None, *starts),
        (3, "new", starts[1], None),
    ]


def versions(target):
    names = ("id", "name", "notes", "__START_AT", "__END_AT")
    return [tuple(row) for row in target.view().select(*names).orderBy("id", "__START_AT").collect()]
