"""What the dashboard reads of a table without Spark is what Spark says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.dashboard.delta_log import read_table

V2 = "'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2'"
#: Forms of a table that do without deletion vectors: its rows are counted exactly.
EXACT = (
    "'delta.columnMapping.mode' = 'name', 'delta.enableTypeWidening' = 'true', "
    "'delta.enableInCommitTimestamps' = 'true', 'delta.enableChangeDataFeed' = 'true'"
)


@pytest.mark.parametrize(
    ("properties", "changes"),
    [
        pytest.param(
            "'delta.checkpointInterval' = '2'",
            ["UPDATE {} SET t = 'y' WHERE n = 1", "OPTIMIZE {}"],
            marks=pytest.mark.thorough("a further form of the log"),
        ),
        ("'delta.enableDeletionVectors' = 'true'", ["DELETE FROM {} WHERE n = 1"]),
        (
            EXACT,
            [
                "ALTER TABLE {} ALTER COLUMN n TYPE BIGINT",
                "MERGE INTO {} t USING (SELECT 1 AS m) s ON t.n = s.m WHEN MATCHED THEN DELETE",
                "ALTER TABLE {} RENAME COLUMN t TO `a b`",
            ],
        ),
        pytest.param(
            V2,
            ["INSERT OVERWRITE {} VALUES (1, 'a')", "RESTORE {} TO VERSION AS OF 2"],
            marks=pytest.mark.thorough("a further form of the log"),
        ),
    ],
)
def test_what_is_told_of_a_table_is_what_spark_describes(spark, tmp_path, properties, changes):
    path = f"file:{tmp_path}/a 100% ü"
    table = f"delta.`{path}`"
    spark.sql(f"CREATE TABLE {table} (n INT, t STRING) USING delta TBLPROPERTIES ({properties})")
    for _ in range(3):
        rows = spark.range(10).selectExpr("CAST(id AS INT) n", "'x' t").coalesce(1)
        rows.write.format("delta").mode("append").save(path)
    for change in changes:
        spark.sql(change.format(table))
    summary = read_table(path)
    detail = spark.sql(f"DESCRIBE DETAIL {table}").collect()[0]
    assert (summary["files"], summary["bytes"]) == (detail.numFiles, detail.sizeInBytes)
    history = spark.sql(f"DESCRIBE HISTORY {table}").collect()
    assert summary["version"] == history[0].version
    assert [(one["version"], one["operation"]) for one in summary["versions"]] == [
        (one.version, one.operation) for one in history
    ]
    # Spark takes the file's time, where the commit's own is not part of the protocol.
    for one, commit in zip(summary["versions"], history, strict=True):
        assert abs(one["at"] - commit.timestamp.timestamp()) < 60
    count = spark.read.format("delta").load(path).count()
    if summary["rows_at_most"]:
        assert summary["rows"] > count
    else:
        assert summary["rows"] == count
    numbers = files_by_version(tmp_path / "a 100% ü")
    assert summary["points"] == {"version": list(range(len(history))), "files": numbers}
    assert numbers[-1] == detail.numFiles

    spark.sql(f"DELETE FROM {table}")
    emptied = read_table(path)
    assert (emptied["files"], emptied["bytes"], emptied["rows"]) == (0, 0, 0)
    assert emptied["points"]["files"] == [*numbers, 0]


def files_by_version(table: Path) -> list[int]:
    """Count them by the files that each commit adds and removes; Spark would read each version anew."""
    there, numbers = set(), []
    for commit in sorted(table.glob("_delta_log/" + "[0-9]" * 20 + ".json")):
        actions = [json.loads(line) for line in commit.read_text("utf-8").splitlines()]
        there -= {action["remove"]["path"] for action in actions if "remove" in action}
        there |= {action["add"]["path"] for action in actions if "add" in action}
        numbers.append(len(there))
    return numbers
