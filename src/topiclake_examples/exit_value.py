"""The exit value of a notebook."""

from __future__ import annotations

import json


class ExitValue:
    """Base of the dataclasses that a notebook returns."""

    def to_json(self) -> str:
        """Return it as the exit value of a notebook."""
        return json.dumps(self.__dict__)
