"""Spark as a producer on the embedded broker: what comes twice carries the same id, and only that."""

from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as F

import topiclake as tl
from tests.support.local_rows import local_rows
from topiclake.config.load import load_settings
from topiclake.errors import ConfigError, IngestError, KafkaError, TopicNotFoundError
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.kafka import source as kafka_source
from topiclake.kafka import writer as kafka_writer

CONF = Path(__file__).parents[3] / "conf"
HEADER = kafka_writer.ID_HEADER
OURS = "headers ARRAY<STRUCT<key STRING, value BINARY>>"
#: Before any producer's clock: a stream that goes by Kafka's times would take such a record for late.
LONG_AGO_MS = 1_000_000_000_000


@pytest.fixture
def world(connected, tmp_path):
    """Two topics of its own, `source` and `sink`, and what a test does with them."""
    return World(connected, tmp_path, f"writer-{uuid4().hex[:8]}")


class World:
    def __init__(self, spark, folder, prefix):
        self.spark, self.folder = spark, folder
        self.source, self.sink = f"{prefix}-source", f"{prefix}-sink"
        self.settings = self.of(self.source)
        for topic in (self.source, self.sink):
            kafka_admin.ensure_topic(self.settings.kafka, topic, 2)

    def of(self, topic, **given):
        parameters = {"topic": topic, "table_path": "/t", "checkpoint_path": "/c", "storage": "file:///tmp"}
        return load_settings("gps", parameters | given, conf=CONF)

    def publish(self, *records):
        """Publish keys, values and what else, without any id."""
        producer = Producer(kafka_client.client_settings(self.settings.kafka))
        for key, value, more in records:
            producer.produce(self.source, value, key, **more)
        assert producer.flush(120) == 0

    def stream(self, **given):
        return kafka_source.read_topic(
            self.spark, self.settings.kafka, self.of(self.source, **given).pipeline
        )

    def copy(self, records=None, name="checkpoint", **given):
        """Run the writer from source to sink until it has caught up."""
        records = self.stream().drop("topic") if records is None else records
        query = tl.start_topic_writer(
            records,
            self.settings,
            checkpoint_path=f"{self.folder}/{name}",
            topic=self.sink,
            **given,
        )
        tl.await_caught_up(query, "availableNow")

    def written(self, topic=None):
        """Return a row for each record of the sink: key, value, id, and the other headers."""
        return [row(one) for one in tl.read_batch(self.spark, self.of(topic or self.sink)).collect()]

    def frame(self, rows, schema):
        return local_rows(self.spark, rows, schema)


def row(record):
    headers = [(one["key"], bytes(one["value"])) for one in record["headers"] or []]
    ids = [value.decode() for name, value in headers if name == HEADER]
    others = [one for one in headers if one[0] != HEADER]
    key, value = (None if record[part] is None else bytes(record[part]) for part in ("key", "value"))
    return key, value, ids, others


def ids(rows):
    return [one for _, _, (one,), _ in rows]


def test_a_batch_carries_keys_values_headers_and_an_id_each(world):
    rows = [
        ("a", b"1", [("trace", b"t")]),
        ("a", b"1", [("trace", b"t")]),
        ("b", None, None),
        (None, b"", []),
    ]
    records = world.frame(rows, f"key STRING, value BINARY, {OURS}")
    tl.write_topic(records, world.settings, write_id="monday", topic=world.sink)
    first = world.written()
    trace = [("trace", b"t")]
    assert Counter(map(repr, ((key, value, other) for key, value, _, other in first))) == Counter(
        map(repr, [(b"a", b"1", trace), (b"a", b"1", trace), (b"b", None, []), (None, b"", [])])
    )
    assert len(set(ids(first))) == 4
    assert all(len(one) == 32 for one in ids(first))

    tl.write_topic(records.repartition(5), world.settings, write_id="monday", topic=world.sink)
    again = world.written()
    assert Counter(ids(again)) == Counter(2 * ids(first)), "the same write again has the same ids"
    kept = tl.drop_duplicates(tl.read_batch(world.spark, world.of(world.sink)))
    assert sorted(ids(map(row, kept.collect()))) == sorted(ids(first))

    tl.write_topic(records, world.settings, write_id="tuesday", topic=world.sink)
    assert len(set(ids(world.written()))) == 8


def test_a_column_tells_the_topic(world):
    records = world.frame(
        [(world.source, "1"), (world.sink, "1"), (world.sink, "2")], "topic STRING, value STRING"
    )
    tl.write_topic(records, world.settings, write_id="x")
    assert [value for _, value, _, _ in world.written(world.source)] == [b"1"]
    assert sorted(value for _, value, _, _ in world.written()) == [b"1", b"2"]
    assert len({*ids(world.written()), *ids(world.written(world.source))}) == 3


@pytest.mark.parametrize("id_columns", [[], ["value"]])
def test_the_same_records_in_two_topics_are_two(world, id_columns):
    records = world.frame([("1",), ("2",)], "value STRING")
    for topic in (world.source, world.sink):
        tl.write_topic(records, world.settings, write_id="x", topic=topic, id_columns=id_columns)
    assert len({*ids(world.written()), *ids(world.written(world.source))}) == 4


def test_records_of_one_key_keep_their_order(world):
    rows = [(f"k{number % 3}", str(number)) for number in range(300)]
    tl.write_topic(
        world.frame(rows, "key STRING, value STRING").coalesce(1),
        world.settings,
        write_id="x",
        topic=world.sink,
    )
    found = {}
    for key, value, _, _ in world.written():
        found.setdefault(key, []).append(int(value))
    assert {len(values) for values in found.values()} == {100}
    assert all(values == sorted(values) for values in found.values())


@pytest.mark.parametrize("id_columns", [(), ("partition", "offset")])
def test_a_micro_batch_that_is_produced_again_has_the_same_ids(world, monkeypatch, id_columns):
    """It ends between Kafka's acknowledgement and Spark's commit, and is dealt out differently then."""
    world.publish(*((f"k{number % 3}", f"v{number % 5}", {}) for number in range(20)))
    send = kafka_writer.send

    def dies(*given):
        send(*given)
        raise OSError("killed")

    monkeypatch.setattr(kafka_writer, "send", dies)
    with pytest.raises(IngestError, match="killed"):
        world.copy(id_columns=id_columns)
    monkeypatch.setattr(kafka_writer, "send", send)
    assert len(set(ids(world.written()))) == 20
    world.publish(("k0", "v0", {}))
    world.copy(world.stream(min_partitions="7").drop("topic").repartition(3), id_columns=id_columns)

    counted = Counter(ids(world.written()))
    assert sorted(counted.values()) == [1] + 20 * [2], "what came once is the record that came later"
    sink = world.of(world.sink)
    kept = tl.drop_duplicates(tl.read_batch(world.spark, sink)).collect()
    assert sorted(ids(map(row, kept))) == sorted(counted)
    assert Counter(value for _, value, _, _ in map(row, kept)) == Counter(
        {b"v0": 5, b"v1": 4, b"v2": 4, b"v3": 4, b"v4": 4}
    )


@pytest.mark.thorough("a further start of the same writer")
def test_a_new_checkpoint_gives_new_ids_unless_columns_tell(world):
    world.publish(("k", "v", {}))
    for name in ("one", "two"):
        world.copy(name=name)
    assert len(set(ids(world.written()))) == 2
    for name in ("three", "four"):
        world.copy(name=name, id_columns=("partition", "offset"))
    assert len(set(ids(world.written()))) == 3


def test_a_stream_drops_duplicates_and_nothing_else(world):
    """Equal records without an id stay, and one whose time is long ago is not late; in two micro-batches."""
    plain = ("k", "plain", {})
    marked = [("k", one, {"headers": [(HEADER, one.encode()), ("x", b"y")]}) for one in ("a", "b", "a")]
    world.publish(plain, plain, *marked)

    def drained():
        kept = tl.drop_duplicates(world.stream(), within="1 hour")
        assert kept.columns == world.stream().columns
        found = []
        query = (
            kept.writeStream.option("checkpointLocation", f"{world.folder}/dedup")
            .foreachBatch(lambda batch, _: found.extend(bytes(one["value"]) for one in batch.collect()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(found)

    assert drained() == [b"a", b"b", b"plain", b"plain"]
    late = ("k", "c", {"headers": [(HEADER, b"c")], "timestamp": LONG_AGO_MS})
    world.publish(plain, late, *marked)
    assert drained() == [b"c", b"plain"]
    batch = tl.drop_duplicates(tl.read_batch(world.spark, world.settings))
    assert sorted(bytes(one["value"]) for one in batch.collect()) == [b"a", b"b", b"c"] + 3 * [b"plain"]


def test_what_cannot_be_written_is_named_before_anything_is_sent(world):
    good = world.frame([("k", "v", world.sink)], "key STRING, value STRING, topic STRING")

    def refused(records, kind=ConfigError, **given):
        with pytest.raises(kind) as raised:
            tl.write_topic(records, world.settings, write_id="x", **given)
        return str(raised.value)

    assert "column value is missing; Kafka takes string or binary" in refused(good.drop("value"))
    assert "column key is int; Kafka takes string or binary" in refused(good.withColumn("key", F.lit(1)))
    assert "column headers is string" in refused(good.withColumn("headers", F.lit("x")))
    assert "have a topic as an argument and a column topic" in refused(good, topic=world.sink)
    assert "have no topic as an argument nor a column topic" in refused(good.drop("topic"))
    assert "id_columns names nothing, which the rows don't have" in refused(good, id_columns=["nothing"])
    bare = good.drop("topic")
    assert "writer-none is not on the broker" in refused(bare, TopicNotFoundError, topic="writer-none")
    too_long = bare.withColumn("value", F.expr("repeat('x', 2000000)"))
    assert f"topic {world.sink} does not accept all records" in refused(
        too_long, KafkaError, topic=world.sink
    )
    with pytest.raises(ConfigError, match="within='1 hour'"):
        tl.drop_duplicates(world.stream())
    with pytest.raises(ConfigError, match="without the column headers"):
        tl.drop_duplicates(world.stream().drop("headers"))
    assert world.written() == []
