"""Debezium's topics of the shop, read without the library: records, and the rows that they lead to."""

import base64
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, Literal

import fastavro
import requests
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from pyspark.sql import DataFrame

from workbench.services.kafka_connect import PARTITIONS
from workbench.services.service import Addresses

UNAVAILABLE = "__debezium_unavailable_value"
KEYS = {
    "customers": ("id",),
    "products": ("sku",),
    "orders": ("id",),
    "order_lines": ("order_id", "line"),
    "reviews": ("id",),
}
#: The values of the key of a row.
_Key = tuple[Any, ...]
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Change:
    """A record; `key` and `value` are what its form holds, without a schema."""

    partition: int
    offset: int
    key: dict[str, Any] | None
    value: Any
    headers: dict[str, Any]


def read_changes(
    addresses: Addresses, topics: list[str], form: Literal["avro", "json_schema", "json"]
) -> dict[str, list[Change]]:
    """Return all records of each topic, by partition and offset."""
    decode = {"avro": _avro_decoder(addresses), "json_schema": _payload, "json": json.loads}[form]
    settings = {
        "bootstrap.servers": addresses.kafka_bootstrap_servers,
        "group.id": "shop",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    partitions = [
        TopicPartition(topic, partition, OFFSET_BEGINNING)
        for topic in topics
        for partition in range(PARTITIONS)
    ]
    consumer.assign(partitions)
    changes: dict[str, list[Change]] = {topic: [] for topic in topics}
    ended = 0
    while ended < len(partitions):
        message = consumer.poll(30)
        assert message is not None, topics
        if message.error():
            ended += 1
            continue
        key, value = (None if part is None else decode(part) for part in (message.key(), message.value()))
        named: Any = message.headers() or ()
        headers = {name: json.loads(content) for name, content in named}
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        changes[topic].append(Change(partition, offset, key, value, headers))
    consumer.close()
    for of_topic in changes.values():
        of_topic.sort(key=lambda change: (change.partition, change.offset))
    return changes


def rows_after(changes: list[Change], table: str) -> list[dict[str, Any]]:
    """Return the rows that the changes of a table lead to, as `plain_rows` writes them."""
    rows: dict[_Key, dict[str, Any]] = {}
    for change, key, row in _applied(changes, table):
        if change.value["op"] == "t":
            rows.clear()
        elif row is None:
            rows.pop(key, None)
        else:
            rows[key] = row
    return [rows[key] for key in sorted(rows)]


def versions_after(changes: list[Change], table: str) -> list[dict[str, Any]]:
    """Return all versions of the rows of a table, with `__START_AT` and `__END_AT`, by key and start.

    The table is never truncated. An update that changes no column begins no version.
    """
    versions: list[tuple[_Key, dict[str, Any]]] = []
    current: dict[_Key, dict[str, Any]] = {}
    for change, key, row in _applied(changes, table):
        position, before = change.value["source"]["lsn"], current.get(key)
        if before and row and all(before[name] == value for name, value in row.items()):
            continue
        if before is not None:
            current.pop(key)["__END_AT"] = position
        if row is not None:
            current[key] = row | {"__START_AT": position, "__END_AT": None}
            versions.append((key, current[key]))
    return [row for _, row in sorted(versions, key=lambda each: (each[0], each[1]["__START_AT"]))]


def _applied(changes: list[Change], table: str) -> Iterator[tuple[Change, _Key, dict[str, Any] | None]]:
    """Yield each change with its key and its row, in the order of the log; a deletion has no row.

    A row has the columns of all changes, and the large values that its change lacks.
    """
    ordered = sorted((change for change in changes if change.value), key=_order)
    columns = dict.fromkeys(name for change in ordered for name in change.value["after"] or ())
    last: dict[_Key, dict[str, Any]] = {}
    for change in ordered:
        key = tuple(change.key[name] for name in KEYS[table]) if change.key else ()
        if change.value["op"] in ("d", "t"):
            yield change, key, None
            continue
        assert change.key is not None
        row: dict[str, Any] = columns | plain_row(change.value["after"])
        old = change.headers.get("__debezium.oldkey", change.key)
        before = last.get(tuple(old[name] for name in KEYS[table]), {})
        for name, value in row.items():
            if value in (UNAVAILABLE, UNAVAILABLE.encode()):
                row[name] = before[name]
        last[key] = row
        yield change, key, row


def _order(change: Change) -> tuple[int, int]:
    # Transactions overlap, so a partition is not in the order of the log; a key's records are.
    return change.value["source"]["lsn"], change.offset


def plain_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the database: numbers and moments as Debezium's defaults have them."""
    return [{name: _stored(value) for name, value in row.items()} for row in rows]


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of Debezium's values, as `plain_rows` writes it."""
    return {name: _plain(name, value) for name, value in row.items()}


def view_rows(view: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a view as `plain_rows` writes them, in no order."""
    return [
        plain_row(
            {
                name: bytes(value) if isinstance(value, bytearray) else value
                for name, value in row.asDict().items()
            }
        )
        for row in view.collect()
    ]


def _stored(value: object) -> object:
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return _micros(moment)
    if isinstance(value, date):
        return (value - _EPOCH.date()).days
    return str(value) if type(value).__name__ == "UUID" else value


def _plain(name: str, value: Any) -> object:
    if value is None or value == UNAVAILABLE:
        return value
    if name in ("price", "credit") and isinstance(value, str):
        return Decimal(int.from_bytes(base64.b64decode(value), "big", signed=True)).scaleb(-2)
    if name == "photo" and isinstance(value, str):
        return base64.b64decode(value)
    if name == "created_at" or name == "ordered_at":
        return _micros(datetime.fromisoformat(value.replace("Z", "+00:00")))
    return json.loads(value) if name == "attributes" else value


def _micros(moment: datetime) -> int:
    elapsed = moment - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 10**6 + elapsed.microseconds


def _payload(content: bytes) -> Any:
    record = json.loads(content)
    assert set(record) == {"schema", "payload"}
    return record["payload"]


def _avro_decoder(addresses: Addresses) -> Callable[[bytes], Any]:
    schemas: dict[int, Any] = {}

    def decode(content: bytes) -> Any:
        assert content[0] == 0
        number = int.from_bytes(content[1:5], "big")
        if number not in schemas:
            url = f"{addresses.schema_registry_url}/schemas/ids/{number}"
            schemas[number] = fastavro.parse_schema(
                json.loads(requests.get(url, timeout=30).json()["schema"])
            )
        stream = io.BytesIO(content[5:])
        record = fastavro.schemaless_reader(stream, schemas[number], None)
        assert not stream.read()
        return record

    return decode
