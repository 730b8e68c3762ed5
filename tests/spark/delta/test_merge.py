"""The plan of a MERGE."""

import pytest

from tests.support.local_rows import local_rows
from topiclake.delta import merge
from workbench.dashboard.delta_log import read_table

SORTED_JOINS = "spark.sql.join.preferSortMergeJoin"


def executions(spark):
    """Return the last thousand executions of the session, oldest first: Spark keeps no more."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return spark._jsparkSession.sharedState().statusStore().executionsList()


@pytest.mark.parametrize(
    ("given", "join"), [(None, "ShuffledHashJoin FullOuter"), ("true", "SortMergeJoin FullOuter")]
)
def test_a_merge_sorts_no_row_of_the_table_unless_the_user_wants_it(spark, tmp_path, given, join):
    path = str(tmp_path / "table")
    spark.range(10_000).selectExpr("id", "'old' AS v").write.format("delta").save(path)
    changed = local_rows(spark, [(5, "new"), (10_000, "new")], "id BIGINT, v STRING")
    before = executions(spark).last().executionId()
    if given is not None:
        spark.conf.set(SORTED_JOINS, given)
    try:
        merge.merge_once(changed, path, ["id"], writer="w", batch_id=0)
        assert spark.conf.get(SORTED_JOINS, None) == given
    finally:
        spark.conf.unset(SORTED_JOINS)
    found = executions(spark)
    later = (found.apply(number) for number in range(found.size()))
    plans = [each.physicalPlanDescription() for each in later if each.executionId() > before]
    assert [join in plan for plan in plans].count(True) == 1
    assert spark.read.format("delta").load(path).where("v = 'new'").count() == 2


def test_the_dashboard_counts_the_rows_that_a_merge_has_changed(spark, tmp_path):
    path = str(tmp_path / "table")
    spark.range(0, 100, 1, 1).selectExpr("id", "'old' AS v").write.format("delta").save(path)
    changed = local_rows(spark, [(5, "new"), (100, "new")], "id BIGINT, v STRING")
    merge.merge_once(changed, path, ["id"], writer="w", batch_id=0)
    (commit,) = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()
    assert commit["operationMetrics"]["numOutputRows"] == "101"
    newest, _ = read_table(path)["versions"]
    assert (newest["operation"], newest["rows"]) == ("MERGE", 2)
