"""The environment of commands that tests run."""

from __future__ import annotations

import os


def without_workbench() -> dict[str, str]:
    """Return this process's variables without those that tell of a workbench and its services."""
    return {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")}


class Unmounted:
    """Stand in for dbutils: paths are folders of the test already."""

    def __init__(self) -> None:
        self.fs = self

    def mounts(self) -> list[object]:
        """Nothing is mounted."""
        return []
