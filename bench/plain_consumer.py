"""A plain Python service: confluent-kafka, fastavro and deltalake, in two processes.

Each process reads half of the partitions, decodes record by record, appends 100,000 rows at a time, and then
commits its offsets to Kafka. So rows are doubled after a crash between the two.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from typing import Any, cast

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from deltalake import write_deltalake
from fastavro import parse_schema, schemaless_reader

PROCESSES = 2
FLUSH_ROWS = 100_000
POLL_RECORDS = 10_000


def drain(kafka: Mapping[str, Any], topic: str, partitions: int, schema: str, table: str) -> float:
    """Append all records of a topic to a Delta table, and return the CPU seconds.

    Args:
        kafka: Settings of the Kafka client.
        topic: The topic.
        partitions: Its number of partitions.
        schema: The Avro schema of its values; empty for JSON.
        table: The folder of the table.
    """
    parts = [range(first, partitions, PROCESSES) for first in range(PROCESSES)]
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as processes:
        running = [processes.submit(_drain, dict(kafka), topic, part, schema, table) for part in parts]
        return sum(each.result() for each in running)


def _drain(kafka: dict[str, Any], topic: str, partitions: Sequence[int], schema: str, table: str) -> float:
    client = {"group.id": table, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer(kafka | client)
    ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number))[1] for number in partitions}
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    decode = _avro(schema) if schema else _json
    rows: list[dict[str, Any]] = []
    left = sum(ends.values())
    while left:
        for message in consumer.consume(POLL_RECORDS, 1.0):
            if message.error():
                raise RuntimeError(str(message.error()))
            rows.append(decode(message.value() or b""))
            left -= 1
        if len(rows) >= FLUSH_ROWS or not left:
            write_deltalake(table, pa.Table.from_pylist(rows), mode="append")
            consumer.commit(asynchronous=False)
            rows = []
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
