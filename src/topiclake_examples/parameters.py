"""Parameters of notebooks: text, as widgets hold it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

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
            f"pass -p {name}={[*allowed, 1000][0]}",
            parameter=name,
            found=text,
            allowed=tuple(allowed),
        )
    return int(text)


def moment(name: str, value: str) -> datetime:
    """Return a parameter as a time from ISO 8601 with its zone.

    Raises:
        ConfigError: It has another form.
    """
    with suppress(ValueError):
        # Before Python 3.11 fromisoformat does not accept Z.
        parsed = datetime.fromisoformat(value.strip().upper().replace("Z", "+00:00"))
        if parsed.tzinfo:
            return parsed
    raise ConfigError(
        f"{name} is {value!r}; allowed: ISO 8601 with its zone",
        f"pass -p {name}=2026-01-02T03:00:00Z",
        parameter=name,
        found=value,
    )


def recorded_file(file: Path) -> Path:
    """Return a file of the folder `data/`.

    Raises:
        ConfigError: The file does not exist.
    """
    if not file.is_file():
        raise ConfigError(
            f"the recorded file {file} is missing",
            f"git checkout -- data/{file.name}",
            file=str(file),
            reason="missing",
        )
    return file
