"""Wikimedia's events on the embedded broker, read back by Confluent's own deserializer."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from itertools import cycle
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

import topiclake as tl
from tests.support.environment import succeeded
from tests.support.waiting import wait_until
from tests.unit.examples.sse_server import event_id, serving
from topiclake.config.load import load_settings
from topiclake.errors import ConfigError, EventStreamError, NewSchemaError
from topiclake.kafka import client as kafka_client
from topiclake.kafka.writer import ID_HEADER
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame
from topiclake.streaming import queries, restarts
from topiclake_examples.avro_producer import AvroRecord, produce
from topiclake_examples.wikimedia import (
    edit_counts,
    edits_per_window,
    event_stream,
    publish_live_edits,
    publish_recorded_edits,
    wikimedia_edits,
)
from topiclake_examples.wikimedia import events as wikimedia_events

PROJECT = Path(__file__).parents[3]
RECORDED = PROJECT / "data" / "wikimedia_recentchange.ndjson"
LINES = RECORDED.read_text("utf-8").splitlines()
AGENT = "topiclake/1 (tests@example.org)"


@pytest.fixture
def settings(embedded, monkeypatch):
    _, addresses = embedded
    for name, value in addresses.environment().items():
        monkeypatch.setenv(name, value)
    return load_settings("wikimedia", {"topic": f"wikimedia-{uuid4().hex[:8]}"}, conf=PROJECT / "conf")


@pytest.fixture
def messages(settings):
    """All messages of the topic, by partition and offset."""

    def read(topic=settings.pipeline.topic):
        consumer = Consumer(kafka_client.client_settings(settings.kafka) | {"group.id": "tests"})
        try:
            partitions = [
                TopicPartition(topic, n, 0) for n in consumer.list_topics(topic).topics[topic].partitions
            ]
            number = sum(consumer.get_watermark_offsets(one)[1] for one in partitions)
            consumer.assign(partitions)
            found = consumer.consume(number, timeout=120) if number else []
        finally:
            consumer.close()
        return sorted(found, key=lambda message: (message.partition(), message.offset()))

    return read


@pytest.fixture
def events(messages, embedded):
    """The events in the topic, as Confluent's deserializer reads them."""
    _, addresses = embedded
    with SchemaRegistryClient({"url": addresses.schema_registry_url}) as client:
        read = AvroDeserializer(client)
        yield lambda: [
            _as_sent(read(message.value(), SerializationContext(message.topic(), MessageField.VALUE)))
            for message in messages()
        ]


def _as_sent(value):
    event = {name: part for name, part in value.items() if part is not None}
    return event | {"$schema": event.pop("schema")}


def in_order(events):
    return sorted(events, key=lambda event: event["meta"]["id"])


def test_recorded_events_are_read_back_as_they_were(settings, events, messages):
    published = publish_recorded_edits(settings, RECORDED)
    assert (published.records, published.refused, published.canaries) == (100, 0, 0)
    recorded = [json.loads(line) for line in LINES]
    assert in_order(events()) == in_order(recorded)
    keys = {(message.key().decode(), message.partition()) for message in messages()}
    assert {key for key, _ in keys} == {f"enwiki:{event['title']}" for event in recorded}
    assert len({key for key, _ in keys}) == len(keys), "the edits of a page stay in one partition"


def test_a_live_stream_that_breaks_off_is_sent_whole_and_each_event_once(settings, events, monkeypatch):
    monkeypatch.setattr(event_stream, "_FIRST_WAIT", 0.001)
    canary = json.loads(LINES[0])
    canary["meta"] |= {"domain": "canary"}
    lines = [*LINES[:40], json.dumps(canary), '{"$schema": "x"}', "no JSON", *LINES[40:]]
    with serving(lines, answers=[20_000.0, 503, 7.0, 30_000.0]) as server:
        published = publish_live_edits(settings, user_agent=AGENT, events="103", url=server.url)
    assert (published.records, published.canaries, published.refused) == (100, 1, 2)
    assert published.last_event_id == event_id(102)
    assert in_order(events()) == in_order(json.loads(line) for line in LINES)
    assert {asked["User-Agent"] for asked in server.asked} == {AGENT}


def test_a_later_run_goes_on_behind_and_what_came_twice_can_be_told(settings, events, messages):
    with serving(LINES) as server:
        first = publish_live_edits(settings, user_agent=AGENT, events=30, url=server.url)
        publish_live_edits(settings, user_agent=AGENT, events=70, url=server.url, after=first.last_event_id)
        assert in_order(events()) == in_order(json.loads(line) for line in LINES)
        publish_live_edits(settings, user_agent=AGENT, events=10, url=server.url)
    ids = [dict(message.headers())[ID_HEADER] for message in messages()]
    assert (len(ids), len(set(ids))) == (110, 100)


def test_what_was_sent_before_a_stream_ended_for_good_is_there(settings, events):
    with (
        serving(LINES, answers=[20_000.0, 403]) as server,
        pytest.raises(EventStreamError, match="answered 403"),
    ):
        publish_live_edits(settings, user_agent=AGENT, events=100, url=server.url)
    found = in_order(events())
    assert 0 < len(found) < 100
    assert found == in_order(json.loads(line) for line in LINES[: len(found)])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"user_agent": " "}, "user_agent is empty"),
        ({"events": "many"}, "events is 'many'"),
        ({"since": "yesterday"}, "since is 'yesterday'"),
        ({"since": "2026-01-02T03:00:00"}, "since is '2026-01-02T03:00:00'"),
    ],
)
def test_parameters_of_a_live_stream_that_make_no_sense_are_refused(settings, given, message):
    with pytest.raises(ConfigError, match=message):
        publish_live_edits(
            settings, **({"user_agent": AGENT, "events": 1, "url": "http://127.0.0.1:1"} | given)
        )


@pytest.mark.parametrize(
    ("name", "value"), [("speed", "-1"), ("events", "x"), ("times", "then"), ("seed", "?")]
)
def test_parameters_of_recorded_events_that_make_no_sense_are_refused(settings, name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
        publish_recorded_edits(settings, RECORDED, **{name: value})


# Windows over edits, while the schema changes


class Edits:
    """A stream of windows over edits into Parquet files, and what sends to its topic."""

    def __init__(self, spark, settings, folder):
        self.spark, self.folder = spark, folder
        pipeline = settings.pipeline.model_copy(update={"trigger": "1 second"})
        self.settings = settings.model_copy(update={"pipeline": pipeline})
        self.topic = pipeline.topic
        self.registry = SchemaRegistry.from_settings(settings.schema_registry)
        tl.ensure_topic(settings.kafka, self.topic, partitions=2)

    def send(self, events, schema=wikimedia_events.RECENT_CHANGE, **more):
        schema_id = self.registry.register(f"{self.topic}-value", json.dumps(schema))
        values = [wikimedia_events.as_value(event) | more for event in events]
        records = (AvroRecord(str(value["title"]), value) for value in values)
        assert produce(self.settings, self.topic, schema, schema_id, records) == len(events)
        return schema_id

    def start(self):
        counts = edits_per_window(wikimedia_edits(tl.read_values(self.spark, self.settings)))
        checkpoint = f"{self.folder}/checkpoint"
        writer = counts.writeStream.queryName("edits").format("parquet")
        writer = writer.option("path", f"{self.folder}/windows").option("checkpointLocation", checkpoint)
        return queries.start(writer, self.settings, self.spark, checkpoint)

    def send_the_end(self, events):
        """Send an edit so late that all other windows close; return when it was made."""
        end = events[-1]["timestamp"] + 600
        self.send([wikimedia_events.shifted(events[0], end - events[0]["timestamp"])])
        return end

    def written(self):
        rows = self.spark.read.parquet(f"{self.folder}/windows").collect()
        return Counter(tuple(row) for row in rows)


def windows_of(events, until):
    """Count as plain Python does, what ends up to `until`."""
    found = Counter()
    for event in events:
        who = {True: "Bot", False: "Human", None: None}[event.get("bot")]
        last = event["timestamp"] // 30 * 30
        for start in (last - 30, last):
            if start <= event["timestamp"] < start + 60 <= until and event["type"] == "edit":
                found[datetime.fromtimestamp(start), datetime.fromtimestamp(start + 60), who] += 1
    return Counter({(*window, count): 1 for window, count in found.items()})


def as_window(value):
    """What Kafka has of a window as `windows_of` names it."""
    times = (
        datetime.fromisoformat(value["window"][name].replace("Z", "+00:00")) for name in ("start", "end")
    )
    local = (at.astimezone().replace(tzinfo=None) for at in times)
    return (*local, value["requested_by"], value["counts"])


def plain(value):
    """Take a union's value out of the object that Avro's JSON names its type with."""
    return next(iter(value.values())) if value.keys() <= {"string", "long", "int"} else value


@pytest.fixture
def edits(connected, settings, tmp_path):
    return Edits(connected, settings, tmp_path)


def with_tags():
    tags = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}
    return wikimedia_events.RECENT_CHANGE | {"fields": [*wikimedia_events.RECENT_CHANGE["fields"], tags]}


def varied(number):
    made = wikimedia_events.multiplied(wikimedia_events.read_events(RECORDED), number, 1)
    changes = cycle([{}, {"bot": True}, {}, {"bot": None}, {"type": "log"}])
    return [event | change for event, change in zip(made, changes, strict=False)]


@pytest.mark.thorough("a new start is tested in test_registered_values")
def test_a_new_version_starts_the_stream_again_at_once_with_its_windows_as_they_were(edits, caplog):
    events = varied(400)
    first = edits.send(events[:200])
    query = tl.start_restarted(edits.start)
    began = query.query
    query.await_caught_up(edits.settings.pipeline.trigger)
    assert query.restarts == 0

    second = edits.send(events[200:300], with_tags(), tags=["mobile"])
    assert second != first
    edits.send(events[300:])
    wait_until(lambda: query.restarts == 1)
    # No pause lies between one query and the next: about 10 s in all on two idle cores.
    assert "it starts again" in caplog.text
    assert "another try in" not in caplog.text
    query.await_caught_up(edits.settings.pipeline.trigger)
    assert (query.query.id, query.query.runId != began.runId) == (began.id, True)

    end = edits.send_the_end(events)
    query.await_caught_up(edits.settings.pipeline.trigger)
    wait_until(lambda: edits.written() == windows_of(events, end - 60))
    assert query.isActive
    query.stop()
    wait_until(lambda: not query.isActive)
    assert query.restarts == 1


@pytest.mark.thorough("an error of the example")
def test_a_schema_that_the_registry_does_not_know_ends_the_stream_and_is_named(edits, monkeypatch):
    monkeypatch.setattr(restarts, "DECISION_SECONDS", 0)
    events = wikimedia_events.read_events(RECORDED)
    edits.send(events)
    query = tl.start_restarted(edits.start)
    query.await_caught_up(edits.settings.pipeline.trigger)
    value = AvroRecord("x", wikimedia_events.as_value(events[0]))
    produce(edits.settings, edits.topic, wikimedia_events.RECENT_CHANGE, 999_999, [value])
    with pytest.raises(
        NewSchemaError, match=rf"topic {edits.topic}, .* schema 999999: its schema was not in"
    ):
        query.keep_running(300)
    assert not query.isActive
    with pytest.raises(NewSchemaError):
        query.await_caught_up(edits.settings.pipeline.trigger)


@pytest.mark.thorough("test_databricks runs the notebook on other edits")
def test_closed_windows_go_back_to_kafka_as_a_batch_computation_has_them(edits, messages, consume):
    events = list(wikimedia_events.multiplied(wikimedia_events.read_events(RECORDED), 300, 2))
    edits.send(events)
    end = edits.send_the_end(events)
    once = edits.settings.pipeline.model_copy(update={"trigger": "availableNow"})
    settings, topic = edits.settings.model_copy(update={"pipeline": once}), f"{edits.topic}.processed"

    def start():
        counts = edits_per_window(wikimedia_edits(tl.read_values(edits.spark, settings)))
        return tl.start_avro_writer(
            edit_counts(counts),
            settings,
            topic=topic,
            timestamps="string",
            checkpoint_path=f"{edits.folder}/processed",
        )

    tl.start_restarted(start).await_caught_up("availableNow")
    with SchemaRegistryClient({"url": settings.schema_registry.url}) as client:
        read = AvroDeserializer(client)
        context = SerializationContext(topic, MessageField.VALUE)
        found = Counter(as_window(read(message.value(), context)) for message in messages(topic))
    assert found == windows_of(events, end - 60)
    by_java = succeeded(
        consume(topic, "--avro", "--from-beginning", "--max-messages", str(sum(found.values())))
    )
    assert Counter(as_window(json.loads(line, object_hook=plain)) for line in by_java.splitlines()) == found
    back = settings.for_topic(topic)
    decoded = tl.decode_values(tl.drop_duplicates(tl.read_batch(edits.spark, back)), back)
    assert decoded.count() == sum(found.values())


def test_the_first_bytes_of_a_value_name_its_schema(edits):
    schema_id = edits.send(wikimedia_events.read_events(RECORDED)[:1])
    rows = tl.start_memory(tl.read_records(edits.spark, edits.settings), "raw_edits", output_mode="append")
    tl.await_caught_up(rows, "availableNow")
    (row,) = edits.spark.sql("SELECT value, magicByte, valueSchemaId, fixedValue FROM raw_edits").collect()
    assert (bytes(row["magicByte"]), row["valueSchemaId"]) == (b"\0", schema_id)
    assert row["value"] == frame(schema_id, bytes(row["fixedValue"]))
