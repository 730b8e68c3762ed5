"""One reader schema for all versions of a subject: how a version is added to it (docs/avro.md).

A reader tree has the same nodes as a version's. Its unions have one form: null first, and never a union of
one type. Its fields are `Column`s, which also have a name in the table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from topiclake.formats.avro.schema_json import Json, SchemaRefusedError
from topiclake.formats.avro.schema_tree import MISSING, NULL, Field, Node, child, shown_path, split

#: Avro's promotions, and no others: each type may be read as the types after it.
WIDER = ("int", "long", "float", "double")
#: When a version's branch of a union is one of the reader's: the first of these that is unambiguous.
MATCHES: tuple[Callable[[Node, Node], bool], ...] = (
    lambda version, reader: version.name == reader.name,
    lambda version, reader: reader.name in version.aliases or version.name in reader.aliases,
    lambda version, reader: version.short_name == reader.short_name,
)


@dataclass(frozen=True)
class Column(Field):
    """A field of a reader's record.

    Attributes:
        default: The default in the newest version, in terms of `declared`; MISSING if that version lacks it.
        column: Its permanent name in the table.
        former: Its other names in versions, which aliases connect with the first one.
        is_optional: Whether a version lacks it.
        declared: Its type in the newest version that has it.
    """

    default: Json = field(default=MISSING, compare=False)
    column: str = ""
    former: tuple[str, ...] = ()
    is_optional: bool = False
    declared: Node = field(default=NULL, compare=False)


@dataclass
class Union:
    """Adds versions to a reader tree.

    Attributes:
        links: The reader's field or named type for each of a version's, by key. A key that is not in it is
            the same in the reader, which adopted the field or type.
    """

    links: dict[int, int] = field(default_factory=dict)

    def merged(self, reader: Node, version: Node, path: str = "") -> Node:
        """Return the type that reads what both read.

        Raises:
            SchemaRefusedError: No type reads both without a guess; names the path.
        """
        reader_null, reader_branches = split(reader)
        version_null, version_branches = split(version)
        branches = self._branches(reader_branches, version_branches, path)
        return _joined(reader_null or version_null, branches)

    def _branches(self, reader: tuple[Node, ...], version: tuple[Node, ...], path: str) -> tuple[Node, ...]:
        if len(reader) > 1 and len(version) > 1:
            return self._several(reader, version, path)
        if not reader or not version:
            return reader + tuple(self.adopted(each) for each in version)
        if len(reader) == len(version) == 1:
            return (self._node(reader[0], version[0], path),)
        merged = reader[0]
        for each in (*reader[1:], *version):
            if (wider := promoted(merged, each)) is None:
                raise _refused(path, _joined(False, version), _joined(False, reader))
            merged = wider
        return (merged,)

    def _several(self, reader: tuple[Node, ...], version: tuple[Node, ...], path: str) -> tuple[Node, ...]:
        """Match two unions branch by branch, and append what is new.

        Nothing is promoted here: Java chooses the branch of exactly the writer's type, if the union has one.
        """
        merged = list(reader)
        pairs = _pairs(reader, version)
        for position, each in enumerate(version):
            if position in pairs:
                merged[pairs[position]] = self._node(reader[pairs[position]], each, path)
            else:
                merged.append(self.adopted(each))
        return tuple(merged)

    def _node(self, reader: Node, version: Node, path: str) -> Node:
        if reader.kind != version.kind:
            if (wider := promoted(reader, version)) is None:
                raise _refused(path, version, reader)
            return wider
        if reader.logical != version.logical or (reader.scale, reader.size) != (version.scale, version.size):
            raise _refused(path, version, reader)
        self.links[version.key] = reader.key
        if reader.kind == "record":
            return self._record(reader, version, path)
        if reader.items:
            mark = "[]" if reader.kind == "array" else "{}"
            return replace(reader, items=(self.merged(reader.items[0], version.items[0], path + mark),))
        symbols = tuple(dict.fromkeys(reader.symbols + version.symbols))
        return replace(
            _with_aliases(reader, version),
            symbols=symbols,
            precision=max(reader.precision, version.precision),
        )

    def _record(self, reader: Node, version: Node, path: str) -> Node:
        columns = list(_columns(reader))
        used_names = {each.column.lower() for each in columns}
        matches = _matches(columns, version.fields)
        for position, column in enumerate(columns):
            if (each := matches.get(position)) is None:
                columns[position] = replace(column, is_optional=True, default=MISSING)
                continue
            self.links[each.key] = column.key
            inner = self.merged(column.type, each.type, child(path, each.name))
            renamed = _with_former_name(column, each.name)
            columns[position] = replace(renamed, type=inner, default=each.default, declared=each.type)
        matched = {each.key for each in matches.values()}
        new = [each for each in version.fields if each.key not in matched]
        columns += (replace(self._column(each, used_names), is_optional=True) for each in new)
        return replace(_with_aliases(reader, version), fields=tuple(columns))

    def _column(self, new: Field, used_names: set[str]) -> Column:
        column, inner = _safe_name(new.name, used_names), self.adopted(new.type)
        return Column(new.key, new.name, inner, new.default, declared=new.type, column=column)

    def adopted(self, version: Node) -> Node:
        """Return a type that the reader did not have yet, as the reader writes it."""
        if version.kind == "union":
            has_null, branches = split(version)
            return _joined(has_null, tuple(self.adopted(each) for each in branches))
        used_names: set[str] = set()
        columns = tuple(self._column(each, used_names) for each in version.fields)
        items = tuple(self.adopted(each) for each in version.items)
        return replace(version, fields=columns, items=items)


def _with_aliases(reader: Node, version: Node) -> Node:
    """Return a named type with the other names that it has in a version."""
    aliases = dict.fromkeys((*reader.aliases, version.name, *version.aliases))
    aliases.pop(reader.name, None)
    return reader if tuple(aliases) == reader.aliases else replace(reader, aliases=tuple(aliases))


def promoted(first: Node, second: Node) -> Node | None:
    """Return the type that reads both by Avro's promotions, or None if no type does."""
    if first.logical or second.logical:
        return None
    if first.kind in WIDER and second.kind in WIDER:
        return max(first, second, key=lambda each: WIDER.index(each.kind))
    return first if {first.kind, second.kind} <= {"string", "bytes"} else None


def _joined(has_null: bool, branches: tuple[Node, ...]) -> Node:
    if len(branches) == 1 and not has_null:
        return branches[0]
    return Node("union", branches=(NULL, *branches) if has_null else branches) if branches else NULL


def _refused(path: str, version: Node, reader: Node) -> SchemaRefusedError:
    return SchemaRefusedError(f"{shown_path(path)}: {version} cannot be read as {reader}")


def _pairs(reader: tuple[Node, ...], version: tuple[Node, ...]) -> dict[int, int]:
    """Return the reader's branch for each of a version's that has one, by position.

    A union has an unnamed type once at most. A named one is found by its full name, then by an alias, then by
    its short name where both sides have that once.
    """
    pairs: dict[int, int] = {}
    for is_same in MATCHES:
        paired = set(pairs.values())
        matches = [
            (position, number)
            for position, each in enumerate(version)
            for number, other in enumerate(reader)
            if position not in pairs and number not in paired
            if each.kind == other.kind and is_same(each, other)
        ]
        versions, readers = Counter(each for each, _ in matches), Counter(each for _, each in matches)
        pairs |= {each: number for each, number in matches if versions[each] == readers[number] == 1}
    return pairs


def _columns(reader: Node) -> Iterator[Column]:
    """Yield a reader record's fields, which are columns."""
    return (each for each in reader.fields if isinstance(each, Column))


def _matches(columns: list[Column], fields: tuple[Field, ...]) -> dict[int, Field]:
    """Return the version's field for each position of a column that has one.

    By its name first; then by a name that a version gave the column, or by an alias that names one.
    """
    positions = {each.name: position for position, each in enumerate(columns)}
    matches = {positions[each.name]: each for each in fields if each.name in positions}
    former = {name: position for position, each in enumerate(columns) for name in each.former}
    for each in fields:
        if each.name in positions:
            continue
        by_alias = (positions.get(alias, former.get(alias)) for alias in each.aliases)
        for position in (former.get(each.name), *by_alias):
            if position is not None and position not in matches:
                matches[position] = each
                break
    return matches


def _with_former_name(column: Column, name: str) -> Column:
    """Return the column with one more name by which later versions may mean it."""
    return column if name in (column.name, *column.former) else replace(column, former=(*column.former, name))


def _safe_name(name: str, used_names: set[str]) -> str:
    """Return a name of ASCII letters, digits and `_` that is not taken yet but for case, and take it."""
    safe = re.sub(r"[^A-Za-z0-9_]", "_", name)
    safe = f"_{safe}" if not safe or safe[0].isdigit() else safe
    numbered, number = safe, 2
    while numbered.lower() in used_names:
        numbered, number = f"{safe}_{number}", number + 1
    used_names.add(numbered.lower())
    return numbered
