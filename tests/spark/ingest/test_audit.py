"""The audit against a real broker and real Delta tables: right ingests; each fault, planted and named."""

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.support.recreated_topic import recreate
from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.errors import IngestError, OffsetsLostError, StorageError
from topiclake.ingest.audit import audit
from topiclake.ingest.audit.report import MAX_FINDINGS, AuditReport
from topiclake.ingest.quarantine import replay_claims
from topiclake.ingest.start import start_ingest
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame
from topiclake.streaming.progress import await_caught_up

SCHEMA = json.dumps({"type": "record", "name": "E", "fields": [{"name": "id", "type": "int"}]})
#: Partition 0 has more than three blocks of 64 offsets, partition 1 only bad records, partition 2 none.
RECORDS = 200


@dataclass(frozen=True)
class Lake:
    """A topic, its ingest, and the folder with its table, its quarantine and its checkpoint."""

    spark: SparkSession
    folder: Path
    settings: Settings

    @property
    def topic(self) -> str:
        return self.settings.pipeline.topic

    @property
    def table(self) -> str:
        return str(self.folder / "events")

    @property
    def quarantine(self) -> str:
        return str(self.folder / "events_quarantine")

    def with_pipeline(self, **changes: object) -> "Lake":
        pipeline = self.settings.pipeline.model_copy(update=changes)
        return Lake(self.spark, self.folder, self.settings.model_copy(update={"pipeline": pipeline}))

    def good(self, count: int) -> list[bytes | None]:
        registry = SchemaRegistry.from_settings(self.settings.schema_registry)
        schema_id = registry.register(f"{self.topic}-value", SCHEMA)
        # The Avro form of a small int is one byte, twice the number.
        return [frame(schema_id, bytes([number % 60 * 2])) for number in range(count)]

    def produce(self, values: list[bytes | None], partition: int = 0, key: bytes | None = None) -> None:
        producer = Producer(kafka_client.client_settings(self.settings.kafka))
        for value in values:
            producer.produce(self.topic, value=value, key=key, partition=partition)
        assert producer.flush(120) == 0

    def ingest(self) -> None:
        await_caught_up(start_ingest(self.spark, self.settings), "availableNow")

    def audit(self) -> AuditReport:
        return audit.audit_ingest(self.spark, self.settings)

    def append(self, *queries: str) -> None:
        """Append what queries on `{events}` or `{bad}` give to the table that has such columns."""
        tables = {"events": f"delta.`{self.table}`", "bad": f"delta.`{self.quarantine}`"}
        rows = self.spark.sql(" UNION ALL ".join(queries).format(**tables))
        path = self.quarantine if "reason" in rows.columns else self.table
        rows.write.format("delta").mode("append").option("mergeSchema", "true").save(path)

    def delete(self, path: str, where: str) -> None:
        DeltaTable.forPath(self.spark, path).delete(where)


def faults(report: AuditReport) -> dict[tuple[int | None, str], int]:
    """Return the counts of what is wrong, of which the findings must name the same kinds."""
    counts = {(one.partition, kind): count for one in report.partitions for kind, count in one.faults.items()}
    if sum(counts.values()) <= MAX_FINDINGS:
        assert {(one.partition, one.kind) for one in report.findings} == set(counts)
    assert report.ok == (not counts)
    return counts


def named(report: AuditReport) -> list[tuple[int | None, int | None, str]]:
    return [(one.partition, one.offset, one.kind) for one in report.findings]


def row_of(partition: int | str, offset: int | str) -> str:
    """A query for a row of the table that says it came from there, or "NULL"."""
    return f"SELECT 7 AS id, struct(INT({partition}) AS partition, BIGINT({offset}) AS offset) AS _kafka"


def new_lake(
    spark: SparkSession, addresses: Any, folder: Path, topic: str, partitions: int = 1, **config: str
) -> Lake:
    conf, paths = folder / "conf", "table_path: /mnt/lake/events, checkpoint_path: /mnt/lake/checkpoint"
    conf.mkdir(parents=True)
    (conf / "local.yaml").write_text("")
    (conf / "base.yaml").write_text(
        f"""
        kafka: {{bootstrap_servers: "{addresses.kafka_bootstrap_servers}"}}
        schema_registry: {{url: "{addresses.schema_registry_url}"}}
        storage: {{source: "{folder.as_uri()}", mount_point: /mnt/lake}}
        pipelines:
          events: {{topic: {topic}, view: events, {paths}}}
        """
    )
    lake = Lake(spark, folder, load_settings("events", {}, conf=conf))
    create_topic(lake, partitions, **config)
    lake.good(1)  # registers the schema
    return lake


def create_topic(lake: Lake, partitions: int, **config: str) -> None:
    admin = AdminClient(kafka_client.client_settings(lake.settings.kafka))
    admin.create_topics([NewTopic(lake.topic, partitions, config=config)])[lake.topic].result(120)


@pytest.fixture
def make(spark, embedded, tmp_path, request):
    """Make a lake with a topic of its own."""
    return lambda partitions=1, **config: new_lake(
        spark,
        embedded[1],
        tmp_path / "lake",
        request.node.name.replace("[", "-").rstrip("]"),
        partitions,
        **config,
    )


@pytest.fixture(scope="module")
def ingested(spark, embedded, tmp_path_factory) -> Lake:
    """Two batches: 200 records and a tombstone, then a record, bad ones, and none in the third partition."""
    lake = new_lake(spark, embedded[1], tmp_path_factory.mktemp("audit") / "lake", "audited", 3)
    lake.produce([*lake.good(RECORDS - 2), None])
    lake.ingest()
    lake.produce(lake.good(1))
    lake.produce([b"x", b"", None], partition=1)
    lake.ingest()
    return lake


@pytest.fixture
def lake(ingested, tmp_path) -> Lake:
    """A copy of that lake, to plant faults into."""
    shutil.copytree(ingested.folder, tmp_path / "copy")
    storage = ingested.settings.storage.model_copy(update={"source": (tmp_path / "copy").as_uri()})
    return Lake(ingested.spark, tmp_path / "copy", ingested.settings.model_copy(update={"storage": storage}))


# Right


def test_a_batch_that_was_not_committed_is_in_flight(lake) -> None:
    (lake.folder / "checkpoint" / "commits" / "1").unlink()
    # Whatever the table holds of it, twice or not.
    lake.append("SELECT * FROM {events} WHERE _kafka.offset = 199")
    report = lake.audit()
    assert report.ok
    assert [(one.committed, one.in_flight) for one in report.partitions] == [(199, 1), (0, 3), (0, 0)]


@pytest.mark.parametrize(
    ("consumer", "in_kafka", "aborted"),
    [
        ({}, 20, "aborted"),
        pytest.param(
            {"isolation.level": "read_uncommitted"},
            30,
            "doubled",
            marks=pytest.mark.thorough("the other isolation level"),
        ),
    ],
    ids=["committed", "uncommitted"],
)
def test_records_of_aborted_transactions_are_left_out_and_rows_of_them_named(
    make, consumer, in_kafka, aborted
) -> None:
    lake = make()
    producer = Producer(
        kafka_client.client_settings(lake.settings.kafka) | {"transactional.id": f"{lake.topic}"}
    )
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for value in lake.good(10):
            producer.produce(lake.topic, value=value)
        producer.flush(120)  # an abort would drop what has not been sent
        end(30)
    client = lake.settings.kafka.model_copy(update={"consumer": consumer})
    lake = Lake(lake.spark, lake.folder, lake.settings.model_copy(update={"kafka": client}))
    lake.ingest()
    # Offset 10 is the end of the first transaction: no record was ever there. 11 is the first aborted one.
    lake.append(row_of(0, 10), row_of(0, 11))
    report = lake.audit()
    (found,) = report.partitions
    assert (found.committed, found.in_kafka) == (33, in_kafka)
    assert named(report) == [(0, 10, "unknown"), (0, 11, aborted)]


@pytest.mark.thorough("real waiting for the broker's compaction")
def test_records_that_kafka_compacted_away_are_right(make) -> None:
    fast = {"segment.ms": "100", "max.compaction.lag.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    lake = make(**{"cleanup.policy": "compact"} | fast)
    lake.produce(lake.good(20), key=b"same")
    lake.ingest()
    await_compaction(lake)
    (found,) = lake.audit().partitions
    assert found.in_kafka < 20
    assert (found.in_table, found.compacted, found.faults) == (20, 20 - found.in_kafka, {})
    lake.delete(lake.table, "_kafka.offset = 0 OR _kafka.offset = 19")
    (found,) = lake.audit().partitions
    assert found.missing == (1 if found.in_kafka else 0)


def await_compaction(lake: Lake) -> None:
    """Produce now and then, which closes segments, until the broker has compacted the first one."""
    group = {"group.id": lake.topic, "auto.offset.reset": "earliest"}
    until = time.monotonic() + 90
    while time.monotonic() < until:
        lake.produce(lake.good(1), key=b"same")
        consumer = Consumer(kafka_client.client_settings(lake.settings.kafka) | group)
        consumer.assign([TopicPartition(lake.topic, 0, 0)])
        record = consumer.poll(10)
        consumer.close()
        if record is not None and record.offset() > 0:
            return
        time.sleep(0.5)
    raise AssertionError("the broker does not compact")


@pytest.mark.thorough("a further content of table and quarantine")
def test_what_kafka_deleted_is_aged_out_and_cannot_be_checked(make) -> None:
    lake = make()
    lake.produce(lake.good(150))
    lake.ingest()
    delete_before(lake, 100)
    lake.delete(lake.table, "_kafka.offset IN (7, 99)")
    report = lake.audit()
    (found,) = report.partitions
    assert (found.aged_out, found.in_kafka, found.in_table, found.faults) == (100, 50, 148, {})
    assert "100 offsets cannot be checked: Kafka no longer holds them" in str(report)
    # Two rows of one offset are wrong whatever Kafka holds.
    lake.delete(lake.table, "_kafka.offset = 100")
    lake.append("SELECT * FROM {events} WHERE _kafka.offset = 98")
    assert named(lake.audit()) == [(0, 98, "doubled"), (0, 100, "missing")]
    delete_before(lake, 150)
    lake.produce(lake.good(5))
    delete_before(lake, 153)
    (found,) = lake.audit().partitions
    assert (found.aged_out, found.in_kafka, found.missing) == (150, 0, 0)


def delete_before(lake: Lake, offset: int) -> None:
    admin = AdminClient(kafka_client.client_settings(lake.settings.kafka))
    place = TopicPartition(lake.topic, 0, offset)
    admin.delete_records([place])[place].result(120)


# Each fault, planted


def test_each_fault_is_counted_and_named(lake) -> None:
    plant_each_fault(lake)
    report = lake.audit()
    assert faults(report) == {
        (0, "missing"): 4,
        (0, "doubled"): 3,  # two rows too many of offset 5, one of offset 128
        (0, "in_both"): 1,
        (0, "unknown"): 1,
        (1, "doubled"): 1,
        (9, "unknown"): 1,
        (None, "unknown"): 2,
    }
    assert named(report) == [
        (None, None, "unknown"),
        (0, None, "unknown"),
        (0, 0, "missing"),
        (0, 5, "doubled"),
        (0, 63, "missing"),
        (0, 64, "missing"),
        (0, 70, "in_both"),
        (0, 127, "missing"),
        (0, 128, "doubled"),
        (1, 0, "doubled"),
        (9, 65, "unknown"),
    ]
    assert str(report).startswith(
        "✗ topic audited, partition 0: 4 missing\n✗ topic audited, partition 0: 3 doubled\n"
    )


def plant_each_fault(lake: Lake) -> None:
    # Both ends of two blocks of 64 offsets.
    lake.delete(lake.table, "_kafka.offset IN (0, 63, 64, 127)")
    again = "SELECT id, _kafka FROM {events} WHERE _kafka.offset"
    nowhere = [row_of(9, 65), row_of(0, "NULL"), row_of("NULL", "NULL"), row_of("NULL", "NULL")]
    lake.append(f"{again} IN (5, 128)", f"{again} = 5", *nowhere)
    lake.append(
        "SELECT * EXCEPT (offset), 70L AS offset FROM {bad} WHERE partition = 0",
        "SELECT * EXCEPT (offset), offset FROM {bad} WHERE partition = 1 AND offset = 0",
    )


@pytest.mark.thorough("a further way to be wrong of the same count")
def test_a_quarantine_that_is_gone_is_missed(lake) -> None:
    shutil.rmtree(lake.quarantine)
    assert faults(lake.audit()) == {(0, "missing"): 1, (1, "missing"): 3}


@pytest.mark.thorough("a further content of table and quarantine")
def test_several_faults_are_all_counted_and_at_most_a_hundred_are_listed(lake) -> None:
    lake.delete(lake.table, "_kafka.offset >= 20 AND _kafka.offset < 180")
    lake.append("SELECT * FROM {events} WHERE _kafka.offset < 3")
    lake.delete(lake.quarantine, "partition = 1")
    report = lake.audit()
    assert [one.faults for one in report.partitions] == [{"missing": 160, "doubled": 3}, {"missing": 3}, {}]
    assert [(one.offset, one.kind) for one in report.findings] == [
        *((offset, "doubled") for offset in range(3)),
        *((offset, "missing") for offset in range(20, 117)),
    ]


# Replay, skipped tombstones, several topics


def mark(lake: Lake, offset: int, *, ended: bool) -> None:
    rows = lake.spark.read.format("delta").load(lake.quarantine)
    row = (F.col("partition") == 1) & (F.col("offset") == offset)
    replay_claims.claim(lake.spark, lake.quarantine, rows.where(row), f"claim of {offset}")
    if ended:
        replay_claims.mark(lake.spark, lake.quarantine, f"claim of {offset}")


def land(lake: Lake, offset: int) -> None:
    lake.append(row_of(1, offset))


@pytest.mark.thorough("a further content of table and quarantine")
def test_a_replayed_record_is_right_in_the_table_and_a_claimed_one_in_either(lake) -> None:
    mark(lake, 0, ended=True)
    mark(lake, 1, ended=False)
    assert named(lake.audit()) == [(1, 0, "missing")]
    land(lake, 0)
    land(lake, 1)
    report = lake.audit()
    assert faults(report) == {}
    assert (report.partitions[1].quarantined, report.partitions[1].in_table) == (1, 2)
    land(lake, 0)
    land(lake, 2)
    assert named(lake.audit()) == [(1, 0, "doubled"), (1, 2, "in_both")]


@pytest.mark.thorough("a further content of table and quarantine")
def test_tombstones_may_be_nowhere_only_when_they_are_skipped(lake) -> None:
    lake.delete(lake.quarantine, "reason = 'tombstone'")
    assert faults(lake.audit()) == {(0, "missing"): 1, (1, "missing"): 1}
    skipping = lake.with_pipeline(tombstones="skip")
    report = skipping.audit()
    assert (faults(report), [one.skipped for one in report.partitions]) == ({}, [1, 1, 0])
    lake.delete(lake.quarantine, "partition = 1 AND offset = 0")
    assert faults(skipping.audit()) == {(1, "missing"): 1}


@pytest.mark.thorough("a further content of table and quarantine")
def test_topics_that_share_a_table_are_kept_apart(lake) -> None:
    rows = lake.spark.read.format("delta").load(lake.table)
    struct = "named_struct('topic', '{}', 'partition', _kafka.partition, 'offset', _kafka.offset) AS _kafka"
    shared = rows.selectExpr("id", struct.format("audited")).union(
        rows.selectExpr("id", struct.format("other"))
    )
    shared.write.format("delta").save(str(lake.folder / "shared"))
    shutil.copytree(lake.quarantine, lake.folder / "shared_quarantine")
    shared_lake = lake.with_pipeline(table_path="/mnt/lake/shared")
    lake.delete(str(lake.folder / "shared"), "_kafka.topic = 'audited' AND _kafka.offset = 3")
    bad = lake.spark.read.format("delta").load(lake.quarantine)
    other = bad.withColumn("topic", F.lit("other"))
    other.write.format("delta").mode("append").save(str(lake.folder / "shared_quarantine"))
    assert named(shared_lake.audit()) == [(0, 3, "missing")]


@pytest.mark.thorough("a further content of table and quarantine")
def test_each_of_several_topics_is_audited_and_a_paused_one_waits(make) -> None:
    lake = make()
    one, other = lake.topic, f"{lake.topic}-other"
    second = lake.with_pipeline(topic=other)
    create_topic(second, 1)
    lake.produce(lake.good(3))
    second.produce(lake.good(2))  # its subject is registered later: until then it is paused
    both = lake.with_pipeline(topic=f"{one},{other}", table_path="/mnt/lake/{topic}")
    both.ingest()
    report = both.audit()
    counts = [(part.topic, part.in_kafka, part.in_table, part.paused) for part in report.partitions]
    assert counts == [(one, 3, 3, 0), (other, 2, 0, 2)]
    assert report.ok
    assert "· 2 records wait until their topic resumes" in str(report)

    second.produce(second.good(1))
    both.ingest()
    lake.delete(str(lake.folder / one), "_kafka.offset = 1")
    report = both.audit()
    counts = [(part.topic, part.in_kafka, part.in_table, part.paused) for part in report.partitions]
    assert counts == [(one, 3, 2, 0), (other, 3, 3, 0)]
    assert [(part.topic, part.offset, part.kind) for part in report.findings] == [(one, 1, "missing")]


# What cannot be audited


def test_a_table_without_the_kafka_column_says_what_to_change(lake) -> None:
    # The quarantine table has none.
    without = lake.with_pipeline(table_path="/mnt/lake/events_quarantine")
    with pytest.raises(IngestError, match="; try: set kafka_column: true") as raised:
        without.audit()
    assert raised.value.fields["reason"] == "no_kafka_column"


def test_no_checkpoint_and_no_table_name_what_to_do(lake) -> None:
    with pytest.raises(IngestError, match="; try: run an ingest with this") as raised:
        lake.with_pipeline(checkpoint_path="/mnt/lake/nowhere").audit()
    assert raised.value.fields["checkpoint"].endswith("/nowhere")
    assert raised.value.fields["reason"] == "missing"
    with pytest.raises(StorageError, match="; try: ") as raised:
        lake.with_pipeline(table_path="/mnt/lake/nowhere").audit()
    assert raised.value.fields["table"].endswith("/nowhere")
    assert raised.value.fields["reason"] == "missing"


def test_the_checkpoint_of_another_topic_is_named(lake) -> None:
    with pytest.raises(IngestError, match="; try: ") as raised:
        lake.with_pipeline(topic="other").audit()
    assert (raised.value.fields["topic"], raised.value.fields["topics"]) == ("other", ("audited",))


def test_a_checkpoint_that_lost_a_file_is_never_taken_for_an_empty_one(lake) -> None:
    (lake.folder / "checkpoint" / "offsets" / "1").unlink()
    with pytest.raises(IngestError) as raised:
        lake.audit()
    assert (raised.value.fields["batch_id"], raised.value.fields["file"]) == (1, "offsets/1")
    assert raised.value.fields["reason"] == "damaged"


@pytest.mark.thorough("lost offsets are tested in test_kafka_source")
def test_what_kafka_lost_is_never_compared(make, monkeypatch) -> None:
    lake = make()
    lake.produce(lake.good(10))
    lake.ingest()
    before = audit.topic_offsets(lake.settings.kafka, lake.topic)
    delete_before(lake, 5)
    with monkeypatch.context() as during_the_audit:
        during_the_audit.setattr(audit, "topic_offsets", lambda *_: before)
        with pytest.raises(OffsetsLostError, match=r"while they were audited; try: run the audit again"):
            lake.audit()

    recreate(lake.settings.kafka, lake.topic, 1)
    lake.produce(lake.good(4))
    with pytest.raises(OffsetsLostError) as raised:
        lake.audit()
    fields = {"topic": lake.topic, "partition": 0, "offset": 4, "committed": 10}
    assert raised.value.fields == fields
