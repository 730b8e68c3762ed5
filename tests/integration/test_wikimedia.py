"""Wikimedia's events on the embedded broker, read back by Confluent's own deserializer."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

import topiclake as tl
from tests.unit.sse_server import event_id, serving
from topiclake import event_stream, kafka
from topiclake.config import load_settings
from topiclake.errors import ConfigError, EventStreamError
from topiclake.kafka_writer import ID_HEADER

PROJECT = Path(__file__).parents[2]
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

    def read():
        topic = settings.pipeline.topic
        consumer = Consumer(kafka.client_settings(settings.kafka) | {"group.id": "tests"})
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
    published = tl.publish_recorded_edits(settings, RECORDED)
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
        published = tl.publish_live_edits(settings, user_agent=AGENT, events="103", url=server.url)
    assert (published.records, published.canaries, published.refused) == (100, 1, 2)
    assert published.last_event_id == event_id(102)
    assert in_order(events()) == in_order(json.loads(line) for line in LINES)
    assert {asked["User-Agent"] for asked in server.asked} == {AGENT}


def test_a_later_run_goes_on_behind_and_what_came_twice_can_be_told(settings, events, messages):
    with serving(LINES) as server:
        first = tl.publish_live_edits(settings, user_agent=AGENT, events=30, url=server.url)
        tl.publish_live_edits(
            settings, user_agent=AGENT, events=70, url=server.url, after=first.last_event_id
        )
        assert in_order(events()) == in_order(json.loads(line) for line in LINES)
        tl.publish_live_edits(settings, user_agent=AGENT, events=10, url=server.url)
    ids = [dict(message.headers())[ID_HEADER] for message in messages()]
    assert (len(ids), len(set(ids))) == (110, 100)


def test_what_was_sent_before_a_stream_ended_for_good_is_there(settings, events):
    with (
        serving(LINES, answers=[20_000.0, 403]) as server,
        pytest.raises(EventStreamError, match="answered 403"),
    ):
        tl.publish_live_edits(settings, user_agent=AGENT, events=100, url=server.url)
    found = in_order(events())
    assert 0 < len(found) < 100
    assert found == in_order(json.loads(line) for line in LINES[: len(found)])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"user_agent": " "}, "user_agent is empty"),
        ({"events": "many"}, "events is 'many'"),
        ({"since": "yesterday"}, "since is 'yesterday'"),
        ({"since": "2026-01-02T03:00:00"}, "since is '2026-01-02T03:00:00'"),
    ],
)
def test_parameters_of_a_live_stream_that_make_no_sense_are_refused(settings, given, told):
    with pytest.raises(ConfigError, match=told):
        tl.publish_live_edits(
            settings, **({"user_agent": AGENT, "events": 1, "url": "http://127.0.0.1:1"} | given)
        )


@pytest.mark.parametrize(
    ("name", "value"), [("speed", "-1"), ("events", "x"), ("times", "then"), ("seed", "?")]
)
def test_parameters_of_recorded_events_that_make_no_sense_are_refused(settings, name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
        tl.publish_recorded_edits(settings, RECORDED, **{name: value})
