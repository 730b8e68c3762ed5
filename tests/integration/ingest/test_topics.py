"""Several topics in one query, on the embedded broker and registry, into real Delta tables."""

import io
import json
from collections import Counter
from pathlib import Path
from uuid import uuid4

import fastavro
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import topiclake as tl
from tests.services.fault_proxy import FaultProxy
from tests.support.waiting import wait_until
from topiclake.config.load import load_settings
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, IngestError, SchemaRegistryError, StorageError, TopicNotFoundError
from topiclake.ingest import isolated_topic, multi_topic, paused_topics, registered_batch
from topiclake.ingest import start as ingest
from topiclake.ingest.audit import audit
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.monitoring.reports import read_report
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame
from topiclake.streaming import progress

CONF = Path(__file__).parents[3] / "conf"
V1 = json.dumps({"type": "record", "name": "E", "fields": [{"name": "id", "type": "int"}]})
#: `id` is wider and `city` is new.
V2 = json.dumps(
    {
        "type": "record",
        "name": "E",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "city", "type": ["null", "string"], "default": None},
        ],
    }
)


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
        self.parameters = {"topic": f"{prefix}-a,{prefix}-b", "type_widening": "true"}
        self.registry = SchemaRegistry.from_settings(self.settings().schema_registry)
        self.admin = AdminClient(kafka_client.client_settings(self.settings().kafka))

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
        kafka_admin.ensure_topic(self.settings().kafka, f"{self.prefix}-{name}", 2)

    def register(self, name, schema=V1):
        return self.registry.register(f"{self.prefix}-{name}-value", schema)

    def publish(self, name, schema_id, values, schema=V1):
        producer = Producer(kafka_client.client_settings(self.settings().kafka))
        for number, value in enumerate(values):
            whole = value if isinstance(value, bytes) else frame(schema_id, encoded(schema, value))
            producer.produce(f"{self.prefix}-{name}", value=whole, partition=number % 2)
        producer.flush()

    def create(self, *names):
        """Create topics and their subjects; return the id of their schema."""
        for name in names:
            self.topic(name)
        return {self.register(name) for name in names}.pop()

    def delete_before(self, name, offset):
        """Delete records of the first partition."""
        partition = TopicPartition(f"{self.prefix}-{name}", 0, offset)
        (done,) = self.admin.delete_records([partition]).values()
        done.result(120)

    def delete(self, name):
        topic = f"{self.prefix}-{name}"
        self.admin.delete_topics([topic])[topic].result(120)
        wait_until(lambda: topic not in self.admin.list_topics(timeout=30).topics)

    def run(self, **more):
        """Ingest what is new; return the configuration and the query."""
        settings = self.settings(**more)
        query = ingest.start_ingest(self.spark, settings)
        progress.await_caught_up(query, "availableNow")
        return settings, query

    def pause_b(self):
        """Have two records of `b` wait for a subject of their own; return the id of the schema of `a`."""
        self.topic("a")
        self.topic("b")
        of_a = self.register("a")
        self.publish("b", of_a, ids(1, 2))
        self.run()
        return of_a

    def rows(self, name, column="id"):
        table = delta.read(self.spark, f"{self.folder}/tables/{self.prefix}-{name}")
        return sorted(row[0] for row in table.select(column).collect())

    def writes(self, name):
        """Return the number of writes in the log of the table; a query of its history costs a second."""
        log = self.folder / "tables" / f"{self.prefix}-{name}" / "_delta_log"
        return sum('"operation":"WRITE"' in commit.read_text() for commit in log.glob("*.json"))

    def files(self, name):
        return len(list((self.folder / "tables" / f"{self.prefix}-{name}").glob("*.parquet")))

    def paused(self):
        found = paused_topics.paused(self.spark, f"{self.folder}/checkpoint_paused")
        return {topic.removeprefix(f"{self.prefix}-"): ranges for topic, ranges in found.items()}


def encoded(schema, value):
    payload = io.BytesIO()
    fastavro.schemaless_writer(payload, fastavro.parse_schema(json.loads(schema)), value)
    return payload.getvalue()


def ids(*numbers):
    return [{"id": number} for number in numbers]


def test_a_batch_reads_kafka_once_and_an_idle_topic_costs_nothing(world, embedded):
    _, addresses = embedded
    world.parameters["topic"] += f",{world.prefix}-c"
    schema_id = world.create("a", "b", "c")
    for name in ("a", "b"):
        world.publish(name, schema_id, ids(2, 3))
    with FaultProxy(addresses.schema_registry_url) as proxy:
        registry = world.settings().schema_registry.model_copy(update={"url": proxy.url})
        settings = world.settings().model_copy(update={"schema_registry": registry})
        query = ingest.start_ingest(world.spark, settings)
        progress.await_caught_up(query, "availableNow")

    assert [world.rows(name) for name in ("a", "b")] == [[2, 3]] * 2
    # Spark counts a record again each time that it reads the record.
    assert sum(batch["numInputRows"] for batch in query.recentProgress) == 4
    subjects = Counter(request.path.split("/")[-2] for request in proxy.requests if "?" not in request.path)
    assert subjects == {f"{world.prefix}-a-value": 1, f"{world.prefix}-b-value": 1}
    assert [world.writes(name) for name in ("a", "b", "c")] == [1, 1, 0]
    # Of both partitions of a topic, and no empty one.
    assert [world.files(name) for name in ("a", "b", "c")] == [1, 1, 0]


@pytest.mark.thorough("a further list of topics")
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


@pytest.mark.thorough("new versions of one topic are tested in test_micro_batch")
@pytest.mark.slow("a running query waits for the age of the registry's lists")
@pytest.mark.timeout(300)
def test_new_versions_while_the_query_runs_change_only_their_own_table(world):
    """The query keeps its id and its run; a new column, a wider one, and both versions side by side."""
    world.topic("a")
    world.topic("b")
    v1 = world.register("a")
    world.register("b")
    world.publish("a", v1, ids(1, 2))
    world.publish("b", v1, ids(1))
    query = ingest.start_ingest(world.spark, world.settings(trigger="1 second"))
    run = query.runId
    try:
        query.processAllAvailable()
        v2 = world.register("a", V2)
        for number in range(3, 9, 2):
            world.publish("a", v1, ids(number))
            world.publish("a", v2, [{"id": 2**40 + number, "city": f"c{number}"}], V2)
        world.publish("b", v1, ids(2))
        query.processAllAvailable()
        assert query.isActive
        assert query.runId == run
    finally:
        query.stop()

    table = delta.read(world.spark, f"{world.folder}/tables/{world.prefix}-a")
    expected = {(1, None), (2, None)}
    expected |= {(number, None) for number in range(3, 9, 2)}
    expected |= {(2**40 + number, f"c{number}") for number in range(3, 9, 2)}
    rows = [tuple(row) for row in table.select("id", "city").collect()]
    assert len(rows) == len(expected)
    assert set(rows) == expected
    assert world.rows("b") == [1, 2]
    assert delta.read(world.spark, f"{world.folder}/tables/{world.prefix}-b").columns == ["id", "_kafka"]


@pytest.mark.thorough("a topic is paused and resumed by a start in the test of a crash")
@pytest.mark.slow("five ingests of two topics")
def test_a_topic_without_a_schema_is_paused_and_resumed_with_all_its_records(world, monkeypatch):
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

    with monkeypatch.context() as patched:
        patched.setattr(paused_topics, "SURPLUS_ROWS", 1)
        world.publish("b", of_a, ids(14))
        world.run()
    assert {row["batch_id"] for row in world.paused()["b"]} == {1, 2}, "batches 0 and 1 are combined"

    world.register("b")
    world.publish("a", of_a, ids(3))
    world.publish("b", of_a, ids(15))
    # With no time and one offset at once, a batch of the query writes one range of those that were missed.
    with monkeypatch.context() as patched:
        patched.setattr(paused_topics, "MAX_OFFSETS", 1)
        patched.setattr(isolated_topic, "RESUME_SECONDS", 0.0)
        patched.setattr(isolated_topic, "resume", lambda *_: None)
        world.run()
    assert (world.rows("a"), world.rows("b")) == ([1, 2, 3], [10, 11, 12, 13])
    assert {row["batch_id"] for row in world.paused()["b"]} == {2, 3}

    world.run()
    assert world.rows("b") == [10, 11, 12, 13, 14, 15], "nothing is new, so Spark runs no batch"
    assert world.paused() == {}
    assert world.writes("b") == 2, "what it has missed is written at once"

    listed = tl.create_view(world.spark, world.settings()).drop("table").collect()
    assert sorted(map(tuple, listed)) == [(f"{world.prefix}-a", 3, 0), (f"{world.prefix}-b", 6, 0)]


@pytest.mark.slow("two ingests of two topics")
def test_a_topic_that_lost_records_is_paused_alone(world):
    of_a = world.create("a", "b")
    world.publish("b", of_a, ids(10, 11))
    world.run()
    # Of the first partition of b, 10 and 12 are deleted.
    world.publish("b", of_a, ids(12, 13))
    world.delete_before("b", 2)
    world.publish("a", of_a, ids(2))
    _, query = world.run()
    assert (world.rows("a"), world.rows("b")) == ([2], [10, 11])
    # Spark does not count the record of `a`, so the monitoring counts the rows of the tables.
    reports = [read_report(batch.json) for batch in query.recentProgress]
    assert [report.batch_id for report in reports if not report.is_exact] == [1]
    (why,) = {row["why"] for row in world.paused()["b"]}
    assert f"topic {world.prefix}-b, partition 0: offsets 1 to before 2 (1 record)" in why


@pytest.mark.thorough("further reasons of a pause, and the way on")
@pytest.mark.slow("four ingests of three topics")
def test_a_topic_that_lost_records_is_deleted_or_taken_off_the_list_is_paused_alone(world):
    world.parameters["topic"] += f",{world.prefix}-c"
    of_a = world.create("a", "b", "c")
    for name, numbers in (("a", [1]), ("b", [10, 11]), ("c", [20])):
        world.publish(name, of_a, ids(*numbers))
    world.run()
    # Of the first partition of b, 10 and 12 are deleted.
    world.publish("b", of_a, ids(12, 13, 14, 15))
    world.delete_before("b", 2)
    world.delete("c")
    world.publish("a", of_a, ids(2))
    world.run()
    assert (world.rows("a"), world.rows("b"), world.rows("c")) == ([1, 2], [10, 11], [20])
    (why,) = {row["why"] for row in world.paused()["b"]}
    assert f"topic {world.prefix}-b, partition 0: offsets 1 to before 2 (1 record)" in why

    listed = world.parameters["topic"]
    world.parameters["topic"] = f"{world.prefix}-a,{world.prefix}-c"
    world.publish("a", of_a, ids(3))
    world.publish("b", of_a, ids(16))
    world.run()
    assert (world.rows("a"), world.rows("b")) == ([1, 2, 3], [10, 11])
    assert {row["batch_id"] for row in world.paused()["b"]} == {1, 2}
    assert "removed from the list" in world.paused()["b"][-1]["why"]

    world.parameters |= {"topic": listed, "fail_on_data_loss": "false"}
    world.publish("a", of_a, ids(4))
    world.run()
    assert (world.rows("a"), world.rows("b")) == ([1, 2, 3, 4], [10, 11, 13, 14, 15, 16])
    assert world.paused() == {}
    report = audit.audit_ingest(world.spark, world.settings())
    assert report.ok, report


@pytest.mark.thorough("the same between the plan of a batch and its reading")
def test_a_topic_that_is_deleted_while_a_batch_of_it_runs_is_paused_alone(world, monkeypatch):
    of_a = world.create("a", "b")
    world.publish("a", of_a, ids(1))
    world.publish("b", of_a, ids(10, 11))
    write = multi_topic.write

    def deletes_first(*given):
        world.delete("b")
        write(*given)

    with monkeypatch.context() as patched:
        patched.setattr(multi_topic, "write", deletes_first)
        world.run()
    assert world.rows("a") == [1]
    assert list(world.paused()) == ["b"]
    # Nothing of it is to come any more.
    world.run(fail_on_data_loss="false")
    assert world.paused() == {}


@pytest.mark.thorough("further reasons of a pause")
def test_a_topic_whose_table_cannot_be_written_or_have_its_columns_is_paused_alone(world):
    names = ("a", "b", "c", "a_quarantine")
    world.parameters["topic"] = ",".join(f"{world.prefix}-{name}" for name in names)
    node = {"type": "record", "name": "E", "fields": [{"name": "next", "type": ["null", "E"]}]}
    for name in names:
        schema, values = (json.dumps(node), [{"next": None}]) if name == "b" else (V1, ids(1))
        world.topic(name)
        world.publish(name, world.register(name, schema), values, schema)
    blocked = world.folder / "tables" / f"{world.prefix}-c"
    blocked.parent.mkdir()
    blocked.write_text("a file in the way")

    world.run()

    assert world.rows("a") == [1]
    paused = world.paused()
    assert set(paused) == {"b", "c", "a_quarantine"}
    why = {name: rows[0]["why"] for name, rows in paused.items()}
    assert "no version of" in why["b"]
    assert "contains itself" in why["b"]
    assert f"would be the quarantine of topic {world.prefix}-a" in why["a_quarantine"]
    assert not delta.is_table(world.spark, f"{world.folder}/tables/{world.prefix}-b")


@pytest.mark.slow("three ingests of two topics")
def test_a_crash_between_a_resumed_range_and_its_mark_doubles_nothing(world, monkeypatch):
    """More was missed until the next start: the range that was written stays as it was."""
    of_a = world.pause_b()
    world.register("b")
    world.publish("a", of_a, ids(1))
    with monkeypatch.context() as broken:
        broken.setattr(isolated_topic, "mark_resumed", lambda *_: (_ for _ in ()).throw(KeyError("crash")))
        world.publish("b", of_a, ids(3))
        world.run()
    waiting = world.paused()["b"]
    assert f"subject {world.prefix}-b-value is not in the schema registry" in waiting[0]["why"]
    assert {row["batch_id"] for row in waiting} == {0, 1}
    assert (world.rows("a"), world.rows("b")) == ([1], [1, 2])

    # Nothing is new, so Spark runs no batch.
    world.run()

    assert world.rows("b") == [1, 2, 3]
    assert world.paused() == {}


@pytest.mark.thorough("a crash after a pause, and an error after the next start has fixed the range")
@pytest.mark.slow("four ingests of two topics")
def test_a_fixed_range_with_the_batch_that_is_repeated_is_written_whole(world, monkeypatch):
    of_a = world.pause_b()
    world.publish("a", of_a, ids(1))
    world.publish("b", of_a, ids(3))
    write, write_topic = multi_topic.write, registered_batch.write

    def crashes(*given):
        write(*given)
        raise KeyError("crash")

    with monkeypatch.context() as broken:
        broken.setattr(multi_topic, "write", crashes)
        with pytest.raises(IngestError):
            world.run()
    assert {row["batch_id"] for row in world.paused()["b"]} == {0, 1}

    world.register("b")
    calls = []

    def fails_first(*given, **more):
        calls.append(given)
        if len(calls) == 1:
            raise ConnectionError("the store does not answer")
        write_topic(*given, **more)

    with monkeypatch.context() as broken:
        broken.setattr(registered_batch, "write", fails_first)
        world.run()
    assert (world.rows("a"), world.rows("b"), world.paused()) == ([1], [1, 2, 3], {})


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
        query = ingest.start_ingest(world.spark, settings)
        with pytest.raises(SchemaRegistryError):
            progress.await_caught_up(query, "availableNow")
    assert world.paused() == {}

    world.run()

    assert (world.rows("a"), world.rows("b")) == ([1], [1])


def test_a_listed_topic_that_is_missing_is_named_before_anything_is_written(world):
    world.topic("a")
    with pytest.raises(TopicNotFoundError) as raised:
        world.run()
    assert raised.value.fields["topic"] == f"{world.prefix}-b"
    assert not (world.folder / "checkpoint" / "offsets").exists()


def test_a_pattern_that_no_topic_matches_is_an_error(world):
    world.parameters = {"topic": "unused", "topic_pattern": f"{world.prefix}-typo.*"}
    with pytest.raises(TopicNotFoundError) as raised:
        world.run()
    assert raised.value.fields["topic_pattern"] == f"{world.prefix}-typo.*"


def test_several_topics_need_a_place_each(world):
    with pytest.raises(ConfigError, match=r"table_path must hold \{topic\}"):
        world.settings(table_path="/mnt/datalake/one")


def test_what_another_version_has_written_down_is_refused(spark, tmp_path):
    ledger = str(tmp_path / "paused")
    assert paused_topics.paused(spark, ledger) == {}
    spark.sql("SELECT 'a' AS topic, 0L AS batch_id").write.format("delta").save(ledger)
    with pytest.raises(StorageError) as raised:
        paused_topics.paused(spark, ledger)
    assert raised.value.fields == {"table": ledger, "reason": "other_version"}
