"""Names of views and tables."""

from __future__ import annotations

import re

from topiclake.errors import ConfigError


def require_name(name: str) -> None:
    """Check that SQL accepts `name` without quotes.

    Raises:
        ConfigError: SQL does not.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigError(f"{name!r} is no name of a view or table", "use letters, digits and _", name=name)
