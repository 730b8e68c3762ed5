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


def test_a_long_pause_has_few_rows_with_the_same_offsets(spark, tmp_path, monkeypatch):
    ledger, now = str(tmp_path / "paused"), datetime.now(timezone.utc)
    monkeypatch.setattr(paused_topics, "SURPLUS_ROWS", 4)
    # Two batches of two partitions with ten offsets each.
    monkeypatch.setattr(paused_topics, "MAX_OFFSETS", 40)

    def note(topic, batch_id):
        rows = [
            (
                topic,
                batch_id,
                partition,
                batch_id * 10,
                batch_id * 10 + 9,
                f"reason {batch_id}",
                now,
                None,
                None,
            )
            for partition in (0, 1)
        ]
        paused_topics.note(spark, ledger, rows, writer=f"query/{topic}/paused", batch_id=batch_id)

    def combine(before):
        paused_topics.combine(spark, ledger, paused_topics.paused(spark, ledger), before)
        return {
            topic: [
                (row["batch_id"], row["partition"], row["first"], row["last"], row["why"]) for row in rows
            ]
            for topic, rows in paused_topics.paused(spark, ledger).items()
        }

    for batch_id in range(2):
        note("a", batch_id)
        note("b", batch_id)
    assert len(combine(2)["a"]) == 4, "two of them would remain, which is no large difference"
    for batch_id in range(2, 6):
        note("a", batch_id)
    before = combine(5)
    assert before["a"] == [
        (1, 0, 0, 19, "reason 1"),
        (1, 1, 0, 19, "reason 1"),
        (3, 0, 20, 39, "reason 3"),
        (3, 1, 20, 39, "reason 3"),
        (4, 0, 40, 49, "reason 4"),
        (4, 1, 40, 49, "reason 4"),
        (5, 0, 50, 59, "reason 5"),
        (5, 1, 50, 59, "reason 5"),
    ]
    assert len(before["b"]) == 4
    note("a", 5)
    assert combine(6) == before, "the repeated batch has noted its ranges before"

    missed = paused_topics.paused(spark, ledger)["a"]
    assert paused_topics.next_range(spark, ledger, "a", missed)[0] == 1
    for batch_id in range(6, 12):
        note("a", batch_id)
    assert [row[:4] for row in combine(12)["a"] if row[1] == 0] == [
        (1, 0, 0, 19),
        (3, 0, 20, 39),
        (5, 0, 40, 59),
        (7, 0, 60, 79),
        (9, 0, 80, 99),
        (11, 0, 100, 119),
    ]
    fixed = [row for row in paused_topics.paused(spark, ledger)["a"] if row["resumed_as"] is not None]
    assert [(row["batch_id"], row["resumed_as"]) for row in fixed] == [(1, 1), (1, 1)]
