"""What the dashboard reads of a table without Spark is what Spark says of it."""

from __future__ import annotations

import pytest

from workbench.dashboard.delta_log import read_table

V2 = "'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2'"


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
            "'delta.columnMapping.mode' = 'name'",
            ["ALTER TABLE {} RENAME COLUMN t TO `a b`", "DELETE FROM {}"],
        ),
        ("'delta.enableTypeWidening' = 'true'", ["ALTER TABLE {} ALTER COLUMN n TYPE BIGINT"]),
        pytest.param(
            V2,
            ["INSERT OVERWRITE {} VALUES (1, 'a')", "RESTORE {} TO VERSION AS OF 2"],
            marks=pytest.mark.thorough("a further form of the log"),
        ),
        (
            "'delta.enableInCommitTimestamps' = 'true', 'delta.enableChangeDataFeed' = 'true'",
            ["MERGE INTO {} t USING (SELECT 1 AS m) s ON t.n = s.m WHEN MATCHED THEN DELETE"],
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
    told = read_table(path)
    detail = spark.sql(f"DESCRIBE DETAIL {table}").collect()[0]
    assert (told["files"], told["bytes"]) == (detail.numFiles, detail.sizeInBytes)
    history = spark.sql(f"DESCRIBE HISTORY {table}").collect()
    assert told["version"] == history[0].version
    assert [(one["version"], one["operation"]) for one in told["versions"]] == [
        (one.version, one.operation) for one in history
    ]
    # Spark takes the file's time, where the commit's own is not part of the protocol.
    for one, commit in zip(told["versions"], history, strict=True):
        assert abs(one["at"] - commit.timestamp.timestamp()) < 60
    count = spark.read.format("delta").load(path).count()
    if told["rows_at_most"]:
        assert told["rows"] > count
    else:
        assert told["rows"] == count
    versions = [spark.read.format("delta").option("versionAsOf", one) for one in told["points"]["version"]]
    assert told["points"]["files"] == [len(one.load(path).inputFiles()) for one in versions]
    assert len(versions) == len(history)
