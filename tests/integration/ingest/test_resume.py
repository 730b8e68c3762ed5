"""Starts whose checkpoint, table and history do not agree: each is refused, and resumed as `resume` says."""

import copy
import json
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from delta.tables import DeltaTable

import topiclake as tl
from tests.support.local_rows import local_rows
from tests.support.numbers_topic import Numbers, right
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, IngestError, OffsetsLostError
from topiclake.ingest import paused_topics, rejected_records, resume_table
from topiclake.kafka import client as kafka_client

BAD = b"\1no record"


@pytest.fixture
def numbers(connected, tmp_path):
    return Resumed(connected, tmp_path)


class Resumed(Numbers):
    """A topic with numbers in two partitions, its ingest, and accidents."""

    def __init__(self, spark, folder):
        super().__init__(spark, folder)
        self.topic("a")
        self.schema_id = self.register("a")
        #: The counts of numbers that were sent at once; copies share the topic, and so this list.
        self.sends = []

    @property
    def sent(self):
        return sum(self.sends)

    @property
    def bad(self):
        """How many records are no numbers."""
        return len(self.sends)

    @property
    def table(self):
        return f"{self.folder}/table"

    @property
    def checkpoint(self):
        return self.folder / "checkpoint"

    def more(self, count):
        """Send the next numbers, and one record that is none."""
        self.send("a", *(right(self.schema_id, n) for n in range(self.sent, self.sent + count)), BAD)
        self.sends.append(count)

    def run(self, **given):
        return self.ingested(self.settings(**given))

    def refusal(self, **given):
        with pytest.raises(IngestError) as raised:
            self.run(**given)
        return raised.value.fields["reason"]

    def lose_checkpoint(self):
        shutil.rmtree(self.checkpoint)

    def rows(self):
        """Return how often each number is in the table."""
        return Counter(row["n"] for row in delta.read(self.spark, self.table).select("n").collect())

    def audit(self, **given):
        return tl.audit_ingest(self.spark, self.settings(**given))

    def check(self):
        """Check that each record is in one place, with its value."""
        assert self.rows() == Counter(range(self.sent))
        places = delta.read(self.spark, f"{self.table}_quarantine").select("partition", "offset").collect()
        assert len(places) == len(set(places)) == self.bad


@pytest.fixture(scope="module")
def ingested(embedded, spark, tmp_path_factory):
    """Two batches, each with numbers and one record that is none."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in embedded[1].environment().items():
            environment.setenv(name, value)
        numbers = Resumed(spark, tmp_path_factory.mktemp("resumed"))
        numbers.more(6)
        numbers.more(4)
        numbers.run(max_offsets_per_trigger="7")
    assert len(list((numbers.checkpoint / "commits").glob("[0-9]"))) == 2
    return numbers


@pytest.fixture
def copied(connected, ingested, tmp_path):
    """A copy of them, for accidents; the topic is one for all copies."""
    numbers = copy.copy(ingested)
    numbers.folder = tmp_path / "lake"
    shutil.copytree(ingested.folder, numbers.folder)
    return numbers


def lose_quarantine_of_last_batch(numbers):
    """Leave the tables as a crash does after commit 1 of the last batch."""
    quarantine = DeltaTable.forPath(numbers.spark, f"{numbers.table}_quarantine")
    quarantine.restoreToVersion(quarantine.history(1).collect()[0]["version"] - 1)


def snapshot(folder):
    """Return the names and sizes of all files."""
    return {str(file): file.stat().st_size for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow("two ingests and an audit")
def test_a_checkpoint_that_is_gone_is_refused_and_the_table_says_where_to_continue(copied):
    lose_quarantine_of_last_batch(copied)
    copied.lose_checkpoint()
    copied.more(5)
    assert copied.refusal() == "checkpoint_gone"
    before = snapshot(copied.folder)
    for resume, records in ("table", 6), ("restart", copied.sent + copied.bad):
        plan = tl.plan_ingest(copied.spark, copied.settings(resume=resume))
        assert (plan.is_first_start, plan.records) == (True, records)
    assert snapshot(copied.folder) == before
    assert not copied.checkpoint.exists()
    # Where the configuration begins does not matter.
    copied.run(resume="table", starting_offsets="latest")
    copied.check()
    report = copied.audit()
    assert report.ok, report


@pytest.mark.thorough("a hole between two checkpoints")
def test_two_lives_with_a_hole_between_them_are_made_whole(numbers):
    numbers.more(3)
    numbers.more(3)
    numbers.run(max_offsets_per_trigger="4")
    numbers.lose_checkpoint()
    numbers.more(4)
    numbers.more(3)
    # A life that began after records which nobody has read.
    starts = {numbers.settings().pipeline.topic: {"0": 8, "1": 6}}
    numbers.run(resume="restart", starting_offsets=json.dumps(starts))
    numbers.lose_checkpoint()
    numbers.more(2)
    numbers.run(resume="table")
    numbers.check()
    # A row that somebody has deleted since, of a batch that is finished, does not come back.
    DeltaTable.forPath(numbers.spark, numbers.table).delete("n = 0")
    numbers.lose_checkpoint()
    numbers.run(resume="table")
    assert 0 not in numbers.rows()


@pytest.mark.thorough("where the end is read from the rows")
@pytest.mark.slow("two ingests")
def test_rows_say_where_to_continue_when_no_commit_has_offsets(copied):
    DeltaTable.forPath(copied.spark, copied.table).delete("n = 7")
    clean_history(copied.spark, copied.table)
    copied.lose_checkpoint()
    copied.more(1)
    assert copied.refusal() == "checkpoint_gone"
    copied.run(resume="table")
    copied.check()
    # A copy, and a commit as another version makes it.
    old = delta.read(copied.spark, copied.table)
    rows = local_rows(copied.spark, old.collect(), old.schema)
    shutil.rmtree(copied.table)
    rows.write.format("delta").save(copied.table)
    delta.append_once(rows.limit(0), copied.table, writer="older", batch_id=1, commit={})
    copied.lose_checkpoint()
    copied.more(1)
    assert copied.refusal() == "checkpoint_gone"
    copied.run(resume="table")
    copied.check()


def clean_history(spark, table):
    """Remove the history before now, as Delta does after `delta.logRetentionDuration`."""
    delta.set_properties(spark, table, {"delta.checkpointInterval": "1"})
    log = Path(table, "_delta_log")
    newest = max(int(file.name[:20]) for file in log.glob("*.json"))
    assert list(log.glob(f"{newest:020}.checkpoint*")), sorted(log.iterdir())
    for file in log.glob("*.json"):
        if int(file.name[:20]) < newest:
            file.unlink()
            (log / f".{file.name}.crc").unlink(missing_ok=True)
            (log / f"{file.name[:20]}.crc").unlink(missing_ok=True)


def test_a_table_that_is_gone_or_put_back_is_refused(copied):
    newest = f"{copied.table}_newest"
    shutil.move(copied.table, newest)
    assert copied.refusal() == "table_gone"
    # A copy from before the last batch.
    *_, last = sorted(Path(newest, "_delta_log").glob("*.json"))
    shutil.copytree(newest, copied.table, ignore=shutil.ignore_patterns(f"*{last.stem}.*"))
    assert copied.refusal() == "table_put_back"


@pytest.mark.thorough("another accident of the table")
def test_a_table_that_was_created_again_is_refused_and_may_begin_in_the_middle(copied):
    read = copied.rows()
    columns = delta.read(copied.spark, copied.table).schema
    shutil.rmtree(copied.table)
    DeltaTable.create(copied.spark).location(copied.table).addColumns(columns).execute()
    copied.more(2)
    assert copied.refusal() == "table_replaced"
    copied.run(resume="checkpoint")
    assert copied.rows() == Counter(range(copied.sent)) - read
    copied.more(1)
    copied.run()
    assert copied.rows() == Counter(range(copied.sent)) - read


@pytest.mark.thorough("another accident of the table")
def test_a_restore_is_no_end_of_the_table(copied):
    table = DeltaTable.forPath(copied.spark, copied.table)
    # The last commit is that of the last batch.
    _, before = table.history(2).collect()
    table.restoreToVersion(before["version"])
    assert copied.refusal() == "table_put_back"
    copied.lose_checkpoint()
    copied.run(resume="table")
    copied.check()
    table.restoreToTimestamp((before["timestamp"] + timedelta(milliseconds=1)).isoformat(sep=" "))
    assert copied.refusal() == "table_replaced"


def test_a_checkpoint_that_was_put_back_or_edited_is_refused(copied):
    edited = copied.checkpoint / "offsets" / "1"
    lines = edited.read_text().splitlines()
    topic, ends = next(iter(json.loads(lines[-1]).items()))
    ends = {partition: end - 1 for partition, end in ends.items()}
    edited.write_text("\n".join([*lines[:-1], json.dumps({topic: ends})]))
    edited.with_name(".1.crc").unlink(missing_ok=True)
    assert copied.refusal() == "offsets_changed"
    # A copy from before the last batch.
    edited.unlink()
    (copied.checkpoint / "commits" / "1").unlink()
    (copied.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    assert copied.refusal() == "checkpoint_put_back"
    assert copied.refusal(resume="checkpoint") == "checkpoint_put_back"


@pytest.mark.thorough("two starts of the same resumption")
def test_two_starts_at_once_write_what_is_missing_once(copied, monkeypatch):
    lose_quarantine_of_last_batch(copied)
    DeltaTable.forPath(copied.spark, copied.table).delete("n > 7")
    copied.lose_checkpoint()
    written = resume_table._write

    def twice(spark, settings, content, records, spans):
        # The second start finds what the first one has made of the table, and not yet of the quarantine.
        with monkeypatch.context() as patched:
            patched.setattr(rejected_records, "write_rejected", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                written(spark, settings, content, records, spans)
        written(spark, settings, content, records, spans)
        written(spark, settings, content, records, spans)

    monkeypatch.setattr(resume_table, "_write", twice)
    copied.run(resume="table")
    copied.check()


@pytest.mark.thorough("the other way out")
def test_a_restart_begins_again_and_the_audit_knows_the_rows_from_before(copied):
    read = copied.rows()
    copied.lose_checkpoint()
    copied.more(2)
    copied.run(resume="restart")
    assert copied.rows() == Counter(range(copied.sent)) + read
    report = copied.audit()
    assert report.ok, report
    assert sum(part.in_table for part in report.partitions) == copied.sent
    # A row that is there once too often since is still named.
    rows = delta.read(copied.spark, copied.table)
    rows.where(f"n = {copied.sent - 1}").write.format("delta").mode("append").save(copied.table)
    assert sum(part.doubled for part in copied.audit().partitions) == 1


@pytest.mark.thorough("the other way out")
def test_a_topic_that_was_migrated_goes_on_at_offsets_given_by_hand(copied):
    assert copied.rows() == Counter(range(10))
    copied.lose_checkpoint()
    # On the new cluster the topic has another name, and fewer records.
    new = f"{copied.name}-moved"
    copied.topic("moved")
    schema_id = copied.register("moved")
    copied.send("moved", *(right(schema_id, n) for n in range(6, 13)))
    starts = {new: {"0": 2, "1": 2}}
    copied.run(topic=new, resume="restart", starting_offsets=json.dumps(starts))
    assert copied.rows() == Counter(range(13))
    report = copied.audit(topic=new)
    assert report.ok, report


@pytest.mark.thorough("a topic that is another one")
def test_a_topic_that_ends_before_the_table_is_another_one(copied):
    copied.lose_checkpoint()
    rows = delta.read(copied.spark, copied.table)
    # As if the table had been written from a topic that was longer.
    kept = {"pipeline": "gps", "offsets": {copied.settings().pipeline.topic: {"0": [4, 900]}}}
    delta.append_once(rows.limit(0), copied.table, writer="longer", batch_id=1, commit=kept)
    with pytest.raises(IngestError) as raised:
        copied.run(resume="table")
    assert (raised.value.fields["reason"], raised.value.fields["expected"]) == ("other_topic", 900)


@pytest.mark.thorough("a table without the column")
def test_rows_without_their_place_cannot_be_resumed(numbers):
    numbers.more(6)
    numbers.run(kafka_column="false")
    numbers.lose_checkpoint()
    assert numbers.refusal(kafka_column="false") == "checkpoint_gone"
    with pytest.raises(ConfigError) as raised:
        numbers.run(kafka_column="false", resume="table")
    assert raised.value.fields["reason"] == "no_kafka_column"


@pytest.mark.thorough("a table of three pipelines")
@pytest.mark.slow("five ingests")
def test_pipelines_that_share_a_table_and_a_topic_are_no_accident(numbers):
    """Two read a partition each of one topic, and the third one reads another topic."""
    numbers.more(6)
    numbers.topic("b")
    schema_id = numbers.register("b")
    numbers.send("b", *(right(schema_id, n) for n in range(100, 106)))
    fields = {"kafka_fields": "partition,offset,topic"}
    topic, other = numbers.settings().pipeline.topic, f"{numbers.name}-b"
    first, second, third = (
        fields | {"checkpoint_path": f"{numbers.folder}/checkpoint{number}"} | given
        for number, given in enumerate(
            (
                {"assign": json.dumps({topic: [0]})},
                {"assign": json.dumps({topic: [1]})},
                {"topic": other},
            )
        )
    )
    for given in (first, second, third):
        numbers.run(**given)
    expected = Counter(range(6)) + Counter(range(100, 106))
    assert numbers.rows() == expected
    numbers.more(2)
    for number, given in ((1, second), (2, third)):
        shutil.rmtree(numbers.folder / f"checkpoint{number}")
        assert numbers.refusal(**given) == "checkpoint_gone"
        numbers.run(**given, resume="table")
    assert numbers.rows() == expected + Counter([7])
    assert numbers.audit(**third).ok


@pytest.mark.thorough("the same for several topics")
def test_several_topics_resume_each_from_its_table_and_from_what_is_paused(numbers):
    numbers.more(6)
    numbers.topic("b")
    numbers.send("b", *(right(numbers.schema_id, n) for n in range(20, 24)))
    numbers.run(**numbers.several)
    paused = paused_topics.paused(numbers.spark, f"{numbers.checkpoint}_paused")
    assert list(paused) == [f"{numbers.name}-b"]
    numbers.lose_checkpoint()
    numbers.more(3)
    assert numbers.refusal(**numbers.several) == "checkpoint_gone"
    # Its subject is there now.
    numbers.register("b")
    numbers.send("b", *(right(numbers.schema_id, n) for n in range(24, 26)))
    resumed = numbers.several | {"resume": "table"}
    # The plan does not count the older offsets, which the topic missed while it was paused.
    assert tl.plan_ingest(numbers.spark, numbers.settings(**resumed)).records == 6
    numbers.run(**resumed)
    assert paused_topics.paused(numbers.spark, f"{numbers.checkpoint}_paused") == {}
    tables = {
        name: Counter(
            row["n"]
            for row in delta.read(numbers.spark, f"{numbers.folder}/tables/{numbers.name}-{name}").collect()
        )
        for name in ("a", "b")
    }
    assert tables == {"a": Counter(range(9)), "b": Counter(range(20, 26))}
    report = numbers.audit(**numbers.several)
    assert report.ok, report
    assert sum(part.in_kafka for part in report.partitions) == 17
    # The table of one of them is gone.
    shutil.rmtree(f"{numbers.folder}/tables/{numbers.name}-b")
    assert numbers.refusal(**numbers.several) == "table_gone"


@pytest.mark.thorough("records that Kafka has deleted")
def test_records_that_kafka_deleted_before_they_could_be_verified(numbers):
    numbers.more(7)
    numbers.run()
    numbers.lose_checkpoint()
    topic = numbers.settings().pipeline.topic
    admin = AdminClient(kafka_client.client_settings(numbers.settings().kafka))
    for done in admin.delete_records([TopicPartition(topic, one, 4) for one in (0, 1)]).values():
        done.result(120)
    # All of them are in the tables: nothing is lacking.
    numbers.run(resume="table")
    assert numbers.rows() == Counter(range(7))
    DeltaTable.forPath(numbers.spark, numbers.table).delete("n = 3")
    numbers.lose_checkpoint()
    with pytest.raises(OffsetsLostError) as raised:
        numbers.run(resume="table")
    assert raised.value.fields["topic"] == topic
    numbers.run(resume="table", fail_on_data_loss="false")
    assert numbers.rows() == Counter([0, 1, 2, 4, 5, 6])
