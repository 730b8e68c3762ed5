"""New York's yellow taxis, as Avro."""

from topiclake_examples.taxi.publish import publish_trips

__all__ = ["publish_trips"]
