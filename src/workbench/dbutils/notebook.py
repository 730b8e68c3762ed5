"""`dbutils.notebook`: the end of a notebook."""

from __future__ import annotations

from typing import NoReturn


class NotebookExit(BaseException):
    """Ends the run with a value. Not an Exception: `except Exception` in a cell must not stop an exit."""

    def __init__(self, value: str) -> None:
        self.value = value
        super().__init__(value)


class Notebook:
    """Control of the notebook's run."""

    def exit(self, value: str) -> NoReturn:
        """End the run at once, as a success; the cells below are not executed."""
        raise NotebookExit(str(value))
