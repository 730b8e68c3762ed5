"""The topic and the folder of one run of a tutorial, so that a further run does no harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import topiclake as tl


@dataclass(frozen=True)
class TutorialRun:
    """One run of a tutorial.

    Attributes:
        shared: The settings of the notebook.
        topic: The topic of this run.
        folder: The folder of this run, below the mount point.
        secrets: The function that resolves secrets.
    """

    shared: tl.Settings
    topic: str
    folder: str
    secrets: Callable[[str, str], str]

    def located(self, name: str) -> str:
        """Return the address of a file below the folder of this run, as Spark reads it."""
        return tl.resolve(self.shared.storage, f"{self.folder}/{name}")

    def settings(self, table: str, *, pipeline: str = "", **keys: str) -> tl.Settings:
        """Return the settings of a pipeline from the topic of this run into a table.

        Args:
            table: The name of the table's folder, and of its checkpoint's.
            pipeline: The name of the pipeline; by default that of the notebook.
            **keys: More keys of the pipeline.
        """
        base = {"env": self.shared.env, "storage": self.shared.storage.source, "topic": self.topic}
        paths = {
            "table_path": f"{self.folder}/{table}",
            "checkpoint_path": f"{self.folder}/checkpoints/{table}",
        }
        return tl.load_settings(pipeline or self.shared.name, base | paths | keys, secrets=self.secrets)
