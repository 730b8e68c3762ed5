"""The batches in the history of a Delta table, without those whose rows a RESTORE has removed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.delta import catalog
from topiclake.delta import table as delta

_RESTORE = "RESTORE"
#: Commits that are read first, since an old table's whole history takes seconds.
_NEWEST = 10


@dataclass(frozen=True)
class Commit:
    """A commit that `delta.append_once` made.

    Attributes:
        version: Version of the table.
        metadata: Metadata of the commit: `writer`, `batch_id`, and the fields that the writer added.
    """

    version: int
    metadata: Mapping[str, Any]

    @property
    def writer(self) -> str:
        """The writer's name."""
        return str(self.metadata["writer"])


@dataclass(frozen=True)
class Commits:
    """The commits in the history of a table.

    Attributes:
        valid: Commits whose rows no RESTORE has removed, newest first.
        is_complete: Whether the history goes back to the table's creation.
    """

    valid: tuple[Commit, ...]
    is_complete: bool

    def newest_of(self, writer: str) -> Commit | None:
        """Return the newest commit of a writer."""
        return next((commit for commit in self.valid if commit.writer == writer), None)


def read(spark: SparkSession, table: str, limit: int | None = None) -> Commits:
    """Return the newest `limit` commits of the table at `table`; without `limit`, all commits."""
    history = catalog.history(spark, table, limit)
    columns = ("version", "operation", "operationParameters", "userMetadata")
    # Sorted and filtered here: Spark would execute a job, and compile the condition at each start.
    rows = sorted(history.select(*columns).collect(), key=itemgetter(0), reverse=True)
    is_complete = bool(rows) and rows[-1]["version"] == 0
    return Commits(tuple(_valid(history, rows)), is_complete)


def newest(spark: SparkSession, table: str) -> Commits | None:
    """Return the newest commits of the table at `table`, or None if the table does not exist."""
    try:
        return read(spark, table, _NEWEST)
    except AnalysisException:
        # Delta has one error for a table that does not exist, and for one of another format.
        if delta.is_table(spark, table):
            raise
        return None


def newest_of(spark: SparkSession, table: str, writer: str, commits: Commits) -> tuple[Commit | None, bool]:
    """Return the newest commit of a writer, and whether a missing one was never made.

    Args:
        spark: The session.
        table: Location of the table.
        writer: The writer's name.
        commits: The `newest` commits of the table. All commits are read if these are not enough.

    Returns:
        The commit, or None if the history does not have it. False if the commit may have been cleaned up.
    """
    if commits.newest_of(writer) is None and not commits.is_complete:
        commits = read(spark, table)
    commit = commits.newest_of(writer)
    return commit, commit is not None or commits.is_complete


def _valid(history: DataFrame, rows: list[Any]) -> Iterator[Commit]:
    newest_valid: float = math.inf
    for row in rows:
        if row["version"] > newest_valid:
            continue
        if row["operation"] == _RESTORE:
            newest_valid = _restored_version(history, row)
        elif metadata := _of_batch(row["userMetadata"]):
            yield Commit(row["version"], metadata)


def _of_batch(text: str | None) -> dict[str, Any] | None:
    """Return the metadata of a batch's commit; None for another commit, whose text may be anything."""
    try:
        metadata = json.loads(text or "null")
    except ValueError:
        return None
    return metadata if isinstance(metadata, dict) and {"writer", "batch_id"} <= metadata.keys() else None


def _restored_version(history: DataFrame, row: Any) -> float:  # noqa: ANN401 (a Row has no types)
    """Return the version that a RESTORE went back to. Delta notes that version, or the requested time."""
    parameters = row["operationParameters"]
    if parameters.get("version") is not None:
        return int(parameters["version"])
    # A RESTORE by time selects the newest version that is not later.
    until = history.where(F.col("timestamp") <= F.lit(parameters["timestamp"]).cast("timestamp"))
    version = until.agg(F.max("version")).collect()[0][0]
    return -1 if version is None else int(version)
