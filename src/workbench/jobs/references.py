"""Dynamic value references: `{{job.parameters.x}}`, `{{tasks.a.values.k}}` and their like.

Names and errors are those of https://docs.databricks.com/jobs/dynamic-value-references. Text that is no
reference stays as it is. A reference into a known namespace that does not exist is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timezone

from topiclake.errors import ConfigError

Name = tuple[str, ...]

_BRACES = re.compile(r"\{\{\s*([^{}]+?)\s*\}\}")
_NAME = re.compile(r"(?:\w+|`[^`]+`)(?:\.(?:\w+|`[^`]+`))*")
_PART = re.compile(r"`[^`]+`|\w+")
_NAMESPACES = {"job", "task", "tasks", "workspace"}
_PLAIN: set[Name] = {
    ("job", "id"),
    ("job", "name"),
    ("job", "run_id"),
    ("job", "repair_count"),
    ("job", "trigger", "type"),
    ("task", "name"),
}
_TIMES: dict[str, Callable[[datetime], object]] = {
    "iso_date": lambda at: at.strftime("%Y-%m-%d"),
    "iso_datetime": lambda at: at.strftime("%Y-%m-%dT%H:%M:%S"),
    "timestamp_ms": lambda at: int(at.timestamp() * 1000),
    "year": lambda at: at.year,
    "month": lambda at: at.month,
    "day": lambda at: at.day,
    "hour": lambda at: at.hour,
    "minute": lambda at: at.minute,
    "second": lambda at: at.second,
    "is_weekday": lambda at: str(at.isoweekday() < 6).lower(),
    "iso_weekday": lambda at: at.isoweekday(),
}


def references(text: str) -> Iterator[Name]:
    """Yield the references in a text, each as its parts without backticks."""
    for match in _BRACES.finditer(text):
        if (name := _parts(match[1])) is not None:
            yield name


def problem(name: Name, parameters: Collection[str], upstream: Collection[str]) -> str:
    """Return the problem of a reference; "" if it can be resolved.

    Args:
        name: The reference's parts.
        parameters: The names of the job's parameters.
        upstream: The tasks that have ended when the reference is resolved.
    """
    match name:
        case ("job", "parameters", parameter):
            names = ", ".join(sorted(parameters)) or "none"
            return (
                "" if parameter in parameters else f"the job has no parameter '{parameter}', it has {names}"
            )
        case ("job", "start_time", part) | ("job", "trigger", "time", part):
            return "" if part in _TIMES else f"a time has no '{part}', it has {', '.join(_TIMES)}"
        case ("tasks", task, "values", _) | ("tasks", task, "result_state"):
            return "" if task in upstream else f"'{task}' is not a task that this one depends on"
        case _:
            return "" if name in _PLAIN else f"there is no {shown(name)}"


def resolve(text: str, value: Callable[[Name], object]) -> str:
    """Replace each reference by its value; other values than strings as JSON."""

    def replacement(match: re.Match[str]) -> str:
        name = _parts(match[1])
        if name is None:
            return match[0]
        resolved = value(name)
        return resolved if isinstance(resolved, str) else json.dumps(resolved)

    return _BRACES.sub(replacement, text)


def time_part(at: datetime, part: str) -> str:
    """Return what `{{job.start_time.<part>}}` stands for; times are UTC."""
    return str(_TIMES[part](at.astimezone(timezone.utc)))


def shown(name: Name) -> str:
    """Return a reference as it is written."""
    return "{{" + ".".join(name) + "}}"


def unresolved(name: Name, problem: str) -> ConfigError:
    """Return the error for a reference without a value."""
    remedy = "remove the reference, or correct its name"
    if name[0] == "tasks":
        remedy = f"call dbutils.jobs.taskValues.set('{name[-1]}', …) in task '{name[1]}'"
    return ConfigError(f"{shown(name)} has no value: {problem}", remedy, reference=shown(name))


def _parts(text: str) -> Name | None:
    if not _NAME.fullmatch(text):
        return None
    parts = tuple(part.strip("`") for part in _PART.findall(text))
    return parts if parts[0] in _NAMESPACES else None
