"""Kafka, schema registry, stores and a Spark cluster on loopback: how they start, are found and stop."""
