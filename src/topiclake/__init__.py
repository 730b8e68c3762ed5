"""Kafka topics into Delta tables, each record exactly once.

What a notebook calls; everything else is a module below. The names stand in `__init__.pyi`, each loaded when
it is first used: commands that need an error's class alone do not wait for pandas and SQLAlchemy.

Each name has an example in its docstring. Its names are those of a notebook, `spark` and `dbutils`, and the
`settings` and the files (`conf`) of a pipeline `readings`. tests/docs/test_docstrings.py runs it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
