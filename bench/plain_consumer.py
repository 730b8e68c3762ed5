"""A plain Python service: confluent-kafka, fastavro and deltalake, in two processes.

Each process reads half of the partitions, decodes record by record, and appends 100,000 rows at a time, or
those of a second. Then it commits its offsets to Kafka. So rows are doubled after a crash between the two.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from deltalake import write_deltalake
from fastavro import parse_schema, schemaless_reader

PROCESSES = 2
FLUSH_ROWS = 100_000
POLL_RECORDS = 10_000
FLUSH_SECONDS, POLL_SECONDS = 1.0, 0.1


def drain(kafka: Mapping[str, Any], topic: str, partitions: int, schema: str, table: str) -> float:
    """Append all records of a topic to a Delta table, and return the CPU seconds.

    Args:
        kafka: Settings of the Kafka client.
        topic: The topic.
        partitions: Its number of partitions.
        schema: The Avro schema of its values; empty for JSON.
        table: The folder of the table.
    """
    return _carry(kafka, topic, partitions, schema, table, None)


def follow(
    kafka: Mapping[str, Any], topic: str, partitions: int, schema: str, table: str, stop: Path
) -> None:
    """Append records each second until the file `stop` exists, and then the remaining ones."""
    _carry(kafka, topic, partitions, schema, table, stop)


def _carry(
    kafka: Mapping[str, Any], topic: str, partitions: int, schema: str, table: str, stop: Path | None
) -> float:
    parts = [range(first, partitions, PROCESSES) for first in range(PROCESSES)]
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as processes:
        given = [(dict(kafka), topic, part, schema, table, stop) for part in parts]
        return sum(each.result() for each in [processes.submit(_carry_part, *each) for each in given])


def _carry_part(
    kafka: dict[str, Any], topic: str, partitions: Sequence[int], schema: str, table: str, stop: Path | None
) -> float:
    client = {"group.id": table, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer(kafka | client)
    positions = dict.fromkeys(partitions, 0)
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    decode = _avro(schema) if schema else _json
    rows: list[dict[str, Any]] = []
    ends: dict[int, int] | None = None
    flushed = time.monotonic()
    while ends is None or rows or positions != ends:
        if ends is None and (stop is None or stop.exists()):
            places = {number: TopicPartition(topic, number) for number in partitions}
            ends = {number: consumer.get_watermark_offsets(place)[1] for number, place in places.items()}
        for message in consumer.consume(POLL_RECORDS, POLL_SECONDS):
            if message.error():
                raise RuntimeError(str(message.error()))
            rows.append(decode(message.value() or b""))
            positions[int(message.partition() or 0)] = int(message.offset() or 0) + 1
        is_due = stop is not None and time.monotonic() - flushed >= FLUSH_SECONDS
        if rows and (len(rows) >= FLUSH_ROWS or is_due or positions == ends):
            write_deltalake(table, pa.Table.from_pylist(rows), mode="append")
            consumer.commit(asynchronous=False)
            rows, flushed = [], time.monotonic()
    consumer.close()
    return time.process_time()


def _avro(schema: str) -> Callable[[bytes], dict[str, Any]]:
    parsed = parse_schema(json.loads(schema))

    def decode(value: bytes) -> dict[str, Any]:
        # Five bytes of Confluent's wire format, without a look at the id.
        return cast("dict[str, Any]", schemaless_reader(io.BytesIO(value[5:]), parsed, None))

    return decode


def _json(value: bytes) -> dict[str, Any]:
    row = dict(json.loads(value))
    row["timestamp"] = datetime.fromisoformat(row["timestamp"].replace("Z", "+00:00"))
    return row
