"""Kafka, schema registry, stores and a Spark cluster on loopback: their start, discovery and stop."""
