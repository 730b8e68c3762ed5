"""Parameters of notebooks: text, as widgets hold it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from topiclake.errors import ConfigError


def whole_number(name: str, value: int | str, allowed: Sequence[int] = ()) -> int:
    """Return a parameter as a whole number from 0 on, or as one of the allowed numbers.

    Raises:
        ConfigError: It is another value.
    """
    text = str(value)
    if not text.isdecimal() or (allowed and int(text) not in allowed):
        expected = " or ".join(map(str, allowed)) or "a whole number from 0 on"
        raise ConfigError(
            f"{name} is {text!r}; allowed: {expected}",
            f"-p {name}={[*allowed, 1000][0]}",
            parameter=name,
            found=text,
            allowed=tuple(allowed),
        )
    return int(text)


def moment(text: str) -> datetime | None:
    """Return a time from ISO 8601 with its zone, or None if the text has another form."""
    try:
        # Before Python 3.11 fromisoformat does not accept Z.
        parsed = datetime.fromisoformat(text.strip().upper().replace("Z", "+00:00"))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None
