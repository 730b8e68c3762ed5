"""The offsets of a micro-batch, kept in its commit, so that another batch with its number is detected.

The commit has them as JSON: topic → partition → `[first, after]`. It includes partitions without new records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from topiclake.errors import IngestError
from topiclake.streaming.checkpoint import Offsets, Ranges

#: Key of the offsets in the metadata of a commit.
OFFSETS = "offsets"
#: Length of the offsets in a message, at most.
_MOST_CHARACTERS = 300
_AGAIN = "resume=table (for apply: upsert, resume=restart)"


def of_topic(ranges: Ranges, topic: str | None) -> Ranges:
    """Return the offsets of one topic; without `topic`, those of all topics."""
    if topic is None:
        return ranges
    return {topic: ranges[topic]} if topic in ranges else {}


def require_same(
    commit: Mapping[str, Any] | None, ranges: Ranges, *, table: str, checkpoint: str, batch_id: int
) -> None:
    """Check that an earlier commit of a batch holds the offsets that the batch has now.

    Args:
        commit: The earlier commit, or None if the table's history does not have it.
        ranges: The offsets that the batch has now; empty if the checkpoint does not have them.
        table: Location of the table.
        checkpoint: Location of the checkpoint.
        batch_id: Spark's number of the batch.

    Raises:
        IngestError: The offsets differ, so the table would never get the new ones; or another version of
            Topiclake wrote the commit.
    """
    if commit is None:
        return
    committed, now = of_commit(commit, table=table, checkpoint=checkpoint), _as_json(ranges)
    if committed and now and committed != now:
        raise changed(now, committed, table=table, checkpoint=checkpoint, batch_id=batch_id)


def require_same_ends(commit: Mapping[str, Any], ends: Offsets, *, table: str, checkpoint: str) -> None:
    """Check that a commit ends at the same offsets as its batch in the checkpoint.

    Arguments as for `require_same`.
    """
    batch_id = int(commit["batch_id"])
    spans = of_commit(commit, table=table, checkpoint=checkpoint)
    committed = {
        topic: {partition: span[1] for partition, span in offsets.items()} for topic, offsets in spans.items()
    }
    now = _as_json({topic: offsets for topic, offsets in ends.items() if topic in committed})
    if committed != now:
        raise changed(now, committed, table=table, checkpoint=checkpoint, batch_id=batch_id)


def of_commit(commit: Mapping[str, Any], *, table: str, checkpoint: str) -> dict[str, dict[str, list[int]]]:
    """Return the offsets in the metadata of a commit, with the keys of JSON.

    Raises:
        IngestError: The commit has no offsets, because another version of Topiclake wrote it.
    """
    if OFFSETS not in commit:
        batch_id = commit["batch_id"]
        raise IngestError(
            f"another version of Topiclake wrote batch {batch_id} of the checkpoint at {checkpoint} into the "
            f"table at {table}",
            f"continue with that version; or move the checkpoint away and start with {_AGAIN}",
            table=table,
            checkpoint=checkpoint,
            batch_id=batch_id,
            reason="other_version",
        )
    return dict(commit[OFFSETS])


def changed(
    now: Mapping[str, Any], committed: Mapping[str, Any], *, table: str, checkpoint: str, batch_id: int
) -> IngestError:
    """Return the error for a batch whose offsets differ from those in the table."""
    return IngestError(
        f"batch {batch_id} of the checkpoint at {checkpoint} has offsets {_shown(now)}, but the table at "
        f"{table} has this batch with {_shown(committed)}: records would be lost",
        f"put the newest checkpoint back, or move this one away and start with {_AGAIN}",
        table=table,
        checkpoint=checkpoint,
        batch_id=batch_id,
        offsets=now,
        expected=committed,
        reason="offsets_changed",
    )


def _as_json(ranges: Mapping[str, Any]) -> dict[str, Any]:
    as_json: dict[str, Any] = json.loads(json.dumps(ranges))
    return as_json


def _shown(offsets: Mapping[str, Any]) -> str:
    text = json.dumps(offsets)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
