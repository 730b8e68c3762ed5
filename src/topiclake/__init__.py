"""Kafka topics into Delta tables, each record exactly once.

What a notebook calls; everything else is a module below. The names stand in `__init__.pyi`, each loaded when
it is first used: commands that need an error's class alone do not wait for pandas and SQLAlchemy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
