"""Parameters on a command line."""

from __future__ import annotations

from collections.abc import Sequence

import click


def parse_parameters(given: Sequence[str]) -> dict[str, str]:
    """Return `NAME=VALUE` pairs as a mapping.

    Raises:
        click.BadParameter: One has no name or no `=`, or a name comes twice.
    """
    parameters: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not name or not equals or name in parameters:
            why = "is given twice" if name in parameters else "is not NAME=VALUE"
            raise click.BadParameter(f"{pair!r} {why}", param_hint="-p")
        parameters[name] = value
    return parameters
