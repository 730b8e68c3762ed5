"""Micro-batches of `apply: upsert`: each record changes a row, is skipped, or is in quarantine, and once."""

import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaProtocolError

import topiclake as tl
from tests.spark.changes import test_debezium as debezium
from tests.spark.ingest.change_pipeline import CUSTOMERS, ROWS, Pipeline, change, recorded
from tests.support.crash import CrashError
from topiclake.changes.batch import Changes
from topiclake.changes.tables import current_rows
from topiclake.delta import merge
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, DecodeError
from topiclake.ingest.quarantine import replay_claims
from topiclake.ingest.row_decoder import DeclaredDecoder
from topiclake.ingest.targets import writer_name
from topiclake.streaming.batch_counts import CountSubscription

WIDENING = f"""{ROWS.replace("at BIGINT", "at INT")}
            table_properties: {{delta.enableTypeWidening: "true"}}
"""


@pytest.mark.slow("two attempts of a batch")
def test_a_crash_loses_and_doubles_nothing(spark, tmp_path, monkeypatch):
    shop = Pipeline(spark, tmp_path, CUSTOMERS)
    records = [*recorded("shopjp.customers"), (9, 0, {"id": 1}, b"no json")]
    execute = merge.execute_once

    def dying(*args, **kwargs):
        execute(*args, **kwargs)
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(merge, "execute_once", dying)
        with pytest.raises(CrashError):
            shop.write(shop.records(records), 0)
    shop.start()
    shop.write(shop.records(records), 0)
    assert shop.current("id", "name", "level") == debezium.CUSTOMERS
    assert shop.quarantined() == [(0, 5, "unavailable_value"), (9, 0, "undecodable")]
    (counts,) = shop.counts()
    total = sum(counts[name] for name in ("merged", "superseded", "skipped", "quarantined"))
    assert (counts["quarantined"], total) == (2, len(records))


@pytest.mark.thorough("a repeated batch is tested with its rows")
@pytest.mark.slow("a MERGE")
def test_a_repeated_batch_reports_the_merged_changes_again(spark, tmp_path):
    shop = Pipeline(spark, tmp_path, ROWS)
    # The MERGE copies the other rows of the file.
    spark.sql(f"INSERT INTO delta.`{shop.target.table}` (id) SELECT /*+ COALESCE(1) */ id FROM range(3)")
    records = shop.records([change(0, 0, 1, "Ada", 1)])
    counts = CountSubscription()
    for _ in range(2):
        shop.start()
        shop.write(records, 0)
        (found,) = counts.pop(writer_name(shop.target, spark), 0).values()
        assert [count.rows for count in found] == [1]
    counts.close()


@pytest.mark.slow("two attempts of a batch")
def test_a_record_that_is_in_quarantine_stays_there_after_a_crash(spark, tmp_path, monkeypatch):
    shop = Pipeline(spark, tmp_path, ROWS)
    short = "ADD CONSTRAINT short CHECK (length(name) < 4 OR name IS NULL)"
    spark.sql(f"ALTER TABLE delta.`{shop.target.table}` {short}")
    records = [change(0, 0, 1, "Adam", 1), change(0, 1, 2, "Bob", 1), change(0, 2, None, "Cem", 1)]

    def dying(*args, **kwargs):
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(merge, "execute_once", dying)
        with pytest.raises(CrashError):
            shop.write(shop.records(records), 0)
    assert shop.quarantined() == [(0, 0, "refused_by_table"), (0, 2, "no_key")]
    for statement in (
        "DROP CONSTRAINT short",
        "ADD CONSTRAINT long CHECK (length(name) > 3 OR name IS NULL)",
    ):
        spark.sql(f"ALTER TABLE delta.`{shop.target.table}` {statement}")
    shop.start()
    shop.write(shop.records(records), 0)
    assert shop.current("id", "name") == {}
    assert [reason for *_, reason in shop.quarantined()] == ["refused_by_table", "refused_by_table", "no_key"]
    assert shop.counts()[-1]["quarantined"] == 3
    shop.write(shop.records([change(0, 3, 2, "Benno", 2)]), 1)
    assert shop.current("id", "name") == {2: ("Benno",)}


@pytest.mark.slow("two batches")
def test_a_tombstone_deletes_the_row_of_its_key_and_a_value_of_nulls_does_not(spark, tmp_path):
    keys = ROWS[: ROWS.index("changes")]
    shop = Pipeline(spark, tmp_path, keys.replace("id INT, name STRING, at BIGINT, op STRING", "name STRING"))
    shop.write(shop.records([change(0, 0, 1, "Ada"), change(0, 1, 2, "Bob"), change(0, 2, 3)]), 0)
    shop.write(shop.records([change(0, 3, 1), (0, 4, {"id": 2}, {"name": None}), (0, 5, None, None)]), 1)
    assert shop.current("id", "name") == {2: (None,)}
    assert shop.quarantined() == [(0, 5, "no_key")]
    assert [counts["deleted"] for counts in shop.counts()] == [1, 1]


@pytest.mark.slow("two batches, and a purge")
def test_each_hundredth_batch_removes_old_deletions_if_the_table_keeps_them_for_a_time(spark, tmp_path):
    shop = Pipeline(spark, tmp_path, ROWS.replace("{order: [at]", "{retention_days: 0, order: [at]"))
    shop.write(shop.records([change(0, 0, 1, "Ada", 1), change(0, 1, 2, "Bob", 1, "d")]), 99)
    stored = delta.read(spark, shop.target.table)
    assert stored.where("_cdc.deleted").count() == 1
    shop.write(shop.records([change(0, 2, 3, "Cem", 1, "d")]), 100)
    assert [row["id"] for row in delta.read(spark, shop.target.table).collect()] == [1]


def read_by_others(table):
    """Read a table with deletion vectors by another library, as docs/changes.md says."""
    other = DeltaTable(table)
    query = QueryBuilder().register("customers", other)
    found = query.execute("SELECT id, name FROM customers ORDER BY id").read_all()
    assert [found["id"].to_pylist(), found["name"].to_pylist()] == [[1, 3, 4], ["Bob", "Ada", "Ada"]]
    with pytest.raises(DeltaProtocolError):
        other.to_pyarrow_table()


@pytest.mark.slow("three batches, and two purges")
def test_old_values_stay_in_files_until_a_purge_outside_a_batch(spark, tmp_path):
    shop = Pipeline(spark, tmp_path, ROWS.replace("{order: [at]", "{retention_days: 0, order: [at]"))

    def old_values():
        files = delta.read(spark, shop.target.table).inputFiles()
        return spark.read.parquet(*files).where("id IN (1, 2) AND name = 'Ada'").count()

    shop.write(shop.records([change(0, number, number, "Ada", 1) for number in (1, 2, 3, 4)]), 0)
    shop.write(shop.records([change(0, 5, 1, "Bob", 2), change(0, 6, 2, "", 2, "d")]), 1)
    shop.write(shop.records([change(0, 7, 1, "Bob", 2)]), 100)
    assert old_values() == 2
    read_by_others(shop.target.table)
    spark.sql(
        f"ALTER TABLE delta.`{shop.target.table}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"
    )
    assert tl.purge_changes(spark, shop.settings) == 0
    assert old_values() == 0
    assert shop.current("id", "name") == {1: ("Bob",), 3: ("Ada",), 4: ("Ada",)}


@pytest.mark.slow("two batches, and a compaction")
def test_the_history_has_a_batch_once_if_delta_compacts_files_after_its_merge(spark, tmp_path):
    shop = Pipeline(spark, tmp_path, ROWS)
    few_files = "spark.databricks.delta.autoCompact.minNumFiles"
    spark.conf.set(few_files, "2")
    try:
        for number in (0, 1):
            shop.write(shop.records([change(0, number, number, "Ada", 1)]), number)
    finally:
        spark.conf.unset(few_files)
    history = tl.table_history(spark, shop.settings).orderBy("version").collect()
    assert [row["operation"] for row in history] == ["CREATE TABLE", "MERGE", "MERGE", "OPTIMIZE"]
    assert [counts["merged"] for counts in shop.counts()] == [1, 1]
    assert shop.current("id", "name") == {0: ("Ada",), 1: ("Ada",)}


@pytest.mark.thorough("FAILFAST is tested in test_gps and test_json")
def test_a_batch_without_changes_has_a_commit_and_failfast_writes_nothing(spark, tmp_path):
    shop = Pipeline(spark, tmp_path, CUSTOMERS)
    shop.write(shop.records([(0, 0, {"id": 1}, {"op": "m"})]), 0)
    assert [counts["skipped"] for counts in shop.counts()] == [1]
    shop.start(mode="FAILFAST")
    with pytest.raises(DecodeError) as raised:
        shop.write(shop.records([(0, 1, {"id": 1}, {"op": "x"})]), 1)
    assert raised.value.fields["reason"] == "undecodable"
    assert not delta.is_table(spark, shop.target.quarantine)
    assert len(shop.counts()) == 1


@pytest.mark.parametrize(
    ("changes", "field", "found"),
    [
        ("{order: [source], deletes: none}", "parameter", "changes.order"),
        ("{keys: [number], deletes: none}", "parameter", "changes.keys"),
        ("{columns: [number]}", "parameter", "changes.columns"),
        ('{deletes: "op ="}', "reason", "condition"),
        ('{deletes: "number = 1"}', "reason", "condition"),
    ],
)
def test_a_rule_that_does_not_fit_the_rows_is_an_error_at_the_start(spark, tmp_path, changes, field, found):
    keys = ROWS[: ROWS.index("changes")] + f"changes: {changes}"
    with pytest.raises(ConfigError) as raised:
        Pipeline(spark, tmp_path, keys)
    assert raised.value.fields[field] == found


def test_a_table_with_columns_of_other_types_is_refused_unless_they_are_wider(spark, tmp_path):
    shop = Pipeline(spark, tmp_path, WIDENING)
    with pytest.raises(ConfigError) as raised:
        shop.start(value_schema="id INT, name DOUBLE, at INT, op STRING")
    assert raised.value.fields["reason"] == "columns"
    # The order is a part of the rules.
    shop.start(value_schema="id INT, name STRING, at BIGINT, op STRING")


@pytest.mark.thorough("the start is tested above")
@pytest.mark.slow("two MERGEs")
def test_the_columns_of_the_order_may_become_wider(spark, tmp_path):
    shop = Pipeline(spark, tmp_path, WIDENING)
    shop.write(shop.records([change(0, 0, 1, "Ada", 1), change(0, 1, 2, "Bob", 7)]), 0)
    shop.start(value_schema="id INT, name STRING, at BIGINT, op STRING")
    records = [change(0, 2, 1, "Eve", 2**40), change(0, 3, 2, "older", 6), change(0, 4, 3, "Cem", 2**41)]
    shop.write(shop.records([*records, (1, 0, None, {"at": 5, "op": "t"})]), 1)
    assert shop.current("id", "name", "at") == {1: ("Eve", 2**40), 2: ("Bob", 7), 3: ("Cem", 2**41)}
    shop.start()


UNAVAILABLE = "__debezium_unavailable_value"


def customer(offset, number, notes, op="u"):
    """Return a change of a customer whose name is the offset."""
    row = {"id": number, "name": str(offset), "notes": notes}
    return 0, offset, {"id": number}, {"op": op, "before" if op == "d" else "after": row}


@pytest.mark.slow("three MERGEs and a replay")
def test_a_replay_applies_changes_whose_rows_are_known_undoes_none_and_lets_the_others_wait(
    spark, tmp_path, monkeypatch
):
    shop = Pipeline(spark, tmp_path, CUSTOMERS)
    unavailable = [customer(offset, number, UNAVAILABLE) for offset, number in ((2, 1), (3, 2), (9, 3))]
    shop.write(shop.records(unavailable), 0)
    assert [reason for *_, reason in shop.quarantined()] == ["unavailable_value"] * 3
    shop.write(shop.records([customer(1, 1, "long"), customer(4, 2, "n"), customer(5, 3, "x")]), 1)
    claim = replay_claims.claim

    def slower(*args):
        claim(*args)
        shop.write(shop.records([customer(6, 3, None, "d")]), 2)

    monkeypatch.setattr(replay_claims, "claim", slower)
    report = tl.replay_quarantine(spark, shop.settings)
    assert (report.examined, report.replayed, report.waiting) == (3, 2, {"unavailable_value": 1})
    assert shop.current("id", "name", "notes") == {1: ("2", "long"), 2: ("4", "n")}


@pytest.mark.thorough("a crash between the commit of a batch and the correction of its versions")
@pytest.mark.slow("five MERGEs")
def test_a_repeated_batch_corrects_the_versions_that_two_writers_computed(spark, tmp_path, monkeypatch):
    shop = Pipeline(spark, tmp_path, ROWS.replace(", truncates: \"op = 't'\"", ", scd_type: 2"))
    other = shop.records([change(0, 2, 1, "Bob", 20)])
    records = shop.records([change(0, 0, 1, "Ada", 10), change(0, 1, 1, "Eve", 40)])
    execute, correct = merge.execute_once, Changes.correct

    def slower(*args, **given):
        monkeypatch.setattr(merge, "execute_once", execute)
        target, row_changes, values = shop.write.args
        rows, _ = DeclaredDecoder(spark, target, values).rows(other)
        with row_changes.resolved(rows, target.table) as changes:
            changes.merge(writer=None)
        return execute(*args, **given)

    def dying(self, version=None):
        if self.counts.rows == 2:
            raise CrashError
        correct(self, version)

    monkeypatch.setattr(merge, "execute_once", slower)
    with monkeypatch.context() as patched:
        patched.setattr(Changes, "correct", dying)
        with pytest.raises(CrashError):
            shop.write(records, 0)
    shop.start()
    shop.write(records, 0)
    assert history(shop) == [("Ada", 10, 20), ("Bob", 20, 40), ("Eve", 40, None)]
    assert [counts["merged"] for counts in shop.counts()] == [2]


def history(shop):
    view = current_rows(delta.read(shop.spark, shop.target.table)).orderBy("__START_AT")
    return [tuple(row) for row in view.select("name", "__START_AT", "__END_AT").collect()]
