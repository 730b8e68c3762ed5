from .publish import publish_trips

__all__ = ["publish_trips"]
