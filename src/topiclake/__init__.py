"""Kafka topics into Delta tables, each record exactly once."""
