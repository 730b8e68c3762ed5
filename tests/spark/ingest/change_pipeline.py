"""A pipeline with `apply: upsert` for tests, which write its batches directly."""

import json
from datetime import datetime
from pathlib import Path

import topiclake as tl
from tests.spark.changes import test_debezium as debezium
from tests.support.lake_settings import lake_settings
from tests.support.local_rows import local_rows
from topiclake.changes.tables import current_rows
from topiclake.delta import table as delta
from topiclake.ingest import start, targets
from topiclake.kafka.source import RECORD_SCHEMA

SENT = datetime(2026, 1, 2, 3, 4, 5)
CUSTOMERS = f"""
            value_format: json
            value_schema: "{debezium.enveloped(debezium.CUSTOMER)}"
            key: json
            key_schema: "id BIGINT"
            apply: upsert
            changes: {{envelope: debezium}}
"""
ROWS = """
            value_format: json
            value_schema: "id INT, name STRING, at BIGINT, op STRING"
            key: json
            key_schema: "id INT"
            apply: upsert
            changes: {order: [at], except_columns: [op], deletes: "op = 'd'", truncates: "op = 't'"}
"""


class Pipeline:
    """A pipeline whose batches a test writes."""

    def __init__(self, spark, folder, keys):
        self.spark, self.folder, self.keys = spark, folder, keys
        (folder / "c").mkdir()
        (folder / "c" / "metadata").write_text(json.dumps({"id": "11111111-aaaa"}))
        self.write = None
        self.start()

    def start(self, **given):
        """Start as a new process does."""
        self.settings = lake_settings(self.folder, "shop", self.keys, **given)
        self.target = targets.target(self.settings)
        self.write = start._writer(self.spark, self.settings, self.target, None, None)

    def records(self, rows):
        """Return Kafka's records of partition, offset, key and value."""
        encoded = [
            ("shop", partition, offset, SENT, *map(_bytes, (key, value)), None)
            for partition, offset, key, value in rows
        ]
        return local_rows(self.spark, encoded, RECORD_SCHEMA)

    def current(self, *names):
        rows = current_rows(delta.read(self.spark, self.target.table)).select(*names).collect()
        return {row[0]: tuple(row[1:]) for row in rows}

    def quarantined(self):
        if not delta.is_table(self.spark, self.target.quarantine):
            return []
        rows = delta.read(self.spark, self.target.quarantine).orderBy("partition", "offset").collect()
        return [(row["partition"], row["offset"], row["reason"]) for row in rows]

    def counts(self):
        """Return the counts in the commits of batches, oldest first."""
        rows = tl.table_history(self.spark, self.settings).orderBy("version").collect()
        metadata = [json.loads(row["batch"]) for row in rows if row["batch"]]
        return [commit["changes"] for commit in metadata if "changes" in commit]


def _bytes(part):
    return part if part is None or isinstance(part, bytes) else json.dumps(part).encode()


def recorded(name):
    lines = (Path(debezium.RECORDS) / f"{name}.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [tuple(one[part] for part in ("partition", "offset", "key", "value")) for one in found]


def change(partition, offset, key, *values):
    value = dict(zip(("name", "at", "op"), values, strict=False)) if values else None
    return partition, offset, {"id": key}, value
