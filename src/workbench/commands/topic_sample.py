"""A sample of a topic's records: which format they have, and which schemas they name."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import fastavro
import pyarrow
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.error import KafkaError as ClientError

from topiclake.config.kafka import KafkaSettings
from topiclake.errors import SubjectNotFoundError
from topiclake.kafka.client import TIMEOUT_SECONDS, client_settings, unreachable
from topiclake.kafka.offsets import topic_offsets
from topiclake.reasons import TOMBSTONE, UNKNOWN_SCHEMA_ID
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import HEADER_LENGTH, Part, record_header, schema_key

SAMPLE_RECORDS = 500
#: By schema type of the registry the value format.
FORMATS = {"AVRO": "avro", "JSON": "json_schema", "PROTOBUF": "protobuf"}
PLAIN_AVRO = "avro without schema id"
#: Values that a sample counts, but that have no format.
NO_FORMATS = (TOMBSTONE, UNKNOWN_SCHEMA_ID, "binary")


@dataclass(frozen=True)
class TopicSample:
    """The newest records of a topic.

    Attributes:
        partitions: The topic's number of partitions.
        records: The number of offsets that Kafka holds.
        formats: By format, or by one of `NO_FORMATS`, the number of sampled values.
        keys: The same of keys; `none` for records without a key.
        schema_ids: The schema ids that values name.
        documents: The JSON objects among the values.
        key_documents: The JSON objects among the keys.
    """

    partitions: int
    records: int
    formats: Counter[str] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    schema_ids: set[int] = field(default_factory=set)
    documents: list[dict[str, Any]] = field(default_factory=list)
    key_documents: list[dict[str, Any]] = field(default_factory=list)


def read_sample(kafka: KafkaSettings, registry: SchemaRegistry, topic: str) -> TopicSample:
    """Read the newest records of each partition, 500 in all, and classify them.

    Raises:
        TopicNotFoundError: The broker does not hold the topic.
        KafkaError, SchemaRegistryError: A service cannot be used.
    """
    offsets = topic_offsets(kafka, topic)
    sample = TopicSample(len(offsets), sum(end - first for first, end in offsets.values()))
    plain = _plain_schema(registry, topic)
    try:
        for message in _newest(kafka, topic, offsets):
            value, headers = message.value(), dict(message.headers() or ())
            kind, schema_id = _framed(registry, value, headers, "value")
            kind = kind or _unframed(value, plain)
            sample.formats[kind] += 1
            if schema_id is not None:
                sample.schema_ids.add(schema_id)
            if kind == "json":
                sample.documents.append(json.loads(value or b""))
            key = message.key()
            framed, _ = _framed(registry, key, headers, "key")
            key_kind = "none" if key is None else framed or _unframed(key, None)
            sample.keys[key_kind] += 1
            if key_kind == "json":
                sample.key_documents.append(json.loads(key or b""))
    except KafkaException as error:
        raise unreachable(kafka, [error.args[0]]) from None
    return sample


def _newest(kafka: KafkaSettings, topic: str, offsets: Mapping[int, tuple[int, int]]) -> Iterator[Message]:
    """Yield the newest records; offsets without a record, after compaction or a transaction, are skipped."""
    per_partition = max(1, SAMPLE_RECORDS // max(1, len(offsets)))
    partitions = [
        TopicPartition(topic, partition, max(first, end - per_partition))
        for partition, (first, end) in offsets.items()
        if end > first
    ]
    consumer = Consumer(
        client_settings(kafka)
        | {
            "group.id": f"{kafka.group_id_prefix or ''}topiclake-init",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign(partitions)
        unread = {partition.partition for partition in partitions}
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while unread and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield message
            elif error.code() == ClientError._PARTITION_EOF:
                unread.discard(message.partition() or 0)
            else:
                raise KafkaException(error)
    finally:
        consumer.close()


def _framed(
    registry: SchemaRegistry, content: bytes | None, headers: Mapping[str, Any], part: Part
) -> tuple[str, int | None]:
    """Return the format of the schema that a key or a value names, and its id; "" if it names none."""
    if content is None:
        return "", None
    schema_id = schema_key(headers.get(record_header(part)) or content[:HEADER_LENGTH])
    if not isinstance(schema_id, int):
        return "", None
    schema = registry.by_id(schema_id)
    return (UNKNOWN_SCHEMA_ID, None) if schema is None else (FORMATS[schema.schema_type], schema_id)


def _unframed(content: bytes | None, plain: object) -> str:
    if content is None:
        return TOMBSTONE
    if plain is not None and _is_avro(content, plain):
        return PLAIN_AVRO
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "binary"
    try:
        return "json" if isinstance(json.loads(text), dict) else "text"
    except ValueError:
        return "text"


def _plain_schema(registry: SchemaRegistry, topic: str) -> object:
    """Return the schema that values without a schema id may have; None if the registry has none."""
    try:
        latest = registry.latest(f"{topic}-value")
    except SubjectNotFoundError:
        return None
    if latest.schema_type != "AVRO":
        return None
    names: dict[str, Any] = {}
    for _, text in latest.references:
        fastavro.parse_schema(json.loads(text), names)
    return fastavro.parse_schema(json.loads(latest.schema), names)


def _is_avro(content: bytes, schema: Any) -> bool:  # noqa: ANN401 (fastavro's schema)
    """Return whether all bytes are a value of a schema."""
    stream = BytesIO(content)
    try:
        fastavro.schemaless_reader(stream, schema, None)
    except Exception:  # noqa: BLE001 (fastavro documents no errors of bytes that are no Avro)
        return False
    return not stream.read(1)


def columns_of(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the columns of JSON objects as DDL; a field of several types is a STRING.

    Of names that differ only in case, the first is a column: a table cannot have both.
    """
    values: dict[str, list[Any]] = {}
    for document in documents:
        for name, value in document.items():
            values.setdefault(name, []).append(value)
    return ", ".join(f"{_quoted(name)} {_type(values[name])}" for name in _distinct(values))


def _distinct(names: Iterable[str]) -> Iterable[str]:
    distinct: dict[str, str] = {}
    for name in names:
        distinct.setdefault(name.lower(), name)
    return distinct.values()


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _type(values: list[Any]) -> str:
    try:
        return _ddl(pyarrow.array(values).type)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
        return "STRING"


def _ddl(kind: Any) -> str:  # noqa: ANN401 (pyarrow has no types)
    if pyarrow.types.is_struct(kind):
        types = {inner.name: inner.type for inner in kind}
        fields = (f"{_quoted(name)}: {_ddl(types[name])}" for name in _distinct(types))
        return f"STRUCT<{', '.join(fields)}>"
    if pyarrow.types.is_list(kind):
        return f"ARRAY<{_ddl(kind.value_type)}>"
    names = {pyarrow.int64(): "BIGINT", pyarrow.float64(): "DOUBLE", pyarrow.bool_(): "BOOLEAN"}
    return names.get(kind, "STRING")
