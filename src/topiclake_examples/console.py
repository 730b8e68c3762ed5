"""Kafka's own console consumer, for a second opinion of what was written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import topiclake as tl


def consume(settings: tl.Settings, topic: str, records: int, options: Sequence[str] = ()) -> list[str]:
    """Return the lines that Kafka's console consumer prints of the first records of a topic.

    Args:
        settings: The environment, whose broker is asked.
        topic: Its name; it has at least `records` records.
        records: The number of records.
        options: More options of `python -m workbench consume`, such as `--avro`.

    Returns:
        A line for each record: key, TAB, value. Nothing where there is no workbench, as on Databricks.

    Raises:
        subprocess.CalledProcessError: The consumer failed; `stderr` has the reason.
    """
    if find_spec("workbench") is None:
        return []
    arguments = ["-p", f"env={settings.env}", "--from-beginning", "--property", "print.key=true"]
    command = [sys.executable, "-m", "workbench", "consume", topic, *arguments, *options]
    process = subprocess.run(
        [*command, "--max-messages", str(records)], capture_output=True, text=True, check=True
    )
    return process.stdout.splitlines()
