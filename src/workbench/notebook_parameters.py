"""The parameters of a notebook, read from its text before anything is started."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping

from topiclake.errors import ConfigError
from workbench.notebook_inclusion import inclusions
from workbench.notebook_source import Cell, NotebookSource

WIDGET_KINDS = frozenset({"text", "dropdown", "combobox", "multiselect"})


def widget_names(source: NotebookSource) -> set[str] | None:
    """Return the names of the widgets of a notebook and of those that it includes.

    None when one is not written as a literal.
    """
    names: set[str] = set()
    for one in (source, *(included.source for included in inclusions(source))):
        for cell in one.runnable:
            for name in _defined_widgets(cell):
                if name is None:
                    return None
                names.add(name)
    return names


def check_parameters(source: NotebookSource, parameters: Mapping[str, str]) -> None:
    """Refuse a value that no widget takes, of the run or of a `%run`, before anything is started.

    Raises:
        ConfigError: There is one, or an included notebook does not exist.
        NotebookSourceError: An included notebook cannot run here, or includes itself.
    """
    _check_names(source, parameters, "-p ")
    for included in inclusions(source):
        _check_names(included.source, included.values, "$")


def _check_names(source: NotebookSource, values: Mapping[str, str], before: str) -> None:
    names = widget_names(source)
    for name in values:
        if names is not None and name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise ConfigError(
                f"{source.path.name} has no widget '{name}'; "
                f"it has {', '.join(sorted(names)) or 'no widgets'}",
                f"{before}{near[0]}={values[name]}" if near else "one of these names",
            )


def _defined_widgets(cell: Cell) -> Iterator[str | None]:
    if cell.language not in ("python", "pip"):
        return
    python = [line for line in cell.source.split("\n") if not line.startswith("%")]
    try:
        tree = ast.parse("\n".join(python))
    except SyntaxError:
        return  # the cell itself will say so
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="widgets"), attr=kind)):
                if kind in WIDGET_KINDS:
                    yield _literal([*node.args[:1], *(w.value for w in node.keywords if w.arg == "name")])


def _literal(names: list[ast.expr]) -> str | None:
    match names:
        case [ast.Constant(value=str(name)), *_]:
            return name
        case _:
            return None
