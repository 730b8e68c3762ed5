"""Secret values that a notebook fetched, and their removal from all its output."""

from __future__ import annotations

import html
import json
import re
import urllib.parse
from collections.abc import Iterable

REDACTED = "[REDACTED]"


class Redactor:
    """Remembers secret values and replaces them in text.

    A value is also found as HTML, JSON, `repr` and URL quoting write it.

    Args:
        values: The secrets of the notebook or task that started this one.

    Attributes:
        values: The remembered values.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.values: tuple[str, ...] = ()
        self._spellings: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        for value in values:
            self.remember(value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._spellings)} spellings)"

    def remember(self, value: str) -> None:
        """Replace this value from now on; blank values are not secrets."""
        if not value.strip() or value in self.values:
            return
        self.values = (*self.values, value)
        spellings = {*self._spellings, *_spellings(value)}
        # The longest first: a secret may be the beginning of another one.
        self._spellings = tuple(sorted(spellings, key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self._spellings)))

    def redact(self, text: str) -> str:
        """Replace every remembered value in a text."""
        return self._pattern.sub(REDACTED, text) if self._pattern else text

    def redact_all(self, value: object) -> object:
        """Replace remembered values in every string of nested lists and dictionaries."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, dict):
            return {key: self.redact_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.redact_all(item) for item in value]
        return value

    def open_end(self, text: str) -> int:
        """Return how many characters at the end of a text may be the beginning of a remembered value."""
        longest = 0
        for spelling in self._spellings:
            for length in range(min(len(spelling) - 1, len(text)), longest, -1):
                if text.endswith(spelling[:length]):
                    longest = length
                    break
        return longest


def _spellings(value: str) -> set[str]:
    return {
        value,
        html.escape(value),
        html.escape(value, quote=False),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        urllib.parse.quote(value),
        urllib.parse.quote(value, safe=""),
        urllib.parse.quote_plus(value),
    }
