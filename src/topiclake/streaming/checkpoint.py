"""Spark's files in the checkpoint of a streaming query: `metadata`, `offsets/<batch>`, `commits/<batch>`.

Spark reads them, since a checkpoint may be on an object store.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.errors import IngestError
from topiclake.streaming.checkpoint_notes import read_if_exists

#: Number of the newest batch if no batch exists yet.
NONE = -1
#: topic → partition → offset, as Spark writes them.
Offsets = dict[str, dict[int, int]]
#: topic → partition → the first offset of a batch, and the one after its last.
Ranges = dict[str, dict[int, tuple[int, int]]]
_METADATA = "metadata"
_OFFSETS = "offsets"
_COMMITS = "commits"
#: By checkpoint: the start of its query, and the id of the query. The process that runs the micro-batches
#: keeps them; on Spark Connect that is a worker.
_ids: dict[str, tuple[str, str]] = {}
#: By checkpoint: the start of its query, the newest batch, the end offsets and the ranges of that batch.
_batches: dict[str, tuple[str, int, Offsets, Ranges]] = {}
#: Spark's mark for a source without offsets.
_NOTHING = "-"


@dataclass(frozen=True)
class Planned:
    """The watermark and the end offsets that Spark fixes before a batch begins.

    Attributes:
        watermark_ms: The watermark, in milliseconds since 1970; 0 before the first event of the query.
        ends: End offsets of each source of the query, in Spark's order; None for a source without offsets.
    """

    watermark_ms: int
    ends: tuple[object, ...]


@dataclass(frozen=True)
class Progress:
    """The progress of the query of a checkpoint.

    Attributes:
        planned: The newest batch whose offsets are fixed, or `NONE`.
        committed: The newest committed batch, or `NONE`.
        position: The next offsets, which are the end of the newest committed batch; None before the first
            start.
        query: Id of the query; None if no batch has begun.
    """

    planned: int
    committed: int
    position: Offsets | None
    query: str | None = None

    @property
    def is_interrupted(self) -> bool:
        """Whether a batch has begun and is not committed."""
        return self.committed < self.planned


def query_id(spark: SparkSession, path: str, start: str | None) -> str:
    """Return the query id that Spark wrote into the checkpoint; each new checkpoint has another one.

    Args:
        spark: The session.
        path: Location of the checkpoint, as Spark reads it.
        start: Id of a start of the query, whose micro-batches read the query id once. None: the query id is
            read now, since the checkpoint may have been deleted and begun again.
    """
    cached = _ids.get(path)
    if cached is not None and cached[0] == start:
        return cached[1]
    metadata = spark.read.schema("id STRING").json(f"{path}/{_METADATA}").collect()
    query = str(metadata[0][0])
    if start is not None:
        cache_query_id(path, start, query)
    return query


def cache_query_id(path: str, start: str, query: str) -> None:
    """Keep the query id of a start in memory, so that its micro-batches need not read the file."""
    _ids[path] = start, query


def cache_progress(path: str, start: str, progress: Progress) -> None:
    """Keep the query id and the first offsets of the next batch in memory, so that no file is read again."""
    if progress.position is not None:
        _batches[path] = start, progress.committed, progress.position, {}
    if progress.query is not None:
        cache_query_id(path, start, progress.query)


def last_planned(spark: SparkSession, path: str) -> int:
    """Return the newest batch whose offsets are fixed, or `NONE` if no such batch exists."""
    return _newest(_files(spark, f"{path}/{_OFFSETS}"), _OFFSETS)


def last_committed(spark: SparkSession, path: str) -> int:
    """Return the newest committed batch, or `NONE` if no such batch exists."""
    return _newest(_files(spark, f"{path}/{_COMMITS}"), _COMMITS)


def begin_times(spark: SparkSession, path: str) -> DataFrame | None:
    """Return when batches began: `batch_id BIGINT, begun DOUBLE`, in seconds since 1970.

    Spark keeps the newest hundred batches. None: the checkpoint has not begun.
    """
    files = read_if_exists(lambda: spark.read.text(f"{path}/{_OFFSETS}", wholetext=True))
    if files is None:
        return None
    begun_ms = F.regexp_extract("value", r'"batchTimestampMs":(\d+)', 1).try_cast("double")
    batch_id = F.expr("try_cast(_metadata.file_name AS BIGINT)").alias("batch_id")
    return files.select(batch_id, (begun_ms / 1000).alias("begun")).where("batch_id IS NOT NULL")


def is_interrupted(spark: SparkSession, path: str) -> bool:
    """Return whether the checkpoint holds a batch that has begun and is not committed."""
    planned, committed = _last_batches(spark, path)
    return Progress(planned, committed, None).is_interrupted


def progress(spark: SparkSession, path: str) -> Progress:
    """Return the progress of the query of a checkpoint."""
    planned, committed = _last_batches(spark, path)
    file = _begin_file(path, committed + 1)
    # One job reads both files; a checkpoint without one of them is new, or damaged.
    texts = None if planned == NONE else _texts(spark, f"{path}/{_METADATA}", file)
    if texts is None:
        return Progress(planned, committed, read_offsets(spark, file))
    position = _offsets_in(texts[file.rpartition("/")[2]])
    return Progress(planned, committed, position, json.loads(texts[_METADATA])["id"])


def _last_batches(spark: SparkSession, path: str) -> tuple[int, int]:
    # Both folders are listed at once if both exist, since each listing is a call of an object store.
    files = _files(spark, f"{path}/{_OFFSETS}", f"{path}/{_COMMITS}") or _files(spark, f"{path}/{_OFFSETS}")
    return _newest(files, _OFFSETS), _newest(files, _COMMITS)


def position(spark: SparkSession, path: str) -> Offsets | None:
    """Return the next offsets, the end of the newest committed batch; None before the first start."""
    return begin_offsets(spark, path, last_committed(spark, path) + 1)


def begin_offsets(spark: SparkSession, path: str, batch_id: int) -> Offsets | None:
    """Return the first offsets of a batch, or None if the checkpoint does not have them."""
    return read_offsets(spark, _begin_file(path, batch_id))


def _begin_file(path: str, batch_id: int) -> str:
    return f"{path}/{_OFFSETS}/{batch_id - 1}" if batch_id else f"{path}/sources/0/0"


def end_offsets(spark: SparkSession, path: str, batch_id: int) -> Offsets | None:
    """Return the end offsets of a batch, or None if the batch has not begun."""
    return read_offsets(spark, f"{path}/{_OFFSETS}/{batch_id}")


def ranges(spark: SparkSession, path: str, batch_id: int, start: str) -> Ranges:
    """Return the offsets of a batch of a running query; empty if the checkpoint does not have them.

    Args:
        spark: The session.
        path: Location of the checkpoint, as Spark reads it.
        batch_id: Spark's number of the batch.
        start: Id of the start of the query, whose micro-batches read one file each.
    """
    cached_start, cached_batch, end, ranges = _batches.get(path, ("", NONE, {}, {}))
    if (cached_start, cached_batch) == (start, batch_id):
        return ranges
    follows = (cached_start, cached_batch + 1) == (start, batch_id)
    begin = end if follows else begin_offsets(spark, path, batch_id) or {}
    end = end_offsets(spark, path, batch_id) or {}
    _batches[path] = start, batch_id, end, _between(begin, end)
    return _batches[path][-1]


def _between(begin: Offsets, end: Offsets) -> Ranges:
    # A deleted topic has no end offsets, only first ones.
    return {
        topic: {
            partition: (begin.get(topic, {}).get(partition, 0), after)
            for partition, after in sorted((begin.get(topic, {}) | end.get(topic, {})).items())
        }
        for topic in sorted(begin.keys() | end.keys())
    }


def planned(spark: SparkSession, path: str, batch_id: int) -> Planned:
    """Return what Spark has fixed of a batch; for `NONE`, a watermark of 0 and no ends.

    Raises:
        IngestError: The file is missing, although Spark keeps those of the running and the previous batch.
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
    """Return the offsets that a batch reads of a topic; the query may have other sources, too.

    Args:
        spark: The session.
        path: Location of the checkpoint, as Spark reads it.
        before: The previous batch.
        batch: The batch.
        topic: The topic.

    Returns:
        By partition the first offset, and the one after the last; only partitions with new records.

    Raises:
        IngestError: Not exactly one source of the query reads the topic, or a file is missing.
    """
    sources = [number for number, end in enumerate(batch.ends) if _offsets_of(end, topic) is not None]
    if not sources and None in batch.ends:
        return {}
    if len(sources) != 1:
        raise IngestError(
            f"{len(sources)} sources of the query with the checkpoint at {path} read topic {topic}",
            "set the checkpoint_path of a query that reads the topic once",
            checkpoint=path,
            topic=topic,
            sources=len(sources),
        )
    (number,) = sources
    start = before.ends[number] if before.ends else None
    if start is None:
        start = json.loads(_required(spark, path, f"sources/{number}/0")[-1])
    # A partition that was added later begins at 0.
    first, after = _offsets_of(start, topic) or {}, _offsets_of(batch.ends[number], topic) or {}
    ranges = {partition: (first.get(partition, 0), end) for partition, end in sorted(after.items())}
    return {partition: (begin, end) for partition, (begin, end) in ranges.items() if begin < end}


def _offsets_of(end: object, topic: str) -> dict[int, int] | None:
    """Return the offsets of a topic, or None for a source of another kind or of another topic."""
    offsets = end.get(topic) if isinstance(end, dict) else None
    if not isinstance(offsets, dict):
        return None
    return {int(partition): offset for partition, offset in offsets.items()}


def read_offsets(spark: SparkSession, file: str) -> Offsets | None:
    """Return the offsets in the last line of a file, or None if the file does not exist."""
    texts = _texts(spark, file)
    return None if texts is None else _offsets_in(*texts.values())


def _offsets_in(text: str) -> Offsets:
    source: dict[str, dict[str, int]] = json.loads(text.splitlines()[-1])
    # Other sources than Kafka have numbers there.
    topics = {topic: offsets for topic, offsets in source.items() if isinstance(offsets, dict)}
    return {
        topic: {int(partition): offset for partition, offset in offsets.items()}
        for topic, offsets in topics.items()
    }


def _required(spark: SparkSession, path: str, file: str) -> list[str]:
    texts = _texts(spark, f"{path}/{file}")
    if texts is None:
        raise IngestError(
            f"the checkpoint at {path} is damaged: {file} is gone",
            "restore the checkpoint from a backup",
            checkpoint=path,
            file=file,
            reason="damaged",
        )
    return "".join(texts.values()).splitlines()


def _texts(spark: SparkSession, *files: str) -> dict[str, str] | None:
    """Return the text of each file by its name without folders, or None if one does not exist.

    Raises:
        IngestError: A file is empty: Spark never leaves one.
    """
    texts: dict[str, str] | None = read_if_exists(
        lambda: dict(
            spark.read.text(list(files), wholetext=True).select("_metadata.file_name", "value").collect()
        )
    )
    # Spark skips empty files.
    if texts is not None and len(texts) < len(files):
        raise IngestError(
            f"the checkpoint is damaged: one of {', '.join(files)} is empty",
            "restore the checkpoint from a backup",
            files=files,
            reason="damaged",
        )
    return texts


def _files(spark: SparkSession, *folders: str) -> list[str]:
    """Return the files in `folders` without opening them; an empty list if a folder does not exist."""
    # Of a single path that does not exist, Spark would warn with a stack trace.
    paths = list(folders) if len(folders) > 1 else list(folders) * 2
    try:
        return spark.read.format("binaryFile").load(paths).inputFiles()
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            return []
        raise


def _newest(files: list[str], folder: str) -> int:
    """Return the greatest number among the names of the files in `folder`, or `NONE`."""
    numbers = (re.search(rf"/{folder}/(\d+)$", file) for file in files)
    return max((int(number[1]) for number in numbers if number), default=NONE)
