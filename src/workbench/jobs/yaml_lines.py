"""YAML files with the line of each key, so that an error can name it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from topiclake.errors import ConfigError

KeyPath = tuple[str | int, ...]
_FIX = "fix that line"


@dataclass(frozen=True)
class YamlFile:
    """A file's content and the line of each of its keys and list entries."""

    path: Path
    content: Any
    lines: dict[KeyPath, int]

    def line(self, key_path: KeyPath) -> int:
        """Return the line of a key; of the nearest one above it when it is not in the file."""
        while key_path not in self.lines and key_path:
            key_path = key_path[:-1]
        return self.lines.get(key_path, 1)

    def error(self, key_path: KeyPath, problem: str, remedy: str = _FIX) -> ConfigError:
        """Return an error that names file and line."""
        return _error(self.path, self.line(key_path), problem, remedy)


class _Loader(yaml.SafeLoader):
    """Names the place of a value that does not fit its form or tag."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, IndexError, AttributeError) as error:
            kind = node.tag.rpartition(":")[2]
            problem = f"'{node.value}' is not of type {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


def read_yaml(path: Path) -> YamlFile:
    """Read a file.

    Raises:
        ConfigError: It is missing, not UTF-8, not YAML, has a key twice or a value that is not of its type.
    """
    text = _text(path)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines = dict(_lines(path, node, ())) if node else {}
        content = loader.construct_document(node) if node else {}
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _no_yaml(path, line, error.problem) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _no_yaml(path, line, f"character #x{error.character:02x} is not allowed") from None
    except (ValueError, RecursionError) as error:
        raise _no_yaml(path, loader.line + 1, error) from None
    return YamlFile(path, content, lines)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror})",
            "correct the path",
            file=str(path),
            reason="unreadable",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text ({error.reason})",
            "save the file as UTF-8",
            file=str(path),
            reason="no_text",
        ) from error


def _lines(
    path: Path, node: yaml.Node, key_path: KeyPath, parents: tuple[int, ...] = ()
) -> Iterator[tuple[KeyPath, int]]:
    if id(node) in parents:
        problem = "an alias is inside its own anchor"
        raise _error(path, node.start_mark.line + 1, problem, reason="alias")
    if isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = str(key.value)
            if name in names:
                problem = f"key '{name}' is defined here a second time"
                raise _error(path, line, problem, "remove one of them", key=name, reason="twice")
            names.add(name)
            yield (*key_path, name), line
            yield from _lines(path, value, (*key_path, name), (*parents, id(node)))
    elif isinstance(node, yaml.SequenceNode):
        for at, entry in enumerate(node.value):
            yield (*key_path, at), entry.start_mark.line + 1
            yield from _lines(path, entry, (*key_path, at), (*parents, id(node)))


def _no_yaml(path: Path, line: int, problem: object) -> ConfigError:
    return _error(path, line, f"not valid YAML ({problem})", reason="no_yaml")


def _error(path: Path, line: int, problem: str, remedy: str = _FIX, **fields: str) -> ConfigError:
    return ConfigError(f"{path}, line {line}: {problem}", remedy, file=str(path), line=line, **fields)
