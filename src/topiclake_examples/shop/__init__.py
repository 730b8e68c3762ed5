"""A shop's PostgreSQL database, and the load that changes it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
