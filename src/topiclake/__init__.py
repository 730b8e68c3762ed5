"""Kafka topics into Delta tables, each record exactly once.

The names of this package are those for notebooks; everything else is in its modules. `__init__.pyi` lists the
names. Each is loaded at its first use, so commands that need an error's class only don't wait for pandas.

Each name has an example in its docstring. An example uses the names of a notebook, `spark` and `dbutils`, and
the `settings` and the files (`conf`) of a pipeline `readings`. tests/docs/test_docstrings.py runs it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
