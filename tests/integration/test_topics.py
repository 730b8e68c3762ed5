"""Several topics in one query, on the embedded broker and registry, into real Delta tables."""

import io
import json
from pathlib import Path
from uuid import uuid4

import fastavro
import pytest
from confluent_kafka import Producer

from tests.integration.fault_proxy import FaultProxy
from topiclake import delta, ingest, kafka, progress, topics
from topiclake.config import load_settings
from topiclake.errors import ConfigError, SchemaRegistryError, TopicNotFoundError
from topiclake.schema_registry import SchemaRegistry
from topiclake.wire_format import frame

CONF = Path(__file__).parents[2] / "conf"
V1 = json.dumps({"type": "record", "name": "E", "fields": [{"name": "id", "type": "int"}]})
OTHER = json.dumps({"type": "record", "name": "O", "fields": [{"name": "city", "type": "string"}]})


class Folder:
    """Stand in for dbutils: paths are folders of the test already."""

    def __init__(self):
        self.fs = self

    def mounts(self):
        return []


@pytest.fixture
def world(embedded, spark, tmp_path, monkeypatch):
    """Topics with a prefix of their own, a configuration over them, and what a test does with them."""
    _, addresses = embedded
    for name, value in addresses.environment().items():
        monkeypatch.setenv(name, value)
    return World(spark, tmp_path, f"several-{uuid4().hex[:8]}")


class World:
    def __init__(self, spark, folder, prefix):
        self.spark, self.folder, self.prefix = spark, folder, prefix
        self.parameters = {"topic": f"{prefix}-a,{prefix}-b"}
        self.registry = SchemaRegistry.from_settings(self.settings().schema_registry)

    def settings(self, **more):
        given = {
            "env": "local",
            "table_path": f"{self.folder}/tables/{{topic}}",
            "checkpoint_path": f"{self.folder}/checkpoint",
            "storage": self.folder.as_uri(),
        }
        settings = load_settings("gps", given | self.parameters | more, conf=CONF)
        return settings.model_copy(
            update={"pipeline": settings.pipeline.model_copy(update={"table_properties": {}})}
        )

    def topic(self, name):
        kafka.ensure_topic(self.settings().kafka, f"{self.prefix}-{name}", 2)

    def register(self, name, schema=V1):
        return self.registry.register(f"{self.prefix}-{name}-value", schema)

    def publish(self, name, schema_id, values, schema=V1):
        producer = Producer(kafka.client_settings(self.settings().kafka))
        for number, value in enumerate(values):
            whole = frame(schema_id, encoded(schema, value))
            producer.produce(f"{self.prefix}-{name}", value=whole, partition=number % 2)
        producer.flush()

    def run(self, **more):
        query = ingest.start_ingest(self.spark, self.settings(**more), Folder())
        progress.await_caught_up(query, "availableNow")

    def rows(self, name, column="id"):
        table = delta.read(self.spark, f"{self.folder}/tables/{self.prefix}-{name}")
        return sorted(row[0] for row in table.select(column).collect())

    def paused(self):
        found = topics.paused(self.spark, f"{self.folder}/checkpoint_paused")
        return {topic.removeprefix(f"{self.prefix}-"): ranges for topic, ranges in found.items()}


def encoded(schema, value):
    payload = io.BytesIO()
    fastavro.schemaless_writer(payload, fastavro.parse_schema(json.loads(schema)), value)
    return payload.getvalue()


def ids(*numbers):
    return [{"id": number} for number in numbers]


def test_each_topic_has_a_table_of_its_own(world):
    for name, schema in (("a", V1), ("b", OTHER)):
        world.topic(name)
        world.register(name, schema)
    world.publish("a", world.register("a"), ids(1, 2, 3))
    world.publish("b", world.register("b", OTHER), [{"city": "Niš"}], OTHER)

    world.run()
    world.run()

    assert world.rows("a") == [1, 2, 3]
    assert world.rows("b", "city") == ["Niš"]
    assert world.paused() == {}


def test_a_new_topic_that_matches_the_pattern_gets_a_table(world):
    world.parameters = {"topic": "unused", "topic_pattern": f"{world.prefix}-.*"}
    world.topic("a")
    world.publish("a", world.register("a"), ids(1))
    world.run()
    world.topic("new.one")
    world.publish("new.one", world.register("new.one"), ids(7, 8))

    world.run()

    assert world.rows("a") == [1]
    assert world.rows("new.one") == [7, 8]


def test_a_topic_without_a_schema_is_paused_and_resumed_with_all_its_records(world):
    for name in ("a", "b"):
        world.topic(name)
    of_a = world.register("a")
    world.publish("a", of_a, ids(1))
    world.publish("b", of_a, ids(10, 11, 12))
    world.run()
    world.publish("a", of_a, ids(2))
    world.publish("b", of_a, ids(13))
    world.run()

    assert world.rows("a") == [1, 2]
    ranges = world.paused()["b"]
    assert {row["batch_id"] for row in ranges} == {0, 1}
    assert f"subject {world.prefix}-b-value is not in the schema registry" in ranges[0]["why"]
    assert not delta.is_table(world.spark, f"{world.folder}/tables/{world.prefix}-b_quarantine")

    world.register("b")
    world.publish("a", of_a, ids(3))
    world.publish("b", of_a, ids(14))
    world.run()
    world.run()

    assert world.rows("a") == [1, 2, 3]
    assert world.rows("b") == [10, 11, 12, 13, 14]
    assert world.paused() == {}


def test_a_table_that_cannot_be_written_pauses_its_topic_alone(world):
    for name in ("a", "b"):
        world.topic(name)
        world.publish(name, world.register(name), ids(1, 2))
    blocked = world.folder / "tables" / f"{world.prefix}-b"
    blocked.parent.mkdir()
    blocked.write_text("a file in the way")

    world.run()
    assert world.rows("a") == [1, 2]
    assert list(world.paused()) == ["b"]

    blocked.unlink()
    world.publish("a", world.register("a"), ids(3))
    world.run()

    assert (world.rows("a"), world.rows("b")) == ([1, 2, 3], [1, 2])


def test_a_crash_between_a_resumed_batch_and_its_mark_doubles_nothing(world, monkeypatch):
    world.topic("a")
    world.topic("b")
    of_a = world.register("a")
    world.publish("b", of_a, ids(1, 2))
    world.run()
    world.register("b")
    world.publish("a", of_a, ids(1))
    with monkeypatch.context() as broken:
        broken.setattr(topics, "_mark_resumed", lambda *_: (_ for _ in ()).throw(KeyError("crash")))
        world.run()
    assert world.rows("b") == [1, 2]
    assert list(world.paused()) == ["b"]

    world.publish("a", of_a, ids(2))
    world.run()

    assert world.rows("b") == [1, 2]
    assert world.paused() == {}


def test_a_registry_that_is_away_pauses_no_topic(world, embedded):
    _, addresses = embedded
    for name in ("a", "b"):
        world.topic(name)
        world.publish(name, world.register(name), ids(1))
    with FaultProxy(addresses.schema_registry_url) as proxy:
        settings = world.settings()
        registry = settings.schema_registry.model_copy(update={"url": proxy.url, "retry_seconds": 1.0})
        settings = settings.model_copy(update={"schema_registry": registry})
        proxy.fault("503")
        query = ingest.start_ingest(world.spark, settings, Folder())
        with pytest.raises(SchemaRegistryError):
            progress.await_caught_up(query, "availableNow")
    assert world.paused() == {}

    world.run()

    assert (world.rows("a"), world.rows("b")) == ([1], [1])


def test_a_listed_topic_that_is_missing_is_named_before_anything_is_written(world):
    world.topic("a")
    with pytest.raises(TopicNotFoundError, match=f"{world.prefix}-b"):
        world.run()
    assert not (world.folder / "checkpoint" / "offsets").exists()


def test_several_topics_need_a_place_each(world):
    with pytest.raises(ConfigError, match=r"table_path must hold \{topic\}"):
        world.settings(table_path="/mnt/datalake/one")
