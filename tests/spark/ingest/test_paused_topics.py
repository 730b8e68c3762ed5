"""The table of paused ranges, after many batches of a paused topic."""

from datetime import datetime, timezone
from functools import partial

from topiclake.delta import table as delta
from topiclake.ingest import paused_topics
from topiclake.threads import side_by_side

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


def test_topics_are_noted_and_marked_at_the_same_time(spark, tmp_path):
    ledger, now = str(tmp_path / "paused"), datetime.now(timezone.utc)

    def note(topic, batch_id):
        row = (topic, batch_id, 0, batch_id * 10, batch_id * 10 + 9, "no schema", now, None, None)
        paused_topics.note(spark, ledger, [row], writer=f"query/{topic}/paused", batch_id=batch_id)

    def resume(topic):
        missed = paused_topics.paused(spark, ledger)[topic]
        number, _ = paused_topics.next_range(spark, ledger, topic, missed)
        paused_topics.mark_resumed(spark, ledger, topic, number)

    for topic in ("a", "b", "c"):
        note(topic, 0)
    calls = [partial(resume, "a"), partial(resume, "b"), partial(note, "d", 0), partial(note, "c", 1)]
    side_by_side(spark, calls)
    waiting = paused_topics.paused(spark, ledger)
    assert {topic: [row["batch_id"] for row in rows] for topic, rows in waiting.items()} == {
        "c": [0, 1],
        "d": [0],
    }
