"""`apply_changes` of a stream of files."""

import json

import pytest

import topiclake as tl
from tests.spark.changes.target import Target
from tests.support.lake_settings import lake_settings
from tests.support.local_rows import local_rows
from topiclake.delta import table as delta
from topiclake.errors import ConfigError
from topiclake.sinks.changes import ChangeBatches
from topiclake.streaming.sink import SinkBatch

COLUMNS = "id INT, name STRING, op STRING, at BIGINT"
RULES = {
    "path": "/mnt/lake/people",
    "keys": ["id"],
    "sequence_by": "at",
    "apply_as_deletes": "op = 'd'",
    "except_column_list": ["op"],
    "checkpoint_path": "/mnt/lake/checkpoints/people",
}


@pytest.fixture
def settings(tmp_path):
    return lake_settings(tmp_path, "shop", trigger="availableNow")


@pytest.mark.thorough("the docstrings of apply_changes, changes_view and purge_changes run such a query")
@pytest.mark.slow("two runs of a query")
def test_a_table_follows_a_stream_over_two_runs(spark, settings, tmp_path):
    (tmp_path / "in").mkdir()
    stream = spark.readStream.schema(COLUMNS).json(f"file://{tmp_path}/in")
    for number, changes in enumerate(
        (
            [(1, "Ada", "c", 1), (2, "Bob", "c", 1), (1, "Eve", "u", 3), (None, "?", "c", 4)],
            [(1, "Ann", "u", 2), (2, None, "d", 2), (3, "Cem", "c", 5)],
        )
    ):
        lines = [json.dumps(dict(zip(("id", "name", "op", "at"), change, strict=True))) for change in changes]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines))
        tl.await_caught_up(tl.apply_changes(stream, settings, **RULES), "availableNow")
    tl.changes_view(spark, settings, path="/mnt/lake/people", name="people")
    rows = spark.sql("SELECT * FROM people ORDER BY id").collect()
    assert [row.asDict() for row in rows] == [
        {"id": 1, "name": "Eve", "at": 3},
        {"id": 3, "name": "Cem", "at": 5},
    ]
    rejected = spark.read.format("delta").load(f"file://{tmp_path}/people_quarantine").collect()
    assert [(row["reason"], row["offset"]) for row in rejected] == [("no_key", None)]
    assert tl.purge_changes(spark, settings, path="/mnt/lake/people") == 0
    assert tl.purge_changes(spark, settings, path="/mnt/lake/people", retention_days=0) == 1


def test_what_is_no_rule_is_refused(spark, settings, tmp_path):
    (tmp_path / "in").mkdir()
    stream = spark.readStream.schema(COLUMNS).json(f"file://{tmp_path}/in")
    for wrong, field in (
        ({"quarantine_path": "/mnt/lake/people"}, "quarantine_path"),
        ({"keys": []}, "keys"),
        ({"sequence_by": None}, "sequence_by"),
        ({"retention_days": -1}, "retention_days"),
    ):
        with pytest.raises(ConfigError) as raised:
            tl.apply_changes(stream, settings, **(RULES | wrong))
        assert raised.value.fields.get("parameter") == field
    with pytest.raises(ConfigError) as raised:
        tl.apply_changes(stream, settings, **RULES, stored_as_scd_type=2, retention_days=1)
    assert raised.value.fields["reason"] == "scd_type"


def test_a_purge_needs_a_table_of_changes_and_a_time(spark, settings, tmp_path):
    delta.append_once(local_rows(spark, [(1,)], "id INT"), f"{tmp_path}/t", writer="w", batch_id=0, commit={})
    with pytest.raises(ConfigError) as raised:
        tl.purge_changes(spark, settings, retention_days=-1)
    assert raised.value.fields["parameter"] == "retention_days"
    with pytest.raises(ConfigError) as raised:
        tl.purge_changes(spark, settings)
    assert raised.value.fields["reason"] == "no_changes"


@pytest.mark.slow("a MERGE and a purge")
def test_each_hundredth_batch_of_a_stream_removes_old_deletions_if_they_are_kept_for_a_time(spark, tmp_path):
    target = Target(
        spark, tmp_path, COLUMNS, keys=("id",), sequence_by=("at",), apply_as_deletes="op = 'd'"
    ).ensure()
    rows = local_rows(spark, [(1, "Ada", "c", 1), (2, "Bob", "d", 1)], COLUMNS)
    batch = SinkBatch(query_id="q", number=100, checkpoint=f"{tmp_path}/c")
    ChangeBatches(target.target, retention_days=0).write(rows, batch)
    assert [row["id"] for row in target.stored().collect()] == [1]
