"""Nest's devices: logs of homes, sightings of cameras, and notifications about cameras."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
