"""Nest's cameras on the embedded broker: archived, counted into a compacted topic, told when offline."""

from __future__ import annotations

import json
import threading
from collections import Counter
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource

import topiclake as tl
from tests.support.local_rows import local_rows
from topiclake.config.load import load_settings
from topiclake.config.secret import Secret
from topiclake.config.webhook import WebhookSettings
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, KafkaError, NotificationError, StorageError
from topiclake.sinks.notifications import NOTIFICATIONS
from topiclake.sinks.webhook import Webhook
from topiclake_examples.nest import (
    camera_notifications,
    camera_states,
    device_locations,
    nest_cameras,
    publish_nest_logs,
    sighting_records,
    sightings_per_hour,
    sightings_report,
)

CONF = Path(__file__).parents[3] / "conf"
SECRET_PATH = "/hooks/Sesam"


class Chat:
    """A webhook that keeps what it takes; it answers with `status`."""

    def __init__(self):
        self.taken, self.status = [], 200
        chat = self

        class Answers(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                chat.taken.append((self.path, chat.status, json.loads(body)))
                self.send_response(chat.status)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}{SECRET_PATH}"

    def sent(self):
        """What it has taken: kind and subject of each notification."""
        return [
            (notice["kind"], notice["subject"])
            for _, status, message in self.taken
            if status == 200
            for notice in message["notices"]
        ]


@pytest.fixture
def chat():
    found = Chat()
    yield found
    found.server.shutdown()
    found.server.server_close()


class Nest:
    def __init__(self, spark, folder, chat):
        self.spark, self.folder, self.topic = spark, folder, f"nest-{uuid4().hex[:8]}"
        self.webhook = WebhookSettings(url=Secret("chat", "url", lambda *_: chat.url), retry_seconds=0)

    def settings(self, name="nest", behind=""):
        parameters = {
            "topic": self.topic + behind.replace("_", "-"),
            "table_path": f"{self.folder}/table{behind}",
            "checkpoint_path": f"{self.folder}/checkpoint{behind}",
            "storage": self.folder.as_uri(),
        }
        loaded = load_settings(name, parameters, conf=CONF)
        return loaded.model_copy(update={"webhook": self.webhook})

    @property
    def places(self):
        return self.settings("nest_locations", "_device_locations")

    def publish(self, logs, **given):
        return publish_nest_logs(self.spark, self.settings(), self.places, logs=logs, homes=6, **given)

    def ran(self, query):
        tl.await_caught_up(query, "availableNow")

    def cameras(self):
        return nest_cameras(tl.read_values(self.spark, self.settings()))

    def count(self):
        """Count sightings into the compacted topic, and return its newest records."""
        stats = f"{self.topic}-camera-stats"
        settings = self.settings()
        tl.ensure_topic(settings.kafka, stats, 2, compacted=True)
        self.ran(tl.start_ingest(self.spark, self.places))
        locations = device_locations(self.spark, self.places)
        counts = sightings_per_hour(self.cameras(), locations)
        self.ran(
            tl.start_topic_writer(
                sighting_records(counts),
                settings,
                checkpoint_path=f"{self.folder}/stats",
                topic=stats,
                output_mode="complete",
            )
        )
        return tl.read_compacted(self.spark, settings, topic=stats)

    def notifications(self):
        return tl.notify_batches(
            self.settings(),
            self.spark,
            path=f"{self.folder}/notices",
            notifications=camera_notifications,
        )

    def watch(self):
        place = {"checkpoint_path": f"{self.folder}/states"}
        states = tl.delta_batches(
            self.settings(),
            self.spark,
            path=f"{self.folder}/states_table",
            mode="merge",
            keys=["device_id"],
        )
        sinks = {"states": states, "notices": self.notifications()}
        rows, mode = camera_states(self.cameras()), {"output_mode": "update"}
        self.ran(tl.start_sinks(rows, self.settings(), sinks, **place, **mode))
        table = delta.read(self.spark, f"{self.folder}/states_table")
        assert table.count() == table.select("device_id").distinct().count() == 12
        return sorted(row["device_id"] for row in table.where("NOT is_online").collect())

    def read(self):
        """What the topic holds that is right, read in one batch and parsed without Spark."""
        for row in tl.read_batch(self.spark, self.settings()).collect():
            try:
                yield json.loads(bytes(row["value"]))
            except ValueError:
                continue

    def expected(self):
        """Count sightings in plain Python, by zip code and hour."""
        lines = tl.read_batch(self.spark, self.places).collect()
        places = dict(bytes(row["value"]).decode("latin-1").split(";")[:2] for row in lines)
        counts = Counter()
        for log in self.read():
            for device, camera in log["devices"]["cameras"].items():
                event = camera["last_event"]
                if event["has_person"]:
                    hour = datetime.fromisoformat(event["start_time"]).replace(minute=0, second=0)
                    counts[places[device], hour.astimezone(timezone.utc)] += 1
        return counts


@pytest.fixture
def nest(connected, tmp_path, chat):
    return Nest(connected, tmp_path, chat)


def reported(records):
    report = sightings_report(records, more_than=0).collect()
    hour = timedelta(hours=1)
    assert all(row["end"] - row["start"] == hour for row in report)
    return Counter(
        {(row["zip_code"], row["start"].replace(tzinfo=timezone.utc)): row["count"] for row in report}
    )


@pytest.mark.thorough("the notebook is run in test_databricks")
@pytest.mark.slow("three streams")
def test_sightings_are_those_of_plain_python_and_the_report_knows_the_newest_count_only(nest):
    assert nest.publish(150, damaged=4).cameras == 12
    first = reported(nest.count())
    assert first == nest.expected()
    assert {hour.hour for _, hour in first} >= {3, 4}

    nest.publish(100, start="2026-01-02T03:30:00Z", seed=2)
    records = nest.count()
    assert reported(records) == nest.expected() != first
    held = tl.read_batch(nest.spark, nest.settings(behind="_camera_stats"))
    assert held.count() > records.count() == len(nest.expected())
    assert tl.audit_ingest(nest.spark, nest.places).ok


def test_the_newest_record_of_a_key_counts_and_a_deleted_key_is_gone(nest):
    settings, topic = nest.settings(), f"{nest.topic}-stats"
    tl.ensure_topic(settings.kafka, topic, 2, compacted=True)
    tl.ensure_topic(settings.kafka, topic, 2, compacted=True)
    client = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    assert client.describe_configs([resource])[resource].result(120)["cleanup.policy"].value == "compact"
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for key, value in [("a", "1"), ("b", "1"), ("a", "2"), ("b", None), ("c", "5"), ("a", "3")]:
        producer.produce(topic, value, key, partition=0, timestamp=1000 if value == "3" else 2000)
    # The topic was given a partition, and the key another place, later.
    producer.produce(topic, "6", "c", partition=1, timestamp=3000)
    assert producer.flush(120) == 0
    found = tl.read_compacted(nest.spark, settings, topic=topic).collect()
    assert {bytes(row["key"]): bytes(row["value"]) for row in found} == {b"a": b"3", b"c": b"6"}

    tl.ensure_topic(settings.kafka, f"{topic}-kept", 1)
    with pytest.raises(KafkaError, match="; try: kafka-configs --alter") as caught:
        tl.ensure_topic(settings.kafka, f"{topic}-kept", 1, compacted=True)
    assert caught.value.fields == {
        "topic": f"{topic}-kept",
        "reason": "not_compacted",
        "found": "delete",
    }


@pytest.mark.thorough("a further notification of the same webhook")
def test_a_camera_that_goes_offline_is_told_once_also_after_a_refusal_and_once_more_when_it_is_back(
    nest, chat, caplog
):
    nest.publish(60, offline=2)
    offline = ["home-0000-camera-1", "home-0001-camera-1"]
    chat.status = 503
    with pytest.raises(NotificationError, match="did not accept a notification within 0 s: HTTP 503"):
        nest.watch()
    chat.status = 404
    with pytest.raises(NotificationError, match="refuses notifications: HTTP 404") as caught:
        nest.watch()
    assert "Sesam" not in str(caught.value)
    chat.status = 200
    assert nest.watch() == offline
    assert chat.sent() == [("wrong", camera) for camera in offline]
    assert chat.taken[0][0] == SECRET_PATH
    assert "is offline since" in chat.taken[0][2]["text"]
    nest.publish(30, offline=2, start="2026-01-02T03:45:00Z", minutes=1)
    nest.watch()
    assert len(chat.sent()) == 2, "still offline"

    nest.publish(60, offline=0, start="2026-01-02T06:00:00Z")
    assert nest.watch() == []
    assert chat.sent()[2:] == [("recovered", camera) for camera in offline]
    assert [line.count("is online again") for line in caplog.messages if "recovered" in line] == [1, 1]
    assert len({notice["id"] for _, _, message in chat.taken for notice in message["notices"]}) == 4
    assert "Sesam" not in caplog.text


@pytest.mark.thorough("a crash of the example's producer")
def test_what_was_sent_and_not_noted_is_sent_again_with_the_same_id(nest, chat, monkeypatch):
    columns = "device_id STRING, name STRING, is_online BOOLEAN, since TIMESTAMP"
    since = datetime(2026, 1, 2, 3, tzinfo=timezone.utc)
    rows = local_rows(nest.spark, [("c1", "Door", False, since), ("c2", None, None, None)], columns)
    sink = nest.notifications()
    first, second = (tl.SinkBatch("a query", number, f"{nest.folder}/states") for number in (0, 1))
    with monkeypatch.context() as patched:
        patched.setattr(delta, "append_once", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sink.write(rows, first)
    for batch in (first, first, second):
        sink.write(rows, batch)
    messages = [message for _, _, message in chat.taken]
    assert len(messages) == 2
    assert messages[0] == messages[1]
    noted = delta.read(nest.spark, f"{nest.folder}/notices")
    assert noted.schema.simpleString() == local_rows(nest.spark, [], NOTIFICATIONS).schema.simpleString()
    row = noted.first()
    assert (row["subject"], row["is_wrong"], row["batch_id"]) == ("c1", True, 0)
    assert row["since"].replace(tzinfo=timezone.utc) == since


def test_a_webhook_must_be_an_address_and_locations_must_have_come(nest):
    wrong = WebhookSettings(url=Secret("chat", "url", lambda *_: "Sesam"))
    settings = nest.settings().model_copy(update={"webhook": wrong})
    with pytest.raises(ConfigError, match="the secret chat/url is no address") as caught:
        Webhook.from_settings(settings)
    assert "Sesam" not in str(caught.value)
    assert "Sesam" not in repr(Webhook.from_settings(nest.settings()))
    with pytest.raises(StorageError, match="has delivered no location yet"):
        device_locations(nest.spark, nest.places)
    with pytest.raises(ConfigError, match="homes is 0"):
        publish_nest_logs(nest.spark, nest.settings(), nest.places, homes="0")
