"""What Spark keeps of a streaming query in its checkpoint: `metadata`, `offsets/<batch>`, `commits/<batch>`.

Read through Spark, since a checkpoint may live on an object store.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from topiclake.errors import IngestError

#: No batch yet.
NONE = -1
#: topic → partition → offset, as Spark writes it.
Offsets = dict[str, dict[int, int]]
#: topic → partition → the first offset of a batch, and the one after its last.
Ranges = dict[str, dict[int, tuple[int, int]]]
_OFFSETS = "offsets"
_COMMITS = "commits"
#: By checkpoint the start of its query, and the id; in the process that runs the micro-batches, which is a
#: worker on Spark Connect.
_ids: dict[str, tuple[str, str]] = {}
#: By checkpoint the start of its query, its newest batch, where that ends, and what it holds.
_batches: dict[str, tuple[str, int, Offsets, Ranges]] = {}
#: How Spark writes that a source has not given anything yet.
_NOTHING = "-"


@dataclass(frozen=True)
class Planned:
    """What is fixed of a batch before it begins.

    Attributes:
        watermark_ms: What is past, in milliseconds since 1970; 0 where the query has seen no event yet.
        ends: Where each source of the query ends, in Spark's order; None where it has given nothing yet.
    """

    watermark_ms: int
    ends: tuple[object, ...]


@dataclass(frozen=True)
class Progress:
    """How far the query of a checkpoint is.

    Attributes:
        planned: The newest batch whose offsets are fixed; NONE for none.
        committed: The newest batch that is done; NONE for none.
        position: Which offsets come next, the end of the newest done batch; None before the first start.
    """

    planned: int
    committed: int
    position: Offsets | None


def query_id(spark: SparkSession, path: str, start: str | None) -> str:
    """Return the id that Spark gave the checkpoint, so that a new one never looks like an old one.

    Args:
        spark: The session.
        path: The checkpoint, as Spark reads it.
        start: Names a start of the query, whose micro-batches read it once. None: it is read now, since the
            checkpoint may have been deleted and begun again.
    """
    known = _ids.get(path)
    if known is not None and known[0] == start:
        return known[1]
    metadata = spark.read.schema("id STRING").json(f"{path}/metadata").collect()
    query = str(metadata[0][0])
    if start is not None:
        cache_query_id(path, start, query)
    return query


def cache_query_id(path: str, start: str, query: str) -> None:
    """Note the id that Spark has read for a start of a query, so that its micro-batches need not read it."""
    _ids[path] = start, query


def cache_position(path: str, start: str, progress: Progress) -> None:
    """Note where the next batch of a start begins, so that the batch need not read it."""
    if progress.position is not None:
        _batches[path] = start, progress.committed, progress.position, {}


def last_planned(spark: SparkSession, path: str) -> int:
    """Return the newest batch whose offsets are fixed; NONE where there is none."""
    return _newest(_files(spark, f"{path}/{_OFFSETS}"), _OFFSETS)


def last_committed(spark: SparkSession, path: str) -> int:
    """Return the newest batch that is done; NONE where there is none."""
    return _newest(_files(spark, f"{path}/{_COMMITS}"), _COMMITS)


def is_interrupted(spark: SparkSession, path: str) -> bool:
    """Return whether the checkpoint holds a batch that was begun and not done."""
    planned, committed = _last_batches(spark, path)
    return committed < planned


def progress(spark: SparkSession, path: str) -> Progress:
    """Return how far the query of a checkpoint is."""
    planned, committed = _last_batches(spark, path)
    return Progress(planned, committed, begin_of(spark, path, committed + 1))


def _last_batches(spark: SparkSession, path: str) -> tuple[int, int]:
    # Both at once where both are there: on an object store each question is a call.
    files = _files(spark, f"{path}/{_OFFSETS}", f"{path}/{_COMMITS}") or _files(spark, f"{path}/{_OFFSETS}")
    return _newest(files, _OFFSETS), _newest(files, _COMMITS)


def position(spark: SparkSession, path: str) -> Offsets | None:
    """Return which offsets come next, the end of the newest done batch; None before the first start."""
    return begin_of(spark, path, last_committed(spark, path) + 1)


def begin_of(spark: SparkSession, path: str, batch_id: int) -> Offsets | None:
    """Return where a batch begins."""
    return read_offsets(spark, f"{path}/{_OFFSETS}/{batch_id - 1}" if batch_id else f"{path}/sources/0/0")


def end_of(spark: SparkSession, path: str, batch_id: int) -> Offsets | None:
    """Return where a batch ends; None where it has not begun."""
    return read_offsets(spark, f"{path}/{_OFFSETS}/{batch_id}")


def ranges(spark: SparkSession, path: str, batch_id: int, start: str) -> Ranges:
    """Return which offsets a batch of a running query holds; empty where the checkpoint does not say.

    Args:
        spark: The session.
        path: The checkpoint, as Spark reads it.
        batch_id: The batch.
        start: Names the start of the query, whose micro-batches read one file each.
    """
    known_start, known_batch, end, ranges = _batches.get(path, ("", NONE, {}, {}))
    if (known_start, known_batch) == (start, batch_id):
        return ranges
    follows = (known_start, known_batch + 1) == (start, batch_id)
    begin = end if follows else begin_of(spark, path, batch_id) or {}
    end = end_of(spark, path, batch_id) or {}
    _batches[path] = start, batch_id, end, _between(begin, end)
    return _batches[path][-1]


def _between(begin: Offsets, end: Offsets) -> Ranges:
    # A topic that was deleted has no end any more.
    return {
        topic: {
            partition: (begin.get(topic, {}).get(partition, 0), after)
            for partition, after in sorted((begin.get(topic, {}) | end.get(topic, {})).items())
        }
        for topic in sorted(begin.keys() | end.keys())
    }


def planned(spark: SparkSession, path: str, batch_id: int) -> Planned:
    """Return what is fixed of a batch; of the one before the first, that it has seen nothing.

    Raises:
        IngestError: The file is gone, though Spark keeps those of a running batch and of the one before it.
    """
    if batch_id == NONE:
        return Planned(0, ())
    _, metadata, *ends = _required(spark, path, f"{_OFFSETS}/{batch_id}")
    return Planned(
        json.loads(metadata)["batchWatermarkMs"],
        tuple(None if end == _NOTHING else json.loads(end) for end in ends),
    )


def range_of(
    spark: SparkSession, path: str, before: Planned, batch: Planned, topic: str
) -> dict[int, tuple[int, int]]:
    """Return what a batch reads of a topic, beside which the query may have other sources.

    Args:
        spark: The session.
        path: The checkpoint, as Spark reads it.
        before: The batch before it.
        batch: The batch.
        topic: The topic.

    Returns:
        By partition its first offset and the one after its last; without partitions that have nothing new.

    Raises:
        IngestError: Not exactly one of the query's sources reads the topic, or a file is gone.
    """
    sources = [number for number, end in enumerate(batch.ends) if _offsets_of(end, topic) is not None]
    if not sources and None in batch.ends:
        return {}
    if len(sources) != 1:
        raise IngestError(
            f"{len(sources)} sources of the query with the checkpoint at {path} read topic {topic}",
            "a checkpoint_path of a query that reads the topic once",
            checkpoint=path,
            topic=topic,
            sources=len(sources),
        )
    (number,) = sources
    begun = before.ends[number] if before.ends else None
    if begun is None:
        begun = json.loads(_required(spark, path, f"sources/{number}/0")[-1])
    # A partition that was added since begins at 0.
    first, after = _offsets_of(begun, topic) or {}, _offsets_of(batch.ends[number], topic) or {}
    ranges = {partition: (first.get(partition, 0), end) for partition, end in sorted(after.items())}
    return {partition: (begin, end) for partition, (begin, end) in ranges.items() if begin < end}


def _offsets_of(end: object, topic: str) -> dict[int, int] | None:
    """Return a topic's offsets; None where a source is none of Kafka, or of another topic."""
    offsets = end.get(topic) if isinstance(end, dict) else None
    if not isinstance(offsets, dict):
        return None
    return {int(partition): offset for partition, offset in offsets.items()}


def read_offsets(spark: SparkSession, file: str) -> Offsets | None:
    """Return the offsets in the last line of a file; None when there is no such file."""
    lines = _lines(spark, file)
    if lines is None:
        return None
    source: dict[str, dict[str, int]] = json.loads(lines[-1])
    # A source that is none of Kafka's has numbers there.
    topics = {topic: offsets for topic, offsets in source.items() if isinstance(offsets, dict)}
    return {
        topic: {int(partition): offset for partition, offset in offsets.items()}
        for topic, offsets in topics.items()
    }


def _required(spark: SparkSession, path: str, file: str) -> list[str]:
    lines = _lines(spark, f"{path}/{file}")
    if lines is None:
        raise IngestError(
            f"the checkpoint at {path} is damaged: {file} is gone",
            "the same checkpoint from a backup",
            checkpoint=path,
            file=file,
            reason="damaged",
        )
    return lines


def _lines(spark: SparkSession, file: str) -> list[str] | None:
    try:
        (row,) = spark.read.text(file, wholetext=True).collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    return str(row[0]).splitlines()


def _files(spark: SparkSession, *folders: str) -> list[str]:
    """Return the files in `folders`, none of which is opened; nothing where a folder is missing."""
    try:
        return spark.read.format("binaryFile").load(list(folders)).inputFiles()
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            return []
        raise


def _newest(files: list[str], folder: str) -> int:
    """Return the greatest number among the names of those in `folder`."""
    numbers = (re.search(rf"/{folder}/(\d+)$", file) for file in files)
    return max((int(number[1]) for number in numbers if number), default=NONE)
