"""Wikimedia's `recentchange` events: their Avro schema, recorded ones, and generated ones.

The fields are those of https://schema.wikimedia.org/repositories/primary/jsonschema/mediawiki/recentchange/
(1.0.0 and 1.0.1). An event may lack each of them except `$schema` and some of `meta`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import chain, count, islice
from pathlib import Path
from typing import Any
from uuid import UUID

from fastavro import parse_schema
from fastavro.validation import ValidationError, validate

from topiclake.errors import ConfigError
from topiclake_examples.parameters import recorded_file

#: An event as Wikimedia sends it, JSON.
Event = dict[str, Any]


def _field(name: str, kind: str, doc: str = "", *, optional: bool = True) -> dict[str, Any]:
    field: dict[str, Any] = {"name": name, "type": ["null", kind] if optional else kind}
    if optional:
        field["default"] = None
    return field | ({"doc": doc} if doc else {})


def _before_and_after(name: str, doc: str) -> dict[str, Any]:
    fields = [_field("old", "long"), _field("new", "long")]
    record = {"type": "record", "name": name.capitalize(), "fields": fields}
    return {"name": name, "type": ["null", record], "default": None, "doc": doc}


_META = {
    "type": "record",
    "name": "Meta",
    "fields": [
        _field("uri", "string"),
        _field("request_id", "string"),
        _field("id", "string", "names the event"),
        _field("dt", "string", "when it was produced, ISO 8601", optional=False),
        _field("domain", "string"),
        _field("stream", "string", optional=False),
        _field("topic", "string", "of Wikimedia's own Kafka"),
        _field("partition", "int"),
        _field("offset", "long"),
    ],
}
#: `$schema` is not a valid name in Avro, so it is `schema` here; all other names are the event's own.
RECENT_CHANGE: dict[str, Any] = {
    "type": "record",
    "name": "RecentChange",
    "namespace": "org.wikimedia.eventstreams",
    "fields": [
        _field("schema", "string", "the event's $schema", optional=False),
        {"name": "meta", "type": _META},
        _field("id", "long", "of the change in the wiki's list of recent ones (rcid)"),
        _field("type", "string", "edit, new, log, categorize or external"),
        _field("namespace", "int"),
        _field("title", "string"),
        _field("title_url", "string"),
        _field("comment", "string"),
        _field("timestamp", "long", "of the change, seconds since 1970 (UTC)"),
        _field("user", "string"),
        _field("bot", "boolean"),
        _field("notify_url", "string"),
        _field("minor", "boolean"),
        _field("patrolled", "boolean", "where the wiki patrols changes"),
        _before_and_after("length", "bytes of the page"),
        _before_and_after("revision", "ids of the page's revisions"),
        _field("server_url", "string"),
        _field("server_name", "string"),
        _field("server_script_path", "string"),
        _field("wiki", "string"),
        _field("parsedcomment", "string", "HTML"),
        _field("log_id", "long"),
        _field("log_type", "string"),
        _field("log_action", "string"),
        _field("log_params", "string", "of any type: JSON"),
        _field("log_action_comment", "string"),
    ],
}
_PARSED = parse_schema(RECENT_CHANGE)
_NAMES = [field["name"] for field in RECENT_CHANGE["fields"]]


def as_value(event: Event) -> dict[str, Any]:
    """Return an event as fastavro accepts it for `RECENT_CHANGE`, without fields that the schema lacks.

    Raises:
        ValueError: It is not such an event; names the field and its value.
    """
    if not isinstance(event, dict):
        raise ValueError(f"{str(event)[:80]!r} is no JSON object")
    value = {name: event.get(name) for name in _NAMES} | {"schema": event.get("$schema")}
    if "log_params" in event:
        value["log_params"] = json.dumps(event["log_params"], ensure_ascii=False)
    try:
        validate(value, _PARSED)
    except ValidationError as error:
        raise ValueError(" ".join(str(error).split())) from None
    return value


def read_events(file: Path) -> list[Event]:
    """Read recorded events, one JSON object a line, in the order of their times.

    Raises:
        ConfigError: The file is missing or empty, or a line is not an event; names the line.
    """
    events = []
    with recorded_file(file).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                event = json.loads(line)
                as_value(event)
                moment_of(event)
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"{file}, line {number} is no recentchange event ({error})",
                    "fix or remove that line",
                    file=str(file),
                    line=number,
                    reason="line",
                ) from None
            events.append(event)
    if not events:
        raise ConfigError(
            f"{file} has no event", f"git checkout -- data/{file.name}", file=str(file), reason="empty"
        )
    return sorted(events, key=moment_of)


def moment_of(event: Event) -> float:
    """Return when an event's change was made, in seconds since 1970."""
    return float(event["timestamp"])


def multiplied(events: list[Event], number: int, seed: int) -> Iterator[Event]:
    """Yield `number` events in the order of time: the recorded ones, then generated ones like them.

    The generated events repeat the recording, each time later by its whole duration. Their pages, editors,
    lengths and ids are drawn at random, the same for the same seed.
    """
    lap = moment_of(events[-1]) - moment_of(events[0]) + 1
    ids = [event["id"] for event in events if event.get("id") is not None]
    id_span = max(ids, default=0) - min(ids, default=0) + 1

    def generate(turn: int, index: int) -> Event:
        event = shifted(events[index], turn * lap)
        if event.get("id") is not None:
            event["id"] += turn * id_span
        return _varied(event, events, random.Random(f"{seed}/{turn}/{index}"))  # noqa: S311 (no secret)

    repeated = (generate(turn, index) for turn in count(1) for index in range(len(events)))
    return islice(chain(events, repeated), number)


def _varied(event: Event, events: list[Event], generator: random.Random) -> Event:
    page, editor = generator.choice(events), generator.choice(events)
    event["meta"] |= {
        "id": str(UUID(int=generator.getrandbits(128), version=4)),
        "uri": page["meta"].get("uri"),
    }
    for names, source in ((("title", "title_url", "namespace"), page), (("user", "bot", "minor"), editor)):
        event |= {name: source[name] for name in names if name in source}
    if (length := event.get("length")) and length.get("new") is not None:
        event["length"] = length | {"new": max(0, length["new"] + generator.randint(-500, 500))}
    return event


def shifted(event: Event, seconds: float) -> Event:
    """Return an event with its times shifted by a number of seconds."""
    meta, at = dict(event["meta"]), datetime.fromisoformat(event["meta"]["dt"].replace("Z", "+00:00"))
    new_time = (at + timedelta(seconds=seconds)).astimezone(timezone.utc)
    meta["dt"] = new_time.isoformat(timespec="seconds").replace("+00:00", "Z")
    return event | {"meta": meta, "timestamp": int(event["timestamp"] + seconds)}


def played(events: Iterable[Event], speed: float) -> Iterator[Event]:
    """Yield the events as far apart as their changes were; twice as fast with speed 2, at once with 0."""
    first: float | None = None
    start = time.monotonic()
    for event in events:
        if speed:
            first = moment_of(event) if first is None else first
            if (wait := start + (moment_of(event) - first) / speed - time.monotonic()) > 0:
                time.sleep(wait)
        yield event
