"""`dbutils.widgets`: a notebook's parameters."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from topiclake.errors import ConfigError
from workbench.dbutils.help import Documented


class InputWidgetNotDefined(ConfigError):  # noqa: N818 - Databricks' name
    """A widget is read or removed that no cell has defined.

    Define the widget in an earlier cell, or correct its name.
    """

    id: ClassVar[str] = "TL-WIDGET-001"

    @classmethod
    def of(cls, name: str, defined: Sequence[str]) -> InputWidgetNotDefined:
        """Name the widget, and those that exist."""
        near = difflib.get_close_matches(name, defined, n=1)
        remedy = f"use '{near[0]}'" if near else f"call dbutils.widgets.text('{name}', '<default>') first"
        return cls(
            f"no input widget named '{name}' is defined; defined are {_listed(defined)}",
            remedy,
            widget=name,
            allowed=tuple(defined),
        )


@dataclass(frozen=True)
class Widget:
    """One parameter: its kind, its value and what it may be."""

    name: str
    kind: str
    value: str
    label: str
    choices: tuple[str, ...] = ()


class Widgets(Documented):
    """The parameters of the notebook; every value is a string.

    Args:
        parameters: Values given to the run; they win over a widget's default.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = dict(parameters)
        self._widgets: dict[str, Widget] = {}
        self._defined_names: set[str] = set()

    def text(self, name: str, defaultValue: str, label: str | None = None) -> None:  # noqa: N803
        """Define a parameter that accepts any text."""
        self._define("text", name, defaultValue, (), label)

    def dropdown(
        self,
        name: str,
        defaultValue: str,  # noqa: N803
        choices: Sequence[str],
        label: str | None = None,
    ) -> None:
        """Define a parameter that accepts one of the choices."""
        self._define("dropdown", name, defaultValue, choices, label)

    def combobox(
        self,
        name: str,
        defaultValue: str,  # noqa: N803
        choices: Sequence[str],
        label: str | None = None,
    ) -> None:
        """Define a parameter that accepts one of the choices or any other text."""
        self._define("combobox", name, defaultValue, choices, label)

    def multiselect(
        self,
        name: str,
        defaultValue: str,  # noqa: N803
        choices: Sequence[str],
        label: str | None = None,
    ) -> None:
        """Define a parameter that accepts some of the choices, joined by commas."""
        self._define("multiselect", name, defaultValue, choices, label)

    def get(self, name: str) -> str:
        """Return the value of a parameter.

        Raises:
            InputWidgetNotDefined: No cell has defined it.
        """
        if name not in self._widgets:
            raise InputWidgetNotDefined.of(name, sorted(self._widgets))
        return self._widgets[name].value

    def getArgument(  # noqa: N802
        self,
        name: str,
        defaultValue: str | None = None,  # noqa: N803
    ) -> str:
        """Return the value of a parameter, or the default when no cell has defined it."""
        if name not in self._widgets and defaultValue is not None:
            return defaultValue
        return self.get(name)

    def getAll(self) -> dict[str, str]:  # noqa: N802
        """Return every parameter and its value; as on Databricks, also those of the run without a widget."""
        return self._parameters | {name: widget.value for name, widget in self._widgets.items()}

    def remove(self, name: str) -> None:
        """Remove a parameter.

        Raises:
            InputWidgetNotDefined: No cell has defined it.
        """
        self.get(name)
        del self._widgets[name]

    def removeAll(self) -> None:  # noqa: N802
        """Remove every parameter."""
        self._widgets.clear()

    def _define(self, kind: str, name: str, default: str, choices: Sequence[str], label: str | None) -> None:
        for part, value in (("name", name), ("default", default), *(("choice", item) for item in choices)):
            if not isinstance(value, str):
                problem = f"widget '{name}': its {part} {value!r} is not a string"
                raise ConfigError(problem, f"pass '{value}'", widget=name, part=part, found=repr(value))
        if kind in ("dropdown", "multiselect"):
            _check_choice(name, "default", kind, default, choices)
        value = self._parameters.get(name, default)
        self._defined_names.add(name)
        if name in self._widgets and name not in self._parameters:
            # As on Databricks: a widget that exists already keeps its value.
            value = self._widgets[name].value
        if kind in ("dropdown", "multiselect"):
            _check_choice(name, "value", kind, value, choices)
        self._widgets[name] = Widget(name, kind, value, label or name, tuple(choices))


@contextmanager
def with_values(widgets: Widgets, values: Mapping[str, str]) -> Iterator[None]:
    """Give values to the widgets that the block defines, as `%run $name="value"` does.

    A widget that existed before has its own value again afterwards, unless the block removed it.
    """
    parameters, before = widgets._parameters, dict(widgets._widgets)
    widgets._parameters = {**parameters, **values}
    try:
        yield
    finally:
        widgets._parameters = parameters
        restored_names = before.keys() & widgets._widgets.keys()
        widgets._widgets.update({name: before[name] for name in restored_names})


def unused_parameters(widgets: Widgets) -> list[str]:
    """Return the parameters of the run that no widget has taken so far."""
    return sorted(widgets._parameters.keys() - widgets._defined_names)


def _check_choice(name: str, role: str, kind: str, value: str, choices: Sequence[str]) -> None:
    chosen = [part for part in value.split(",") if part] if kind == "multiselect" else [value]
    for choice in chosen:
        if choice not in choices:
            near = difflib.get_close_matches(choice, choices, n=1) or list(choices[:1])
            raise ConfigError(
                f"widget '{name}': {role} '{choice}' is not one of its choices {_listed(choices)}",
                f"use '{near[0]}'" if near else "pass a list of choices",
                widget=name,
                part=role,
                found=choice,
                allowed=tuple(choices),
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
