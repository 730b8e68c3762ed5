"""Hits of an internet provider: text and JSON, counted by zip and window."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
