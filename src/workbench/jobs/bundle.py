"""Reads `databricks.yml` and the job files that it includes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from topiclake.errors import ConfigError
from workbench.jobs import bundle_model
from workbench.jobs.bundle_model import BundleFile, Job, Target
from workbench.jobs.checks import check_job
from workbench.jobs.yaml_lines import KeyPath, YamlFile, read_yaml

ROOT_FILE = "databricks.yml"
_REFERENCE = re.compile(r"\$\{([\w.-]+)\}")
_KNOWN_KEYS = {
    name
    for model in vars(bundle_model).values()
    if isinstance(model, type) and issubclass(model, BaseModel)
    for name in model.model_fields
}
_MESSAGES = {"extra_forbidden": "unknown key", "missing": "missing key"}


@dataclass(frozen=True)
class Bundle:
    """The jobs of a bundle for one target.

    Attributes:
        jobs: The jobs by key; the paths of notebooks are absolute.
    """

    name: str
    target: str
    jobs: dict[str, Job]

    def job(self, key: str) -> Job:
        """Return a job.

        Raises:
            ConfigError: No job has this key.
        """
        if key not in self.jobs:
            near = difflib.get_close_matches(key, self.jobs, n=1)
            raise ConfigError(
                f"there is no job '{key}'; there are: {', '.join(sorted(self.jobs)) or 'none'}",
                f"use {near[0]}" if near else "run python -m workbench job list",
                job=key,
                allowed=tuple(sorted(self.jobs)),
            )
        return self.jobs[key]


def load_bundle(project: Path, target: str | None = None) -> Bundle:
    """Read and check every job.

    Args:
        project: The folder of `databricks.yml`.
        target: One of its `targets`; by default the one that says `default: true`.

    Raises:
        ConfigError: Something in a file is wrong; the message names file and line.
    """
    file = read_yaml(project / ROOT_FILE)
    root = _validated(file, file.content)
    if root.bundle is None:
        raise file.error((), "missing key 'bundle'", "add bundle: {name: <name>}")
    name = _target_name(file, root, target)
    values = {"bundle.name": root.bundle.name, "bundle.target": name} | _variables(file, root, name)
    jobs: dict[str, Job] = {}
    for part in [file, *_included(file, root)]:
        for key, job in _validated(part, _with_values(part, values)).resources.jobs.items():
            if key in jobs:
                raise part.error(
                    ("resources", "jobs", key), f"job '{key}' is in another file too", "rename it"
                )
            jobs[key] = check_job(part, key, job)
    return Bundle(root.bundle.name, name, jobs)


def _validated(file: YamlFile, content: object) -> BundleFile:
    try:
        return BundleFile.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key_path, kind = first["loc"], first["type"]
        if kind not in _MESSAGES:
            text = f"{'.'.join(map(str, key_path)) or 'the file'}: {first['msg']}"
            raise file.error(key_path, text) from None
        key = str(key_path[-1])
        near = difflib.get_close_matches(key, _KNOWN_KEYS - {key}, n=1) if kind == "extra_forbidden" else []
        inside = ".".join(map(str, key_path[:-1]))
        text = f"{_MESSAGES[kind]} '{key}'" + (f" in {inside}" if inside else "")
        raise file.error(key_path, text, f"use {near[0]}" if near else "remove it or fix it") from None


def _included(file: YamlFile, root: BundleFile) -> Iterator[YamlFile]:
    for at, pattern in enumerate(root.include):
        try:
            files = sorted(file.path.parent.glob(pattern))
        except (ValueError, IndexError, NotImplementedError):
            problem = f"'{pattern}' is no pattern of files below this folder"
            raise file.error(("include", at), problem, "use conf/jobs/*.job.yml") from None
        if not files:
            raise file.error(("include", at), f"no file fits {pattern}")
        yield from map(read_yaml, files)


def _target_name(file: YamlFile, root: BundleFile, chosen: str | None) -> str:
    if chosen is not None and chosen not in root.targets:
        names = ", ".join(root.targets) or "none"
        raise file.error(
            ("targets",), f"there is no target '{chosen}'; there are: {names}", "pass --target=<name>"
        )
    if chosen is not None:
        return chosen
    defaults = [name for name, target in root.targets.items() if target and target.default]
    if len(defaults) != 1:
        raise file.error(("targets",), f"{len(defaults)} targets say `default: true`", "pass --target=<name>")
    return defaults[0]


def _variables(file: YamlFile, root: BundleFile, name: str) -> dict[str, str]:
    values: dict[str, Any] = {key: variable.default or "" for key, variable in root.variables.items()}
    for key, value in (root.targets[name] or Target()).variables.items():
        if key not in values:
            raise file.error(("targets", name, "variables", key), f"there is no variable '{key}'")
        values[key] = value
    # Values that Databricks looks up, and clusters, have no meaning here.
    return {f"var.{key}": "" if isinstance(value, Mapping) else str(value) for key, value in values.items()}


def _with_values(file: YamlFile, values: Mapping[str, str]) -> object:
    if not isinstance(file.content, dict) or "resources" not in file.content:
        return file.content
    resources = _expanded(file, file.content["resources"], ("resources",), values)
    return file.content | {"resources": resources}


def _expanded(file: YamlFile, content: object, key_path: KeyPath, values: Mapping[str, str]) -> object:
    """Return content with `${var.x}` and `${bundle.x}` replaced."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise file.error(key_path, f"there is no {match[0]}", f"use one of {', '.join(sorted(values))}")
        return values[match[1]]

    if isinstance(content, dict):
        return {key: _expanded(file, item, (*key_path, key), values) for key, item in content.items()}
    if isinstance(content, list):
        return [_expanded(file, item, (*key_path, at), values) for at, item in enumerate(content)]
    return _REFERENCE.sub(value, content) if isinstance(content, str) else content
