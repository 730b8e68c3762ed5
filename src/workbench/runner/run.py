"""Runs of a notebook with the services of this folder, for the commands that need one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from topiclake.errors import IngestError
from workbench.host.home import Home
from workbench.host.jars import fetch_jars
from workbench.host.java import require_java
from workbench.host.parameters import HandedOn
from workbench.services import control as services

if TYPE_CHECKING:
    from workbench.runner.runner import NotebookRun


def run_with_services(
    notebook: Path,
    parameters: Mapping[str, str],
    home: Home,
    console: Console | None = None,
    cell_seconds: int = 0,
    environment: Mapping[str, str] | None = None,
) -> NotebookRun:
    """Run a notebook that finds the running services by their variables; a variable that is set stays.

    Its process gets the variables of `environment`, too.

    Raises:
        TopiclakeError: Java is missing, or the notebook failed.
    """
    require_java()
    home.prepare()
    fetch_jars((console or Console()).print)
    handed = HandedOn.load()
    variables = {**services.environment(home), **(environment or {})}
    from workbench.runner.runner import run_notebook

    all_parameters = {**parameters, **handed.parameters}
    return run_notebook(
        notebook.absolute(), all_parameters, home, variables, console, cell_seconds, secrets=handed.secrets
    )


def run_for_value(
    notebook: Path,
    parameters: Mapping[str, str],
    home: Home,
    keys: Set[str],
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a notebook as `run_with_services` does; return its exit value, an object with at least `keys`.

    Its progress goes to standard error, so that standard output carries the value only.

    Raises:
        TopiclakeError: The notebook failed, as in `run_with_services`.
        IngestError: It ended with another value.
    """
    console = Console(stderr=True)
    run = run_with_services(notebook, parameters, home, console, environment=environment)
    return value_of(run, notebook, keys)


def value_of(run: NotebookRun, notebook: Path, keys: Set[str]) -> dict[str, Any]:
    """Return the exit value of a run, a JSON object with at least `keys`.

    Raises:
        IngestError: It is another value.
    """
    try:
        value = json.loads(run.exit_value)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not keys <= value.keys():
        raise IngestError(
            f"{notebook} ended without {', '.join(sorted(keys))}", f"open {run.html}", notebook=notebook
        )
    return value
