"""What Spark reads of the embedded broker: each start, each end, each limit; and what is told of losses."""

import logging
import re
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import topiclake as tl
from tests.support.recreated_topic import recreate
from tests.support.waiting import wait_until
from topiclake.config.load import load_settings
from topiclake.delta import table as delta
from topiclake.errors import (
    ConfigError,
    OffsetsLostError,
    StorageError,
    SubjectNotFoundError,
    TopicNotFoundError,
)
from topiclake.ingest import start as ingest
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.kafka import source as kafka_source
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame
from topiclake.streaming import checkpoint, lost_offsets, open_transactions, queries

CONF = Path(__file__).parents[3] / "conf"
ID = '{"type": "record", "name": "E", "fields": [{"name": "id", "type": "int"}]}'
#: The records' times, in milliseconds: 2026-01-01T00:00:00Z and seconds after it.
NEW_YEAR_MS = 1767225600000


@pytest.fixture
def world(connected, tmp_path):
    """A topic of its own with two partitions, and what a test does with it."""
    return World(connected, tmp_path, f"source-{uuid4().hex[:8]}")


class World:
    def __init__(self, spark, folder, topic):
        self.spark, self.folder, self.topic = spark, folder, topic
        self.kafka = self.settings().kafka
        self.admin = AdminClient(kafka_client.client_settings(self.kafka))
        kafka_admin.ensure_topic(self.kafka, topic, 2)
        self.registry = SchemaRegistry.from_settings(self.settings().schema_registry)
        self.schema_id = self.registry.register(f"{topic}-value", ID)

    def settings(self, **given):
        parameters = {
            "topic": self.topic,
            "table_path": f"{self.folder}/table",
            "checkpoint_path": f"{self.folder}/checkpoint",
            "storage": self.folder.as_uri(),
        }
        if {"assign", "topic_pattern"} & set(given):
            del parameters["topic"]
        if "topic_pattern" in given:
            parameters["table_path"] += "/{topic}"
        settings = load_settings("gps", parameters | given, conf=CONF)
        return settings.model_copy(
            update={"pipeline": settings.pipeline.model_copy(update={"table_properties": {}})}
        )

    def publish(self, *ids, partition=0, topic=None):
        """Publish records whose time is as many seconds after New Year as their id says."""
        producer = Producer(kafka_client.client_settings(self.kafka))
        for one in ids:
            value = frame(self.schema_id, bytes([2 * one]))  # Avro's zigzag
            producer.produce(
                topic or self.topic, value, partition=partition, timestamp=NEW_YEAR_MS + 1000 * one
            )
        assert producer.flush(120) == 0

    def delete_before(self, offset, partition=0):
        (done,) = self.admin.delete_records([TopicPartition(self.topic, partition, offset)]).values()
        assert done.result(120).low_watermark == offset

    def recreate(self):
        """Delete the topic and create it again, empty."""
        recreate(self.kafka, self.topic, 2)

    def batch(self, **given):
        """Return the ids and partitions that a batch read gives."""
        return ids_of(tl.read_batch(self.spark, self.settings(**given)))

    def stream(self, **given):
        """Ingest what is there; return the ids in the table."""
        settings = self.settings(**given)
        query = tl.start_ingest(self.spark, settings)
        self.query = query
        tl.await_caught_up(query, settings.pipeline.trigger)
        return self.rows()

    def start(self, **given):
        """Start the stream without a table: it only writes down what each micro-batch holds."""
        settings = self.settings(**given)
        records = kafka_source.read_topic(self.spark, self.kafka, settings.pipeline)
        stream = records.writeStream.option("checkpointLocation", settings.pipeline.checkpoint_path)
        self.batches = []
        stream = stream.foreachBatch(lambda batch, _: self.batches.append(ids_of(batch)))
        return queries.triggered(stream, settings.pipeline.trigger).start()

    def drain(self, **given):
        """Return what is there for the stream, each micro-batch by itself."""
        self.start(**given).awaitTermination()
        return [batch for batch in self.batches if batch]

    def checked_drain(self, **given):
        """Drain it after the look for losses that an ingest begins with."""
        settings = self.settings(**given)
        path = settings.pipeline.checkpoint_path
        position = checkpoint.position(self.spark, path)
        ids = lost_offsets.topic_ids(self.spark, path)
        losses, new_ids = lost_offsets.check_lost_offsets(settings, path, position, ids)
        lost_offsets.note_losses(self.spark, settings.name, path, losses)
        lost_offsets.save_topic_ids(self.spark, new_ids, path)
        return self.drain(**given)

    def rows(self):
        return sorted(row["id"] for row in delta.read(self.spark, f"{self.folder}/table").collect())

    def lost(self, **given):
        found = tl.lost_offsets(self.spark, self.settings(**given))
        columns = ("partition", "first", "after", "records", "why")
        return [tuple(row[name] for name in columns) for row in found.collect()]


def ids_of(records):
    return sorted((row["partition"], row["value"][-1] // 2) for row in records.collect())


def at(second):
    return f"2026-01-01T00:00:{second:02}Z"


# From where to where


def test_a_batch_reads_from_each_start_to_each_end(world):
    """Partition 0 holds the seconds 1 to 4, partition 1 the seconds 1 and 2."""
    world.publish(1, 2, 3, 4)
    world.publish(1, 2, partition=1)
    topic = world.topic
    assert world.batch() == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2)]
    offsets = {
        "starting_offsets": f'{{"{topic}": {{"0": 1, "1": -2}}}}',
        "ending_offsets": f'{{"{topic}": {{"0": 3, "1": -1}}}}',
    }
    assert world.batch(**offsets) == [(0, 2), (0, 3), (1, 1), (1, 2)]
    # Nothing in partition 1 is as new as the third second: it has none, and ends at its end.
    assert world.batch(starting_offsets=at(3)) == [(0, 3), (0, 4)]
    assert world.batch(ending_offsets=at(3)) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    each = {"starting_offsets": f'{{"{topic}": {{"0": "{at(4)}", "1": "{at(2)}"}}}}'}
    assert world.batch(**each) == [(0, 4), (1, 2)]
    assert world.batch(assign=f'{{"{topic}": [1]}}') == [(1, 1), (1, 2)]
    assert world.batch(topic_pattern=f"{topic[:-1]}.", ending_offsets=at(2)) == [(0, 1), (1, 1)]
    with pytest.raises(ConfigError, match="starts at latest holds nothing"):
        world.batch(starting_offsets="latest")
    with pytest.raises(Exception, match="No offset matched"):
        world.batch(starting_offsets=at(3), starting_offsets_by_timestamp_strategy="error")


def test_a_stream_starts_at_a_time_and_reads_only_assigned_partitions(world):
    world.publish(1, 2, 3)
    world.publish(1, 9, partition=1)
    given = {"assign": f'{{"{world.topic}": [0]}}', "starting_offsets": at(2)}
    assert world.drain(**given) == [[(0, 2), (0, 3)]]
    world.publish(4)
    world.publish(10, partition=1)
    assert world.drain(**given) == [[(0, 4)]]


def test_a_stream_waits_in_a_partition_that_holds_nothing_so_new(world):
    world.publish(1)
    world.publish(5, partition=1)
    assert world.drain(starting_offsets=at(3)) == [[(1, 5)]]
    world.publish(6)
    assert world.drain(starting_offsets=at(3)) == [[(0, 6)]]


def test_a_stream_starts_at_its_end_or_at_the_offset_of_each_partition(world):
    world.publish(1, 2, 3)
    assert world.drain(starting_offsets="latest") == []
    world.publish(4, partition=1)
    assert world.drain(starting_offsets="latest") == [[(1, 4)]]
    each = {"starting_offsets": f'{{"{world.topic}": {{"0": 2, "1": -2}}}}'}
    assert world.drain(**each, checkpoint_path=f"{world.folder}/other") == [[(0, 3), (1, 4)]]


def test_a_micro_batch_takes_no_more_than_it_may(world):
    world.publish(*range(10))
    assert [len(batch) for batch in world.drain(max_offsets_per_trigger="4")] == [4, 4, 2]


def test_partitions_that_are_not_there_are_named_before_anything_is_read(world):
    fields = {"topic": world.topic, "allowed": (0, 1)}
    with pytest.raises(ConfigError) as raised:
        world.stream(assign=f'{{"{world.topic}": [2]}}')
    assert raised.value.fields == {"parameter": "assign", "partitions": (2,), **fields}
    with pytest.raises(ConfigError) as raised:
        world.stream(starting_offsets=f'{{"{world.topic}": {{"0": 1}}}}')
    assert raised.value.fields == {"parameter": "starting_offsets", "partitions": (0,), **fields}


@pytest.mark.thorough("real waiting")
def test_a_topic_that_comes_later_is_waited_for(world):
    later = f"{world.topic}.later"
    world.registry.register(f"{later}-value", ID)
    with pytest.raises(TopicNotFoundError) as raised:
        world.stream(topic=later)
    assert "wait_for_topic=true" in raised.value.remedy
    waits = {"topic": later, "wait_for_topic": "true"}
    assert world.stream(**waits, starting_offsets="latest") == []
    kafka_admin.ensure_topic(world.kafka, later, 2)
    world.publish(1, 2, topic=later)
    assert world.stream(**waits) == [1, 2]


# What is lost


def test_deleted_records_are_told_at_the_start_and_gone_past_when_that_is_allowed(world, caplog):
    world.publish(0, 1, 2)
    world.stream()
    assert world.lost() == []
    world.publish(3, 4, 5, 6)
    world.delete_before(5)
    with pytest.raises(OffsetsLostError) as raised:
        world.stream()
    assert raised.value.fields["ranges"] == ((world.topic, 0, 3, 5, "aged_out"),)
    assert "(2 records)" in raised.value.cause
    assert "fail_on_data_loss=false" in raised.value.remedy
    assert world.lost() == [(0, 3, 5, 2, "aged_out")]
    with caplog.at_level(logging.WARNING, "topiclake.streaming.lost_offsets"):
        assert world.stream(fail_on_data_loss="false") == [0, 1, 2, 5, 6]
    assert "partition 0: offsets 3 to before 5 (2 records)" in caplog.text
    assert world.lost() == [(0, 3, 5, 2, "aged_out")], "the checkpoint has gone on, and the list stays"


def test_records_that_are_deleted_while_a_query_runs_are_told(world, monkeypatch):
    """They are deleted when the batch's offsets are fixed, and before it is read."""
    world.publish(0, 1, 2)
    write = ingest.registered_batch.write

    def deletes_first(*given):
        world.delete_before(2)
        write(*given)

    monkeypatch.setattr(ingest.registered_batch, "write", deletes_first)
    with pytest.raises(
        OffsetsLostError, match=r"partition 0: offsets 0 to before 2 \(2 records\): Kafka deleted"
    ):
        world.stream()


@pytest.mark.thorough("a further loss of records")
def test_a_running_query_goes_past_deleted_records_and_lists_them(world, monkeypatch):
    """They are deleted when the batch's offsets are fixed, and before it is read."""
    world.publish(0)
    assert world.stream(fail_on_data_loss="false") == [0]
    world.publish(1, 2, 3)
    read = ingest.lost_offsets.write_checked

    def deletes_first(*given):
        world.delete_before(3)
        read(*given)

    monkeypatch.setattr(ingest.lost_offsets, "write_checked", deletes_first)
    assert world.stream(fail_on_data_loss="false") == [0, 3]
    assert world.lost(fail_on_data_loss="false") == [(0, 1, 3, 2, "aged_out")]


def test_a_transaction_that_does_not_end_is_named_and_its_records_wait(world, monkeypatch, caplog):
    monkeypatch.setattr(open_transactions, "EVERY_SECONDS", 1)
    monkeypatch.setattr(open_transactions, "STALLED_SECONDS", 1)
    producer = Producer(kafka_client.client_settings(world.kafka) | {"transactional.id": world.topic})
    producer.init_transactions(30)
    world.publish(0)
    producer.begin_transaction()
    producer.produce(world.topic, frame(world.schema_id, bytes([2])), partition=0)
    assert producer.flush(120) == 0
    world.publish(2)
    world.publish(3, partition=1)
    query = tl.start_ingest(world.spark, world.settings(trigger="1 second"))
    try:
        wait_until(lambda: "open for" in caplog.text)
        wait_until(lambda: world.rows() == [0, 3])
        producer.abort_transaction(30)
        wait_until(lambda: world.rows() == [0, 2, 3])
    finally:
        query.stop()
    (named,) = [record.getMessage() for record in caplog.records if "open for" in record.message]
    assert named.startswith(
        f"query gps: a transaction of Kafka that began at offset 1 of topic {world.topic}, partition 0, "
    )


def test_a_topic_that_was_created_again_and_is_shorter_is_told(world):
    world.publish(0, 1, 2)
    world.checked_drain()
    world.recreate()
    world.publish(7)
    with pytest.raises(
        OffsetsLostError, match=r"partition 0: offsets 0 to before 1 \(1 record\).*created again"
    ):
        world.checked_drain()
    assert world.checked_drain(fail_on_data_loss="false") == [], "Spark goes on at the end of the new topic"
    world.publish(8)
    assert world.checked_drain() == [[(0, 8)]]
    assert world.lost() == [(0, 0, 1, 1, "recreated")]


@pytest.mark.thorough("a further loss of records")
def test_a_topic_that_was_created_again_and_is_longer_is_told(world):
    """Offsets alone don't tell it, nor does Spark: it goes on in the middle of the new topic."""
    world.publish(0, 1)
    world.checked_drain()
    world.recreate()
    world.publish(5, 6, 7)
    with pytest.raises(
        OffsetsLostError, match=r"partition 0: offsets 0 to before 2 \(2 records\).*created again"
    ):
        world.checked_drain()
    assert world.checked_drain(fail_on_data_loss="false") == [[(0, 7)]]
    assert world.lost() == [(0, 0, 2, 2, "recreated")]
    assert world.checked_drain() == []


def test_a_batch_read_names_what_is_gone_of_its_range(world):
    world.publish(0, 1, 2)
    world.delete_before(2)
    given = {"starting_offsets": f'{{"{world.topic}": {{"0": 1, "1": 0}}}}'}
    with pytest.raises(OffsetsLostError, match=r"partition 0: offsets 1 to before 2 \(1 record\)"):
        world.batch(**given)
    assert world.batch(**given, fail_on_data_loss="false") == [(0, 2)]


@pytest.mark.thorough("the wait until Spark forgets a fetch")
def test_the_records_of_a_batch_read_do_not_stay_in_memory(world):
    world.publish(*[1] * 5000)
    kept = world.spark._jvm.org.apache.kafka.clients.consumer.ConsumerRecord(world.topic, 0, 0, None, None)
    before = records_in_memory(world.spark)
    assert before >= 1, kept
    tl.read_batch(world.spark, world.settings()).write.format("noop").mode("overwrite").save()
    # Spark's default is five minutes.
    wait_until(lambda: records_in_memory(world.spark) < before + 5000, 60)


def records_in_memory(spark):
    """Return the number of Kafka's records that the session's JVM holds after a collection."""
    jvm = spark._jvm
    jcmd = f"{jvm.java.lang.System.getProperty('java.home')}/bin/jcmd"
    process = str(jvm.java.lang.ProcessHandle.current().pid())
    histogram = subprocess.run(
        [jcmd, process, "GC.class_histogram"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"(\d+) +\d+ +org\.apache\.kafka\.clients\.consumer\.ConsumerRecord\s", histogram)
    return int(found[1]) if found else 0


# What a start writes first


@pytest.mark.parametrize(
    "given", [{}, {"value_format": "json", "value_schema": "id INT"}], ids=["avro", "json"]
)
def test_a_checkpoint_that_cannot_be_written_is_refused_before_a_table_is_made(world, given):
    (kept := world.folder / "checkpoint" / "topiclake").parent.mkdir()
    kept.write_text("no folder")
    with pytest.raises(StorageError, match=r"/checkpoint cannot be used: .*topiclake"):
        tl.start_ingest(world.spark, world.settings(**given))
    assert not (world.folder / "table").exists()
    kept.unlink()
    tl.start_ingest(world.spark, world.settings(**given)).stop()
    assert [row["topic"] for row in world.spark.read.json(f"{kept}/topics").collect()] == [world.topic]
    assert delta.is_table(world.spark, f"{world.folder}/table")


def test_nothing_is_written_for_a_topic_without_a_subject(world):
    other = f"{world.topic}-other"
    kafka_admin.ensure_topic(world.kafka, other, 1)
    with pytest.raises(SubjectNotFoundError):
        tl.start_ingest(world.spark, world.settings(topic=other))
    assert list(world.folder.iterdir()) == []


@pytest.mark.thorough("a further moment of a start")
def test_a_start_that_fails_at_its_table_keeps_no_id_of_a_topic_that_was_made_anew(world):
    world.publish(1, 2)
    world.stream()
    world.recreate()
    world.publish(3)
    (world.folder / "files").mkdir()
    (world.folder / "files" / "a").write_text("no table")
    with pytest.raises(StorageError, match="holds files, but no Delta table"):
        world.stream(table_path=f"{world.folder}/files", fail_on_data_loss="false", resume="checkpoint")
    assert len(list((world.folder / "checkpoint" / "topiclake" / "topics").glob("*.json"))) == 1
    # What came since is lost as well: the query begins at its offset.
    world.publish(4, 5)
    assert world.stream(fail_on_data_loss="false") == [1, 2, 5]
    assert world.lost(fail_on_data_loss="false") == [(0, 0, 2, 2, "recreated")]
