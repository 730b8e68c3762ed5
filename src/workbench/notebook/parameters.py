"""The parameters of a notebook, read from its text before anything is started."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topiclake.config.notebook import KEYS
from topiclake.errors import ConfigError
from workbench.notebook.inclusion import inclusions
from workbench.notebook.source import NotebookSource

WIDGET_KINDS = frozenset({"text", "dropdown", "combobox", "multiselect"})
LIBRARY = "topiclake"
#: The function that defines widgets for a notebook, and its keywords that name no widget.
SETTINGS = f"{LIBRARY}.notebook_settings"
OPTIONS = frozenset({"pipeline", "env", "conf"})


def widget_names(source: NotebookSource) -> set[str] | None:
    """Return the names of the widgets of a notebook and of those that it includes.

    Where the pipeline is a parameter of `topiclake.notebook_settings`, all keys of a pipeline are among them.
    The result is `None` if the text does not show all names. Then a name is no literal, a cell is no Python,
    or `dbutils` is passed to other code.
    """
    sources = (source, *(included.source for included in inclusions(source)))
    cells = [cell for part in sources for cell in part.runnable if cell.language in ("python", "pip")]
    try:
        nodes = [node for cell in cells for node in ast.walk(_parsed(cell.source))]
    except SyntaxError:
        return None
    defined = set(_defined_widgets(nodes))
    names = {name for name in defined if name is not None}
    return names if names == defined else None


def check_parameters(source: NotebookSource, parameters: Mapping[str, str]) -> None:
    """Refuse a value that no widget has, of the run or of a `%run`, before anything is started.

    Raises:
        ConfigError: No widget has the name of a value, or an included notebook does not exist.
        NotebookSourceError: An included notebook cannot run here, or includes itself.
    """
    _check_names(source, parameters, "-p ")
    for included in inclusions(source):
        _check_names(included.source, included.values, "$", f"{included.location}: ")


def _check_names(source: NotebookSource, values: Mapping[str, str], before: str, location: str = "") -> None:
    names = widget_names(source)
    for name in values:
        if names is not None and name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise ConfigError(
                f"{location}{source.path.name} has no widget '{name}'; "
                f"it has {', '.join(sorted(names)) or 'no widgets'}",
                f"use {before}{near[0]}={values[name]}" if near else "use one of these names",
                notebook=source.path.name,
                widget=name,
                allowed=tuple(sorted(names)),
                location=location.removesuffix(": "),
            )


def _defined_widgets(nodes: Sequence[ast.AST]) -> Iterator[str | None]:
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    looked_into = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    accessed = {call.func.value for call in calls if isinstance(call.func, ast.Attribute)}
    library = dict(_library_names(nodes))
    called = {call: _full_name(call.func, library) for call in calls}
    handed = {
        argument
        for call in calls
        if called[call]
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
    }
    allowed = looked_into | handed
    for node in nodes:
        match node:
            case ast.Call() if called[node] == SETTINGS:
                yield from _settings_parameters(node)
            case ast.Name(id="dbutils") if node not in allowed:
                yield None
            case ast.Attribute(value=ast.Name(id="dbutils"), attr="widgets") if node not in accessed:
                yield None
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="widgets"), attr=kind)):
                if kind in WIDGET_KINDS:
                    yield _literal([*node.args[:1], *(w.value for w in node.keywords if w.arg == "name")])


def _settings_parameters(call: ast.Call) -> Iterator[str | None]:
    """Return the parameters that a call of `topiclake.notebook_settings` declares."""
    yield "env"
    yield from (_literal([key]) for key in call.args[1:])
    yield from (keyword.arg for keyword in call.keywords if keyword.arg not in OPTIONS)
    match [keyword.value for keyword in call.keywords if keyword.arg == "pipeline"]:
        case [ast.Constant()]:
            pass
        case [] | [ast.List() | ast.Tuple()]:
            yield from ("pipeline", *KEYS)
        case _:
            yield None


def _library_names(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """Return a notebook's imports of the library, as pairs of the notebook's name and the full name."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from ((alias.asname or alias.name, LIBRARY) for alias in names if alias.name == LIBRARY)
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == LIBRARY:
                yield from ((alias.asname or alias.name, f"{module}.{alias.name}") for alias in names)


def _full_name(function: ast.expr, library: Mapping[str, str]) -> str:
    """Return the full name of a function of the library; "" if the function is another one."""
    name, dot, attributes = ast.unparse(function).partition(".")
    return f"{library[name]}{dot}{attributes}" if name in library else ""


def _parsed(source: str) -> ast.Module:
    python = [line for line in source.split("\n") if not line.startswith("%")]
    try:
        return ast.parse("\n".join(python))
    except SyntaxError:
        # Slow to import, and few notebooks need it: for `!ls`, and magics inside of a block.
        from IPython.core.inputtransformer2 import TransformerManager

        transformer: Any = TransformerManager  # it carries no types
        return ast.parse(str(transformer().transform_cell(source)))


def _literal(names: list[ast.expr]) -> str | None:
    match names:
        case [ast.Constant(value=str(name)), *_]:
            return name
        case _:
            return None
