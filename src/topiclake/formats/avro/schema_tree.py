"""Avro schemas as trees: names resolved, named types expanded where they are used, mistakes reported.

Pure Python. The grammar is https://avro.apache.org/docs/1.12.0/specification/#schema-declaration. Some
producers are laxer than Java's parser (dots in field names, types used before they are defined); so is this.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from topiclake.formats.avro.schema_json import (
    MAX_DEPTH,
    PRIMITIVES,
    Json,
    SchemaRefusedError,
    definitions,
    full_name,
    loads,
    own_name,
    texts,
)

#: Logical types that change the meaning of a value, by the types that may carry them. The type `uuid` is not
#: among them: the column shows the same text or bytes with it and without it.
LOGICAL = {
    "int": {"date", "time-millis"},
    "long": {
        "time-micros",
        *(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")),
    },
    "bytes": {"decimal"},
    "fixed": {"decimal", "duration"},
}
#: A named type is expanded at each use, as Spark does; a limit keeps a small text from becoming a huge tree.
MAX_FIELDS = 20_000
#: Spark's widest decimal, in digits.
MAX_PRECISION = 38
SYMBOL = re.compile(r"[^\W\d]\w*")


class _Missing:
    """A field without a default, which is not the same as the default null."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@dataclass(frozen=True)
class Field:
    """A field of a record; no other field of the trees with the same counter has its `key`."""

    key: int
    name: str
    type: Node
    default: Json = MISSING
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """One type at one place. `name` is the full original name, `key` as in Field."""

    kind: str
    key: int = 0
    name: str = ""
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    default: str = ""  # the symbol that an enum reads for one that it lacks
    fields: tuple[Field, ...] = ()
    items: tuple[Node, ...] = ()  # the one type inside an array or a map
    branches: tuple[Node, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def short_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        if self.kind == "union":
            return "a union of " + " and ".join(str(each) for each in self.branches)
        if self.logical == "decimal":
            return f"decimal({self.precision},{self.scale})"
        return self.logical or (f"fixed({self.size})" if self.kind == "fixed" else self.kind)


NULL = Node("null")


def split(node: Node) -> tuple[bool, tuple[Node, ...]]:
    """Return whether null is allowed, and the types that are not null."""
    branches = node.branches if node.kind == "union" else (node,)
    types = tuple(each for each in branches if each.kind != "null")
    return len(types) < len(branches), types


def child(path: str, name: str) -> str:
    """Return the path of a record's field."""
    return f"{path}.{name}" if path else name


def shown_path(path: str) -> str:
    """Name a place in a sentence."""
    return f"the value{path}" if path[:1] in ("", "[", "{") else f"field {path}"


@dataclass
class Parser:
    """Builds trees whose keys differ from each other's."""

    last_key: int = 0
    _defined: dict[str, tuple[Json, str]] = field(default_factory=dict)
    _fields: int = 0

    def parse(self, schema: str, references: Iterable[str] = ()) -> Node:
        """Return the tree of one schema.

        Args:
            schema: Avro JSON.
            references: Avro JSON of the schemas whose types it names, of those that they name, and so on.

        Raises:
            SchemaRefusedError: A text is no Avro schema, or the schema contains itself, or is too large.
        """
        tree = loads(schema)
        own_definitions = list(definitions(tree))
        for name, number in Counter(name for name, _ in own_definitions).items():
            if number > 1:
                raise SchemaRefusedError(f"{name} is defined twice")
        referenced = (definition for text in references for definition in definitions(loads(text)))
        self._defined, self._fields = dict((*referenced, *own_definitions)), 0
        return self._node(tree, "", "", ())

    def new_key(self) -> int:
        """Return a key that no field or type has yet."""
        self.last_key += 1
        return self.last_key

    def _node(self, tree: Json, namespace: str, path: str, parents: tuple[str, ...], depth: int = 0) -> Node:
        if depth > MAX_DEPTH:
            raise SchemaRefusedError(f"the schema is nested more than {MAX_DEPTH} levels deep")
        if isinstance(tree, str):
            return self._by_name(tree, namespace, path, parents, depth)
        if isinstance(tree, list):
            return self._union(tree, namespace, path, parents, depth)
        kind = tree.get("type") if isinstance(tree, dict) else None
        if kind in ("array", "map"):
            inner, mark = ("items", "[]") if kind == "array" else ("values", "{}")
            items = self._node(tree.get(inner), namespace, path + mark, parents, depth + 1)
            return Node(kind, items=(items,))
        if kind in ("record", "error"):
            return self._record(tree, namespace, path, parents, depth)
        if kind == "enum":
            return self._enum(tree, namespace, path)
        if kind == "fixed":
            return self._fixed(tree, namespace, path)
        if isinstance(kind, str) and kind in PRIMITIVES:
            return _with_logical(Node(kind), tree, path)
        if kind is None:
            raise SchemaRefusedError(f"{shown_path(path)}: {json.dumps(tree)[:100]} is no Avro type")
        return self._node(kind, namespace, path, parents, depth + 1)

    def _by_name(self, name: str, namespace: str, path: str, parents: tuple[str, ...], depth: int) -> Node:
        if name in PRIMITIVES:
            return Node(name)
        for full in (full_name(name, namespace), name):
            if full in self._defined:
                return self._node(*self._defined[full], path, parents, depth)
        raise SchemaRefusedError(f"{shown_path(path)}: unknown type {name}")

    def _union(self, tree: Json, namespace: str, path: str, parents: tuple[str, ...], depth: int) -> Node:
        branches = tuple(self._node(each, namespace, path, parents, depth + 1) for each in tree)
        marks = [each.name or each.kind for each in branches]
        if "union" in marks or len(set(marks)) < len(marks) or not marks:
            raise SchemaRefusedError(
                f"{shown_path(path)}: a union of {', '.join(marks) or 'nothing'} is no Avro type"
            )
        return Node("union", branches=branches)

    def _record(self, tree: Json, namespace: str, path: str, parents: tuple[str, ...], depth: int) -> Node:
        name, inner = own_name(tree, namespace)
        if name in parents:
            short = name.rpartition(".")[2]
            raise SchemaRefusedError(f"{short} contains itself (at {path}); Spark has no recursive types")
        if not isinstance(tree.get("fields"), list):
            raise SchemaRefusedError(f"{shown_path(path)}: {name} is a record without a list of fields")
        parents = (*parents, name)
        fields = tuple(self._field(each, inner, path, parents, depth) for each in tree["fields"])
        if len({each.name for each in fields}) < len(fields):
            raise SchemaRefusedError(f"{shown_path(path)}: two fields of {name} have the same name")
        return Node("record", self.new_key(), name, fields=fields, aliases=_aliases(tree, inner))

    def _field(self, tree: Json, namespace: str, path: str, parents: tuple[str, ...], depth: int) -> Field:
        name = tree.get("name") if isinstance(tree, dict) else None
        if not isinstance(name, str):
            raise SchemaRefusedError(f"{shown_path(path)}: a field of {parents[-1]} has no name")
        self._fields += 1
        if self._fields > MAX_FIELDS:
            raise SchemaRefusedError(f"the schema has more than {MAX_FIELDS} fields, expanded as Spark does")
        node = self._node(tree.get("type"), namespace, child(path, name), parents, depth + 1)
        return Field(self.new_key(), name, node, tree.get("default", MISSING), texts(tree.get("aliases")))

    def _enum(self, tree: Json, namespace: str, path: str) -> Node:
        name, inner = own_name(tree, namespace)
        symbols, default = texts(tree.get("symbols")), tree.get("default")
        if list(symbols) != tree.get("symbols") or len(set(symbols)) < len(symbols):
            raise SchemaRefusedError(
                f"{shown_path(path)}: {name} is an enum without a list of different symbols"
            )
        if invalid := [each for each in symbols if not SYMBOL.fullmatch(each)]:
            raise SchemaRefusedError(f"{shown_path(path)}: symbol '{invalid[0]}' of {name} is no Avro name")
        fallback = default if default in symbols else ""
        return Node(
            "enum",
            self.new_key(),
            name,
            symbols=symbols,
            default=fallback,
            aliases=_aliases(tree, inner),
        )

    def _fixed(self, tree: Json, namespace: str, path: str) -> Node:
        name, inner = own_name(tree, namespace)
        size = tree.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise SchemaRefusedError(f"{shown_path(path)}: {name} is a fixed without a size")
        node = Node("fixed", self.new_key(), name, size=size, aliases=_aliases(tree, inner))
        return _with_logical(node, tree, path)


def _aliases(tree: Json, namespace: str) -> tuple[str, ...]:
    return tuple(full_name(each, namespace) for each in texts(tree.get("aliases")))


def _with_logical(node: Node, tree: Json, path: str) -> Node:
    """Add the logical type, if it is one of this type's; Avro says that any other is ignored."""
    logical = str(tree.get("logicalType"))
    if logical not in LOGICAL.get(node.kind, ()) or (logical == "duration" and node.size != 12):
        return node
    if logical != "decimal":
        return replace(node, logical=logical)
    precision, scale = tree.get("precision"), tree.get("scale", 0)
    if not _is_valid_decimal(precision, scale, node):
        return node
    if precision > MAX_PRECISION:
        raise SchemaRefusedError(
            f"{shown_path(path)}: a decimal of {precision} digits; Spark's hold {MAX_PRECISION}"
        )
    return replace(node, logical=logical, precision=precision, scale=scale)


def _is_valid_decimal(precision: Json, scale: Json, node: Node) -> bool:
    if any(not isinstance(each, int) or isinstance(each, bool) for each in (precision, scale)):
        return False
    digits = math.floor(math.log10(2) * (8 * node.size - 1)) if node.kind == "fixed" else precision
    return bool(0 <= scale <= precision and 0 < precision <= digits)
