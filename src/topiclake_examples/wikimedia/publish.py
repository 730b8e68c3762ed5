"""Wikimedia's edits: recorded, generated or live events, sent to a topic as Confluent-framed Avro."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import topiclake as tl
from topiclake.errors import ConfigError, require_choice
from topiclake_examples.avro_producer import AvroRecord, at_least, produce
from topiclake_examples.exit_value import ExitValue
from topiclake_examples.parameters import moment, whole_number
from topiclake_examples.wikimedia import event_stream
from topiclake_examples.wikimedia.events import (
    RECENT_CHANGE,
    Event,
    as_value,
    moment_of,
    multiplied,
    played,
    read_events,
    shifted,
)

_LOG = logging.getLogger(__name__)
#: Wikimedia's own stream.
LIVE = "https://stream.wikimedia.org/v2/stream/recentchange"
#: Domain of events that only show that a stream is alive, see
#: https://wikitech.wikimedia.org/wiki/Event_Platform/EventStreams_HTTP_Service#Canary_events.
_CANARY = "canary"


@dataclass
class PublishedEdits(ExitValue):
    """The result of a publishing run.

    Attributes:
        topic: The topic.
        schema_id: Id of the values' schema.
        records: Events that were sent, and acknowledged by the broker.
        canaries: Events that only show that the stream is alive; they are not sent.
        refused: Events that don't fit the schema; the log names each. They are not sent.
        last_event_id: Of a live stream, the id after which the next run resumes; "" otherwise.
    """

    topic: str
    schema_id: int
    records: int = 0
    canaries: int = 0
    refused: int = 0
    last_event_id: str = ""


def publish_recorded_edits(
    settings: tl.Settings,
    file: Path | str,
    *,
    events: int | str = 0,
    speed: float | str = 0,
    times: Literal["recorded", "now"] = "recorded",
    seed: int | str = 1,
) -> PublishedEdits:
    """Register the schema, create the topic if it does not exist, and play recorded events into it.

    Args:
        settings: Broker, registry and topic.
        file: Recorded events, a JSON object a line.
        events: Number of events. 0: the recorded ones. A number above theirs adds generated ones.
        speed: Speed: 1 as the changes were made, 10 ten times as fast, 0 as fast as possible.
        times: `now` shifts all times, so that the first change is made now.
        seed: Another seed generates other events.

    Raises:
        ConfigError: A parameter is not valid, or the file has another content.
        KafkaError, SchemaRegistryError: A service cannot be used, or a record was not acknowledged.
    """
    pace, number = at_least(0, "speed", speed), whole_number("events", events)
    require_choice("times", times, ("recorded", "now"))
    recorded = read_events(Path(file))
    generated = multiplied(recorded, number or len(recorded), whole_number("seed", seed))
    if times == "now":
        shift = int(time.time() - moment_of(recorded[0]))
        generated = (shifted(event, shift) for event in generated)
    published = _prepared(settings)
    # The events of each run are new ones, so they have no ids.
    records = (_record(event, None) for event in played(generated, pace))
    published.records = produce(settings, published.topic, RECENT_CHANGE, published.schema_id, records)
    return published


def publish_live_edits(
    settings: tl.Settings,
    *,
    user_agent: str,
    events: int | str,
    url: str = LIVE,
    since: str = "",
    after: str = "",
) -> PublishedEdits:
    """Register the schema, create the topic if it does not exist, and send live changes of Wikimedia's wikis.

    A record's id is derived from the event's id, so `drop_duplicates` drops events that two runs sent.

    Args:
        settings: Broker, registry and topic.
        user_agent: Name of the client, with an address; Wikimedia's rule
            (https://foundation.wikimedia.org/wiki/Policy:Wikimedia_Foundation_User-Agent_Policy).
        events: Number of events to read, with canaries and refused ones.
        url: The stream; a test's, or another of Wikimedia's with the same schema.
        since: A time in ISO 8601 to begin at, if the server still holds it; "": from now on.
        after: The `last_event_id` of an earlier run, after which this run resumes.

    Raises:
        ConfigError: A parameter is not valid.
        EventStreamError: The server refuses, or stays unavailable; records that were sent stay in the topic.
        KafkaError, SchemaRegistryError: A service cannot be used, or a record was not acknowledged.
    """
    number = whole_number("events", events)
    if not user_agent.strip():
        raise ConfigError(
            "user_agent is empty",
            "pass -p user_agent='<project>/<version> (<your address>)'",
            parameter="user_agent",
            found=user_agent,
        )
    if since:
        moment("since", since)
    published = _prepared(settings)
    stream = event_stream.follow(
        url, user_agent=user_agent, params={"since": since} if since else None, after=after or None
    )
    records = _valid_records(islice(stream, number), published)
    published.records = produce(settings, published.topic, RECENT_CHANGE, published.schema_id, records)
    return published


def _prepared(settings: tl.Settings) -> PublishedEdits:
    topic = settings.pipeline.topic
    # The changes of a page stay in one partition.
    tl.ensure_topic(settings.kafka, topic, 4)
    registry = tl.SchemaRegistry.from_settings(settings.schema_registry)
    schema_id = registry.register(f"{topic}-value", json.dumps(RECENT_CHANGE))
    return PublishedEdits(topic, schema_id)


def _valid_records(
    stream: Iterator[event_stream.ServerSentEvent], published: PublishedEdits
) -> Iterator[AvroRecord]:
    """Yield the records of events that fit the schema, and count the other events."""
    for received in stream:
        published.last_event_id = received.id
        try:
            event = json.loads(received.data)
            if event["meta"].get("domain") == _CANARY:
                published.canaries += 1
                continue
            record = _record(event, event["meta"].get("id"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            published.refused += 1
            _LOG.warning("event %s is no recentchange event (%s): %.200s", received.id, error, received.data)
            continue
        yield record


def _record(event: Event, name: str | None) -> AvroRecord:
    value = as_value(event)
    return AvroRecord(f"{value['wiki']}:{value['title']}", value, name)
