"""What the demo asks of the broker."""

from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from workbench.commands.demo import topic_records


def test_the_records_of_all_partitions_are_counted(embedded):
    _, addresses = embedded
    servers, topic = {"bootstrap.servers": addresses.kafka_bootstrap_servers}, f"demo-{uuid4().hex}"
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(120)
    assert topic_records(addresses, topic) == 0
    producer = Producer(servers)
    for partition in (0, 1, 1):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(120) == 0
    assert topic_records(addresses, topic) == 3
