"""The table of paused ranges, after many batches of a paused topic."""

from datetime import datetime, timezone

from topiclake.delta import table as delta
from topiclake.ingest import paused_topics

#: The number of files from which on Delta compacts them; its default is 50.
MIN_FILES = "spark.databricks.delta.autoCompact.minNumFiles"


def test_many_batches_of_a_paused_topic_have_few_files(spark, tmp_path):
    ledger, now = str(tmp_path / "paused"), datetime.now(timezone.utc)

    def note(batch_id):
        rows = [("a", batch_id, 0, batch_id * 10, batch_id * 10 + 9, "no schema", now, None, None)]
        paused_topics.note(spark, ledger, rows, writer="query/a/paused", batch_id=batch_id)

    spark.conf.set(MIN_FILES, "4")
    try:
        for batch_id in range(7):
            note(batch_id)
        note(6)
    finally:
        spark.conf.unset(MIN_FILES)
    assert len(delta.read(spark, ledger).inputFiles()) < 7
    ranges = paused_topics.paused(spark, ledger)["a"]
    assert [(row["batch_id"], row["first"], row["last"]) for row in ranges] == [
        (batch_id, batch_id * 10, batch_id * 10 + 9) for batch_id in range(7)
    ]
