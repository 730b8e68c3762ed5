"""Names of tables in a catalog, which may be in any place of a table's path.

A location is a path (`/mnt/datalake/delta/gps`, `abfss://…`) or a name (`catalog.schema.gps`, `schema.gps`).
"""

from __future__ import annotations

import re

#: The placeholder for the topic's name in locations and subjects, if each topic has a separate table.
TOPIC = "{topic}"

_PART = r"(?:`(?:[^`]|``)+`|(?=[A-Za-z_{])(?:\w|\{topic\})+)"
_NAME = re.compile(rf"{_PART}(?:\.{_PART}){{1,2}}", re.ASCII)
_PARTS = re.compile(_PART, re.ASCII)
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
#: Characters that no catalog allows in the name of a table or schema.
#: Source: https://docs.databricks.com/sql/language-manual/sql-ref-names.html
_FORBIDDEN = re.compile(r"[./\s\x00-\x1f\x7f]")


def is_name(location: str) -> bool:
    """Return whether a location is the name of a table, not a path."""
    return _NAME.fullmatch(location) is not None


def check_name(value: str) -> str:
    """Return a name with backticks only where they are needed.

    Raises:
        ValueError: It is not a name that a catalog allows.
    """
    if not is_name(value):
        raise ValueError("must be <schema>.<table> or <catalog>.<schema>.<table>, special characters in `…`")
    *namespace, table = parts(value)
    if any(map(_FORBIDDEN.search, (*namespace, table))):
        raise ValueError("must hold no dot, slash or space within a part: no catalog allows them")
    if any(TOPIC in part for part in namespace):
        raise ValueError(f"{TOPIC} belongs into its last part, the table")
    return _joined([*namespace, table])


def for_topic(location: str, topic: str) -> str:
    """Return a location with the topic's name in place of `{topic}`."""
    if not is_name(location):
        return location.replace(TOPIC, topic)
    return _joined([part.replace(TOPIC, topic) for part in parts(location)])


def is_allowed(location: str) -> bool:
    """Return whether a location is a path, or a name that a catalog allows."""
    return not (is_name(location) and any(map(_FORBIDDEN.search, parts(location))))


def folded(location: str) -> str:
    """Return a text that is the same for all spellings of a location: catalogs ignore the case of names."""
    return quoted(location).lower().removeprefix("`spark_catalog`.") if is_name(location) else location


def suffixed(location: str, suffix: str) -> str:
    """Return the location of a table next to another one: its name or folder has the suffix."""
    if not is_name(location):
        return f"{location.rstrip('/')}{suffix}"
    *namespace, table = parts(location)
    return _joined([*namespace, f"{table}{suffix}"])


def without_suffix(location: str, suffix: str) -> str | None:
    """Return the location of the table that another one is next to; None if it has not the suffix."""
    if not is_name(location):
        return location.removesuffix(suffix) if location.endswith(suffix) else None
    *namespace, table = parts(location)
    return _joined([*namespace, table.removesuffix(suffix)]) if table.endswith(suffix) else None


def quoted(name: str) -> str:
    """Return a name for SQL, each part in backticks."""
    return ".".join(map(_quoted, parts(name)))


def schema_of(name: str) -> str:
    """Return the schema of a table's name, with its catalog if the name has one, for SQL."""
    return ".".join(map(_quoted, parts(name)[:-1]))


def table_of(name: str) -> str:
    """Return the last part of a table's name, without backticks."""
    return parts(name)[-1]


def unquoted(name: str) -> str:
    """Return a name without backticks, for people and other systems."""
    return ".".join(parts(name))


def parts(name: str) -> list[str]:
    """Return the parts of a name, without backticks."""
    return [part[1:-1].replace("``", "`") if part.startswith("`") else part for part in _PARTS.findall(name)]


def _joined(identifiers: list[str]) -> str:
    return ".".join(
        each if _PLAIN.fullmatch(each.replace(TOPIC, "topic")) else _quoted(each) for each in identifiers
    )


def _quoted(part: str) -> str:
    return f"`{part.replace('`', '``')}`"
