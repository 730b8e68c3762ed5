"""Kafka: the settings of its clients and of Spark's connector, and what a broker holds."""
