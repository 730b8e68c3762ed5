"""Parameters of a run: on the command line, or in a private file if they hold secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from workbench.host.files import replace_json

#: Names the file with the private parameters of a run.
FILE_VARIABLE = "WORKBENCH_PARAMETERS_FILE"


@dataclass(frozen=True)
class HandedOn:
    """Parameters that hold secrets, and the secrets: on a command line others could read them."""

    parameters: dict[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def save(self, file: Path) -> dict[str, str]:
        """Write it for its owner alone; return the environment variable for the process that reads it."""
        replace_json(file, asdict(self))
        return {FILE_VARIABLE: str(file)}

    @classmethod
    def load(cls) -> HandedOn:
        """Return the parameters of this process; remove the variable, since child runs have their own."""
        file = os.environ.pop(FILE_VARIABLE, "")
        return cls(**json.loads(Path(file).read_text(encoding="utf-8"))) if file else cls()


def parse_parameters(assignments: Sequence[str]) -> dict[str, str]:
    """Return `NAME=VALUE` pairs as a mapping.

    Raises:
        click.BadParameter: One has no name or no `=`, or a name comes twice.
    """
    parameters: dict[str, str] = {}
    for pair in assignments:
        name, equals, value = pair.partition("=")
        if not name or not equals or name in parameters:
            problem = "is given twice" if name in parameters else "is not NAME=VALUE"
            raise click.BadParameter(f"{pair!r} {problem}", param_hint="-p")
        parameters[name] = value
    return parameters
