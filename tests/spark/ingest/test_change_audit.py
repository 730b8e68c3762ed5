"""The audit of `apply: upsert`, without Kafka: each fault in the table is found."""

import pytest
from pyspark.sql import functions as F

from tests.spark.ingest.change_pipeline import CUSTOMERS, ROWS, Pipeline, change, recorded
from tests.support.local_rows import local_rows
from topiclake.changes.tables import current_rows
from topiclake.delta import table as delta
from topiclake.errors import IngestError
from topiclake.ingest import start_state
from topiclake.ingest.audit import changes
from topiclake.ingest.audit.counts import RECORD, WAITING, AuditRules, count_offsets
from topiclake.ingest.start_check import StartCheck
from topiclake.sources.streams import decode_looked_up
from topiclake.streaming import resumptions

FAULTS = {"missing", "doubled", "unknown"}


def customers(spark, tmp_path):
    """Return a pipeline that wrote one batch, and the records of it."""
    shop = Pipeline(spark, tmp_path, CUSTOMERS)
    records = [*recorded("shopjp.customers"), (9, 0, {"id": 1}, {"op": "m"}), (9, 1, {"id": 1}, b"no json")]
    shop.write(shop.records(records), 0)
    return shop, records


def counted(shop, records):
    """Return the sums of the counts of the audit, without zeros."""
    spark, target = shop.spark, shop.target
    kafka = shop.records(records)
    quarantined = local_rows(spark, [], "partition INT, offset BIGINT")
    if delta.is_table(spark, target.quarantine):
        quarantined = delta.read(spark, target.quarantine).select("partition", "offset")
    decoded = decode_looked_up(kafka.join(quarantined, ["partition", "offset"], "left_anti"), shop.settings)
    table = delta.read(spark, target.table)
    locations = (
        kafka.select("partition", "offset", F.lit(RECORD).alias("location"))
        .unionAll(quarantined.withColumn("location", F.lit(WAITING)))
        .unionAll(changes.row_locations(spark, target.table))
        .unionAll(changes.change_locations(decoded, table, target.changes))
        .withColumn("aged", F.lit(False))
    )
    sums = {}
    for counts in count_offsets(locations, AuditRules()).values():
        for name, number in counts.items():
            sums[name] = sums.get(name, 0) + number
    return {name: number for name, number in sums.items() if number}


def faults(shop, records):
    """Return the counts of the audit that should be zero, and are not."""
    return {name: number for name, number in counted(shop, records).items() if name in FAULTS}


@pytest.mark.slow("a MERGE, and two audits")
def test_the_audit_accounts_for_each_record_of_debezium_and_finds_each_fault(spark, tmp_path):
    shop, records = customers(spark, tmp_path)
    assert counted(shop, records) == {
        "in_kafka": len(records),
        "in_table": 4,
        "deleted": 2,
        "superseded": len(records) - 4 - 1 - 2,
        "skipped": 1,
        "quarantined": 2,
    }
    table = f"delta.`{shop.target.table}`"
    # One of each kind, in the rows of different keys.
    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE id = 4")
    assert faults(shop, records) == {"missing": 2, "doubled": 1}


@pytest.mark.thorough("a further fault")
@pytest.mark.slow("a MERGE, and an audit")
def test_the_audit_finds_a_row_that_names_no_record(spark, tmp_path):
    shop, records = customers(spark, tmp_path)
    spark.sql(f"UPDATE delta.`{shop.target.table}` SET _cdc.offset = -1 WHERE id = 4")
    assert faults(shop, records) == {"missing": 1, "unknown": 1}


@pytest.mark.thorough("a restart is tested in test_changes")
def test_the_audit_after_a_restart_ignores_only_quarantined_records_from_before(spark, tmp_path):
    shop = Pipeline(spark, tmp_path, ROWS)
    (tmp_path / "c" / "offsets").mkdir()
    (tmp_path / "c" / "offsets" / "0").write_text('v1\n{}\n{"shop": {"0": 2}}')
    shop.write(shop.records([change(0, 0, 1, "Ada", None), (0, 1, {"id": 1}, b"no json")]), 0)

    def check(**given):
        shop.start(checkpoint_path="/mnt/lake/other", **given)
        state = start_state.read(spark, shop.settings, shop.target)
        StartCheck(spark, shop.settings, shop.target, state, None).run()

    with pytest.raises(IngestError) as raised:
        check()
    assert raised.value.fields["reason"] == "checkpoint_gone"
    # Changes have no such mode.
    assert "resume=table" not in raised.value.remedy
    check(resume="restart")
    noted = resumptions.read_rows(spark, shop.target.checkpoint).orderBy("offset").collect()
    assert noted == [("shop", True, 0, 0), ("shop", True, 0, 1)]


@pytest.mark.slow("two MERGEs, and two audits")
def test_the_audit_finds_each_change_in_a_table_of_all_versions(spark, tmp_path):
    versions = ROWS.replace(", truncates: \"op = 't'\"", ", scd_type: 2")
    shop = Pipeline(spark, tmp_path, versions)
    records = [
        change(0, 0, 1, "Ada", 1),
        change(0, 1, 1, "Ada", 5),
        change(1, 0, 2, "Cem", 2),
        change(0, 2, 1, None, 9, "d"),
        change(0, 3, 1, "late", 3),
        (0, 4, None, {"at": 1}),
    ]
    for number, batch in enumerate((records[:4], records[4:])):
        shop.write(shop.records(batch), number)
    rows = current_rows(delta.read(spark, shop.target.table)).orderBy("id", "__START_AT").collect()
    assert [(row["id"], row["name"], row["__START_AT"], row["__END_AT"]) for row in rows] == [
        (1, "Ada", 1, 3),
        (1, "late", 3, 5),
        (1, "Ada", 5, 9),
        (2, "Cem", 2, None),
    ]
    assert counted(shop, records) == {"in_kafka": 6, "in_table": 5, "deleted": 1, "quarantined": 1}
    table = f"delta.`{shop.target.table}`"
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE name = 'late'")
    spark.sql(f"DELETE FROM {table} WHERE __START_AT = 9")
    assert faults(shop, records) == {"missing": 1, "doubled": 1}


@pytest.mark.thorough("further reasons of a missing row")
@pytest.mark.slow("three MERGEs, and three audits")
def test_the_audit_knows_truncates_and_purged_deletions(spark, tmp_path):
    shop = Pipeline(spark, tmp_path, ROWS)
    records = [
        change(0, 0, 1, "Ada", 1),
        change(0, 1, 2, "Bob", 5),
        change(1, 0, 3, "Cem", 2),
        change(0, 2, 5, None, 0, "d"),
        (1, 1, None, {"at": 2, "op": "t"}),
        change(1, 2, 4, "late", 1),
        change(0, 3, 2, None, 6, "d"),
        # The truncate supersedes it in its batch, so its key keeps the older row of a deletion.
        change(1, 3, 5, "again", 1),
    ]
    shop.write(shop.records(records[:4]), 0)
    assert counted(shop, records[:5])["missing"] == 1
    shop.write(shop.records(records[4:]), 1)
    right = counted(shop, records)
    assert not FAULTS & right.keys()
    assert (right["in_kafka"], right["deleted"], right["superseded"]) == (8, 3, 5)
    spark.sql(f"DELETE FROM delta.`{shop.target.table}` WHERE _cdc.deleted")
    assert faults(shop, records) == {}
