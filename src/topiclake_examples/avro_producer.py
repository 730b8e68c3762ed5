"""Avro records through Kafka's own client, for events that are played to a topic outside of Spark."""

from __future__ import annotations

import io
import math
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar
from uuid import uuid4

import fastavro
from confluent_kafka import KafkaException, Producer
from confluent_kafka.error import KafkaError as ClientError

import topiclake as tl
from topiclake.errors import ConfigError, KafkaError

#: The header by which `tl.drop_duplicates` knows a record that was sent twice.
ID_HEADER = "topiclake_id"

Item = TypeVar("Item")


@dataclass(frozen=True)
class AvroRecord:
    """A record to send.

    Attributes:
        key: Text; records of one key stay in one partition, in order.
        value: The value for the schema, as fastavro accepts it.
        id: An id that is the same when any process sends the same event again. Without an id, the records of
            each call are distinct.
    """

    key: str
    value: Mapping[str, Any]
    id: str | None = None


def at_least(minimum: float, name: str, value: float | str, *, integer: bool = False) -> float:
    """Return a parameter as a number; it may be text, as widgets hold it.

    Raises:
        ConfigError: It is not a number, or too small.
    """
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not number >= minimum or math.isinf(number) or (integer and not number.is_integer()):
        kind = "whole number" if integer else "number"
        raise ConfigError(
            f"{name} is {value!r}; allowed: a {kind}, at least {minimum:g}",
            f"pass -p {name}=10",
            parameter=name,
            found=value,
            minimum=minimum,
        )
    return number


def rate_limited(items: Iterable[Item], per_second: float) -> Iterator[Item]:
    """Yield the items at most at the rate `per_second`; 0 for no limit."""
    start = time.monotonic()
    for number, item in enumerate(items):
        if per_second and (wait := start + number / per_second - time.monotonic()) > 0:
            time.sleep(wait)
        yield item


def produce(
    settings: tl.Settings,
    topic: str,
    schema: Mapping[str, Any],
    schema_id: int,
    records: Iterable[AvroRecord],
) -> int:
    """Send records, and return how many were acknowledged.

    Args:
        settings: The broker.
        topic: The topic.
        schema: The Avro schema of values.
        schema_id: The schema's id, which is written in front of each value.
        records: The records. If their iterator raises, the records before that are sent nevertheless.

    Raises:
        KafkaError: The broker did not acknowledge each of them; names the first reason.
    """
    avro_schema = fastavro.parse_schema(dict(schema))
    failures: list[ClientError] = []
    producer = Producer(
        tl.client_settings(settings.kafka)
        | {"enable.idempotence": True, "linger.ms": 20, "message.timeout.ms": 30_000}
    )
    sent, call = 0, uuid4().hex
    try:
        for record in records:
            payload = io.BytesIO()
            fastavro.schemaless_writer(payload, avro_schema, record.value)
            # For records that a later call sends again. librdkafka itself numbers those that it repeats.
            record_id = sha256(f"{topic}/{record.id or f'{call}/{sent}'}".encode()).hexdigest()[:32]
            message = {
                "key": record.key,
                "value": struct.pack(">xI", schema_id & 0xFFFFFFFF) + payload.getvalue(),
                "headers": [(ID_HEADER, record_id.encode())],
            }
            _send(producer, topic, message, failures)
            sent += 1
    finally:
        unsent = producer.flush(60)
    if failures or unsent:
        reason = failures[0].str() if failures else "no answer within 60 s"
        raise KafkaError(
            f"{len(failures) + unsent} of {sent} records for topic {topic} were not acknowledged ({reason})",
            "run python -m workbench status, then publish again",
            topic=topic,
            records=sent,
            unacknowledged=len(failures) + unsent,
            detail=reason,
        )
    return sent


def _send(producer: Producer, topic: str, message: Mapping[str, Any], failures: list[ClientError]) -> None:
    def acknowledged(error: ClientError | None, _message: object) -> None:
        if error is not None:
            failures.append(error)

    while True:
        try:
            producer.produce(topic, **message, on_delivery=acknowledged)
        except BufferError:
            producer.poll(0.5)
            continue
        except KafkaException as error:
            raise KafkaError(
                f"topic {topic} does not accept records: {error}",
                "check the topic, and the permissions of the login",
                topic=topic,
                detail=str(error),
            ) from None
        producer.poll(0)
        return
