"""A topic that is deleted and created again: same name, another id, offsets from 0."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from tests.support.waiting import wait_until
from topiclake.config.kafka import KafkaSettings
from topiclake.errors import KafkaError
from topiclake.kafka import admin, client, offsets


def recreate(kafka: KafkaSettings, topic: str, partitions: int) -> None:
    """Delete a topic and create it again, empty."""
    settings = client.client_settings(kafka)
    old = offsets.fetch_offsets(settings, [topic]).ids[topic]
    connection = AdminClient(settings)
    connection.delete_topics([topic])[topic].result(120)

    def is_new() -> bool:
        try:
            admin.ensure_topic(kafka, topic, partitions)
            found = offsets.fetch_offsets(settings, [topic])
        except KafkaError:
            return False
        return found.ids.get(topic, old) != old and len(found.offsets[topic]) == partitions

    wait_until(is_new)
