"""Modules of Python's library with changes that one module sees."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace


def stand_in(module: ModuleType, **changed: object) -> SimpleNamespace:
    """Return a module with changed names, to be set where one module imports it.

    Other threads of the process use the same module: a `time.sleep` that returns at once would let each of
    them spin.
    """
    return SimpleNamespace(**vars(module) | changed)
