"""Runs with few records, by the offsets of a real broker."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from topiclake.config.kafka import KafkaSettings
from topiclake.errors import KafkaError
from topiclake.kafka import client
from topiclake.kafka.admin import ensure_topic
from workbench.commands import few_records
from workbench.commands.few_records import has_few_records


@pytest.fixture
def given(embedded: Any) -> dict[str, str]:
    """The parameters of a pipeline whose topic has three records."""
    kafka = KafkaSettings(bootstrap_servers=embedded[1].kafka_bootstrap_servers)
    topic = f"few-{uuid4().hex}"
    ensure_topic(kafka, topic, 2)
    producer = Producer(client.client_settings(kafka))
    for partition in (0, 1, 1):
        producer.produce(topic, value=b"x", partition=partition)
    assert producer.flush(120) == 0
    return {"pipeline": "gps", "env": "local", "topic": topic, "on_wrong": "report"}


def test_a_run_has_few_records_if_it_ends_and_its_topic_has_few(embedded, given, monkeypatch) -> None:
    home = embedded[0]
    assert has_few_records(home, given)
    assert not has_few_records(home, given | {"trigger": "10 seconds"})
    assert not has_few_records(home, given | {"mode": "none such"})
    monkeypatch.setattr(few_records, "FEW_RECORDS", 2)
    assert not has_few_records(home, given)


def test_a_broker_that_cannot_be_reached_is_named_before_the_run(embedded, given, monkeypatch) -> None:
    monkeypatch.setenv("WORKBENCH_KAFKA", "127.0.0.1:1")
    with pytest.raises(KafkaError) as refused:
        has_few_records(embedded[0], given)
    assert "127.0.0.1:1" in str(refused.value)
