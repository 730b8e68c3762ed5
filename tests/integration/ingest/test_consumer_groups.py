"""Offsets of a consumer group, committed behind each micro-batch, as Kafka's own tool tells them."""

import subprocess
from uuid import uuid4

import pytest
from confluent_kafka import Consumer

import topiclake as tl
from tests.support.numbers_topic import Numbers, right
from topiclake.delta import table as delta
from topiclake.ingest import consumer_group
from topiclake.ingest import start as ingest
from topiclake.kafka import client as kafka_client
from workbench.host.java import require_java


class Grouped(Numbers):
    """Topics of numbers, and the group whose offsets an ingest commits."""

    def __init__(self, spark, folder, jars):
        self.group, self.jars = f"lag-{uuid4().hex[:8]}", jars
        super().__init__(spark, folder)

    def settings(self, **given):
        return super().settings(**{"consumer_group": self.group} | given)

    def described(self):
        """By topic and partition: the offset, the head and the lag that kafka-consumer-groups.sh prints."""
        tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        servers = self.settings().kafka.bootstrap_servers
        command = [str(require_java().path), "-cp", f"{self.jars}/*", tool, "--bootstrap-server", servers]
        done = subprocess.run(
            [*command, "--describe", "--group", self.group], capture_output=True, text=True, timeout=240
        )
        rows = [line.split() for line in done.stdout.splitlines() if line.startswith(self.group)]
        return {(row[1].removeprefix(f"{self.name}-"), int(row[2])): tuple(row[3:6]) for row in rows}


@pytest.fixture
def grouped(connected, tmp_path, pytestconfig):
    made = Grouped(connected, tmp_path, pytestconfig.rootpath / "jars" / "kafka" / "target" / "jars")
    made.topic("a")
    return made


@pytest.mark.thorough("the offsets of the group are tested")
@pytest.mark.slow("Kafka's own command, a JVM each time")
def test_the_lag_of_the_group_is_that_of_the_ingest(grouped):
    schema_id = grouped.register("a")
    grouped.send("a", *(right(schema_id, n) for n in range(5)), b"{}")
    grouped.ingested(grouped.settings())
    grouped.send("a", right(schema_id, 5))
    assert grouped.described() == {("a", 0): ("3", "4", "1"), ("a", 1): ("3", "3", "0")}
    grouped.ingested(grouped.settings())
    assert grouped.described()["a", 0] == ("4", "4", "0")


@pytest.mark.thorough("the lag of a topic that is paused")
@pytest.mark.slow("a paused topic, and Kafka's own command")
def test_what_a_paused_topic_has_missed_is_its_lag(grouped):
    grouped.topic("b")
    of_a = grouped.register("a")
    settings = grouped.settings(**grouped.several)
    grouped.send("a", right(of_a, 1))
    grouped.send("b", right(of_a, 2), right(of_a, 3))
    grouped.ingested(settings)
    assert {place: lag for place, (_, _, lag) in grouped.described().items()} == {
        ("a", 0): "0",
        ("a", 1): "0",
        ("b", 0): "1",
        ("b", 1): "1",
    }
    grouped.register("b")
    # Nothing is new: it is resumed at the start.
    grouped.ingested(grouped.settings(**grouped.several))
    assert {lag for _, _, lag in grouped.described().values()} == {"0"}


def test_a_group_that_consumers_use_is_left_alone_and_the_ingest_goes_on(grouped, caplog):
    schema_id = grouped.register("a")
    grouped.send("a", right(schema_id, 1))
    mine = {"group.id": grouped.group, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    consumer = Consumer(kafka_client.client_settings(grouped.settings().kafka) | mine)
    try:
        consumer.subscribe([f"{grouped.name}-a"])
        assert consumer.poll(120) is not None
        grouped.ingested(grouped.settings())
    finally:
        consumer.close()
    assert delta.read(grouped.spark, f"{grouped.folder}/table").count() == 1
    assert f"committing offsets of the consumer group {grouped.group} failed" in caplog.text
    assert "another consumer_group" in caplog.text


@pytest.mark.thorough("real waiting for a broker that is away")
def test_batches_are_written_while_the_group_cannot_be_and_it_is_told_once(grouped, monkeypatch, caplog):
    schema_id = grouped.register("a")
    monkeypatch.setattr(consumer_group, "TIMEOUT_SECONDS", 1)
    nobody = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    made = consumer_group.GroupCommit
    monkeypatch.setattr(ingest, "GroupCommit", lambda group, _, ledger: made(group, nobody, ledger))
    query = tl.start_ingest(grouped.spark, grouped.settings(trigger="1 second"))
    for n in range(2):
        grouped.send("a", right(schema_id, n))
        tl.await_caught_up(query, "1 second")
    query.stop()
    assert delta.read(grouped.spark, f"{grouped.folder}/table").count() == 2
    assert caplog.text.count("failed; the query continues") == 1


def test_offsets_are_held_back_where_records_wait():
    end = {"a": {0: 5, 1: 7}, "b": {0: 3}}
    assert consumer_group.written_offsets(end, {}) == end
    assert consumer_group.written_offsets(end, {"a": {1: 4}, "c": {0: 1}}) == {"a": {0: 5, 1: 4}, "b": {0: 3}}
