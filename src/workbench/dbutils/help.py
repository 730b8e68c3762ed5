"""`help()` on each level of `dbutils`: lists of methods, with their docstrings."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterator

from topiclake.errors import ConfigError


class Documented:
    """A part of `dbutils`: its parts, its methods, and what they do."""

    def help(self, method: str = "") -> None:
        """Describe one method or part, or list all.

        Raises:
            ConfigError: No method or part has that name.
        """
        if method:
            part = vars(self).get(method)
            if isinstance(part, Documented):
                part.help()
                return
            documented = method_of(self, method)
            text = f"{_call(method, documented)}\n\n{inspect.getdoc(documented)}"
        else:
            text = "\n".join([inspect.getdoc(self) or "", "", *self._lines()])
        sys.stdout.write(f"{text}\n")

    def _lines(self) -> Iterator[str]:
        for name, part in vars(self).items():
            if isinstance(part, Documented):
                yield f"{name}: {_first_line(part)}"
        for name in _public(type(self)):
            method = getattr(self, name)
            yield f"{_call(name, method)}: {_first_line(method)}"


def method_of(part: Documented, name: str) -> Callable[..., object]:
    """Return a part's method by its name.

    Raises:
        ConfigError: The part has no method of that name.
    """
    names = [method for method in _public(type(part)) if callable(getattr(part, method))]
    if name not in names:
        names += [method for method, value in vars(part).items() if isinstance(value, Documented)]
        near = difflib.get_close_matches(name, names, n=1)
        problem = f"there is no method '{name}'; there are {', '.join(names)}"
        raise ConfigError(problem, f"use {(near or names)[0]}", method=name, allowed=tuple(names))
    method: Callable[..., object] = getattr(part, name)
    return method


def _public(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _call(name: str, method: Callable[..., object]) -> str:
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(method).parameters.values()
    ]
    return f"{name}({', '.join(map(str, parameters))})"
