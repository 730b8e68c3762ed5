"""What tables held before a checkpoint began, noted in the checkpoint: an audit must know it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from topiclake import checkpoint_notes

_FIRSTS = "topic STRING, partition INT, first BIGINT, noted_at TIMESTAMP"
_NOTES = "resumed"
_ROWS = "rows_before"


def note_firsts(spark: SparkSession, checkpoint: str, firsts: Mapping[str, Mapping[int, int]]) -> None:
    """Note where the queries before this checkpoint began, by topic and partition; empty: there were none.

    The newest note counts: a start that failed may have left another one.
    """
    now = datetime.now(timezone.utc)
    rows = [(topic, one, first, now) for topic, found in firsts.items() for one, first in found.items()]
    if not rows and read_firsts(spark, checkpoint):
        rows = [(None, None, None, now)]  # type: ignore[list-item]
    checkpoint_notes.append(spark, checkpoint, _NOTES, rows, _FIRSTS)


def read_firsts(spark: SparkSession, checkpoint: str) -> dict[str, dict[int, int]]:
    """Return where the queries before this checkpoint began, by topic and partition."""
    notes = checkpoint_notes.read(spark, checkpoint, _NOTES, _FIRSTS)
    newest = max((row["noted_at"] for row in notes), default=None)
    found: dict[str, dict[int, int]] = {}
    for row in notes:
        if row["noted_at"] == newest and row["topic"] is not None:
            found.setdefault(row["topic"], {})[row["partition"]] = row["first"]
    return found


def note_rows(rows: DataFrame, checkpoint: str) -> None:
    """Note which rows were there when a checkpoint began from `starting_offsets` again.

    Args:
        rows: `topic STRING, is_quarantined BOOLEAN, partition INT, offset BIGINT`.
        checkpoint: Location of the checkpoint.
    """
    rows.write.mode("overwrite").parquet(checkpoint_notes.path(checkpoint, _ROWS))


def read_rows(spark: SparkSession, checkpoint: str) -> DataFrame | None:
    """Return what `note_rows` has noted; None where there is none."""
    try:
        return spark.read.parquet(checkpoint_notes.path(checkpoint, _ROWS))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
