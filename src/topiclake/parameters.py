"""Parameters of notebooks: text, as widgets hold it."""

from __future__ import annotations

from collections.abc import Sequence

from topiclake.errors import ConfigError


def whole_number(name: str, value: int | str, allowed: Sequence[int] = ()) -> int:
    """Return a whole number from 0 on, or one of those that are allowed.

    Raises:
        ConfigError: It is none.
    """
    text = str(value)
    if not text.isdecimal() or (allowed and int(text) not in allowed):
        what = " or ".join(map(str, allowed)) or "a whole number from 0 on"
        raise ConfigError(
            f"{name} is {text!r}; allowed: {what}",
            f"-p {name}={[*allowed, 1000][0]}",
            parameter=name,
            found=text,
            allowed=tuple(allowed),
        )
    return int(text)
