"""A topic of hits of its own, and what tests do with it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import yaml
from confluent_kafka import Producer

import topiclake as tl
from tests.support.local_rows import local_rows
from topiclake.config.load import load_settings
from topiclake.delta import table as delta
from topiclake.kafka.source import RECORD_SCHEMA
from topiclake_examples.isp import publish_hits

PROJECT = Path(__file__).parents[2]


class Hits:
    def __init__(self, spark, folder, topic):
        self.spark, self.folder, self.topic = spark, folder, topic

    def settings(self, **given):
        parameters = {
            "topic": self.topic,
            "table_path": f"{self.folder}/table",
            "checkpoint_path": f"{self.folder}/checkpoint",
            "storage": self.folder.as_uri(),
        }
        parameters |= {name: given.pop(name) for name in parameters.keys() & given.keys()}
        conf = self.folder / "conf"
        shutil.copytree(PROJECT / "conf", conf, dirs_exist_ok=True)
        file = conf / "pipelines" / "isp.yaml"
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | given))
        return load_settings("isp", parameters, conf=conf)

    def publish(self, hits, **given):
        return publish_hits(self.spark, self.settings(), hits=hits, **given)

    def send(self, *values):
        producer = Producer({"bootstrap.servers": self.settings().kafka.bootstrap_servers})
        for value in values:
            producer.produce(self.topic, value)
        assert producer.flush(120) == 0

    def records(self, *values):
        """What Kafka's source gives, without Kafka."""
        now = datetime.now()
        rows = [(self.topic, 0, offset, now, None, value, None) for offset, value in enumerate(values)]
        return local_rows(self.spark, rows, RECORD_SCHEMA)

    def ingest(self, **given):
        settings = self.settings(**given)
        tl.await_caught_up(tl.start_ingest(self.spark, settings), settings.pipeline.trigger)
        return delta.read(self.spark, f"{self.folder}/table")

    def quarantined(self):
        path = f"{self.folder}/table_quarantine"
        if not delta.is_table(self.spark, path):
            return Counter()
        return Counter(row["reason"] for row in delta.read(self.spark, path).collect())

    def result(self, rows, mode):
        """Run a stream to its end into memory."""
        name = f"result_{uuid4().hex}"
        stream = rows.writeStream.format("memory").queryName(name).outputMode(mode)
        tl.await_caught_up(stream.trigger(availableNow=True).start(), "availableNow")
        return [tuple(row) for row in self.spark.table(name).collect()]

    def values(self):
        """What the topic holds that is right, read in one batch and parsed without Spark."""
        found = []
        for row in tl.read_batch(self.spark, self.settings()).collect():
            try:
                value = json.loads(bytes(row["value"]))
            except (TypeError, ValueError):
                continue
            found.append(value)
        return found
