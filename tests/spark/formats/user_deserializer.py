"""A deserializer as a user writes one: `id;name` in Latin-1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import topiclake


@topiclake.deserializer
def semicolons(values: Sequence[bytes]) -> Iterator[object]:
    """Give the fields by name; `?` has none, and `!` is skipped, which no deserializer may do."""
    for value in values:
        if value == b"!":
            continue
        number, name = value.decode("latin-1").split(";")
        yield {"id": int(number), "name": name or None, "score": float("nan") if name == "nan" else 1.5}


def unmarked(values: Sequence[bytes]) -> Sequence[object]:
    """Is no deserializer: it does not say so."""
    return values
