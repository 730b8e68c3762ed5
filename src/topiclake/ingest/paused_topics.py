"""The ranges that paused topics have missed and not written yet: Delta table `<checkpoint>_paused`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from threading import Lock

from pyspark.sql import DataFrame, Row, SparkSession

from topiclake.delta import catalog
from topiclake.delta import table as delta
from topiclake.errors import StorageError
from topiclake.local_frame import local_frame

LEDGER_SCHEMA = (
    "topic STRING, batch_id BIGINT, partition INT, first BIGINT, last BIGINT, why STRING, "
    "paused_at TIMESTAMP, resumed_at TIMESTAMP, resumed_as BIGINT"
)


#: Delta compacts the files of the table by itself. Each batch of a paused topic adds one, and each batch of
#: the query reads all of them.
#: Source: https://docs.delta.io/latest/optimizations-oss.html (Auto compaction)
_PROPERTIES = {"delta.autoOptimize.autoCompact": "true"}


#: Number of offsets in one written range, at most, unless a single batch has more.
MAX_OFFSETS = 1_000_000


#: The number of rows that a topic has too many when a batch combines them. Each batch reads all rows.
SURPLUS_ROWS = 1_000


#: Threads of a query write the table in turn, since Delta refuses two updates at the same time.
_writing = Lock()


#: Offsets of a partition: the first offset, and the one after the last.
Span = tuple[int, int]


def note(
    spark: SparkSession, ledger: str, rows: Iterable[tuple[object, ...]], *, writer: str, batch_id: int
) -> None:
    """Add the ranges of a batch, with the columns of `LEDGER_SCHEMA`, unless the batch has added them."""
    ranges = local_frame(spark, rows, LEDGER_SCHEMA)
    with _writing:
        if not delta.is_table(spark, ledger):
            delta.ensure_table(spark, ledger, ranges.schema, _PROPERTIES)
        delta.append_once(ranges, ledger, writer=writer, batch_id=batch_id, commit={})


def combine(spark: SparkSession, ledger: str, waiting: Mapping[str, list[Row]], before: int) -> None:
    """Replace the rows of long pauses by few rows with the same offsets, a commit for each topic.

    A range that is fixed stays as it is, since it may be written in part.

    Args:
        spark: The session.
        ledger: Location of the table.
        waiting: Rows by topic, as `paused` returned them.
        before: The batch that runs. It may be repeated, so its rows stay as they are.
    """
    for topic in waiting:
        known = _not_fixed(waiting, topic)
        if len(known) - len(_combined(known)) < SURPLUS_ROWS:
            continue
        with _writing:
            # Threads of this batch may have resumed some of the known ranges.
            missed = [row for row in _not_fixed(paused(spark, ledger), topic) if row["batch_id"] < before]
            rows = local_frame(spark, _combined(missed), LEDGER_SCHEMA)
            replaced = f"{_waits(topic)} AND resumed_as IS NULL AND batch_id < {before}"
            delta.replace_where(rows, ledger, replaced)


def waiting(spark: SparkSession, ledger: str) -> DataFrame | None:
    """Return the ranges that wait, with the columns of `LEDGER_SCHEMA`; None if no topic was ever paused.

    Raises:
        StorageError: Another version of Topiclake has written the table.
    """
    if not delta.is_table(spark, ledger):
        return None
    rows = delta.read(spark, ledger)
    if "resumed_as" not in rows.columns:
        raise StorageError(
            f"{ledger} was written by another version of Topiclake",
            "let that version write what its topics have missed, then remove the table",
            table=ledger,
            reason="other_version",
        )
    return rows.where("resumed_at IS NULL")


def paused(spark: SparkSession, ledger: str) -> dict[str, list[Row]]:
    """Return the ranges that wait, by topic, in the order of their batches."""
    rows = waiting(spark, ledger)
    if rows is None:
        return {}
    by_topic: dict[str, list[Row]] = {}
    for row in rows.orderBy("topic", "batch_id", "partition").collect():
        by_topic.setdefault(row["topic"], []).append(row)
    return by_topic


def spans_of(rows: Iterable[Row]) -> dict[int, Span]:
    """Return by partition the first offset of the ranges, and the one after the last."""
    by_partition: dict[int, Span] = {}
    for row in rows:
        first, after = by_partition.get(row["partition"], (row["first"], 0))
        by_partition[row["partition"]] = min(row["first"], first), max(row["last"] + 1, after)
    return by_partition


def number_of_records(rows: Iterable[Row]) -> int:
    """Return the number of offsets of the ranges."""
    return sum(int(row["last"]) + 1 - int(row["first"]) for row in rows)


def spans_by_partition(rows: Iterable[Row]) -> dict[int, list[Span]]:
    """Return the ranges of a topic by partition: `(first, after)`."""
    by_partition: dict[int, list[Span]] = {}
    for row in rows:
        by_partition.setdefault(row["partition"], []).append((row["first"], row["last"] + 1))
    return by_partition


def next_range(spark: SparkSession, ledger: str, topic: str, missed: list[Row]) -> tuple[int, list[Row]]:
    """Return the oldest ranges, and the number of the batch that writes them; both are fixed in the table."""
    number = missed[0]["resumed_as"]
    if number is not None:
        return number, [row for row in missed if row["resumed_as"] == number]
    rows = next(_in_ranges(missed))
    number = rows[-1]["batch_id"]
    of_range = f"{_waits(topic)} AND batch_id <= {number}"
    with _writing:
        catalog.update(spark, ledger, f"resumed_as = {number}", of_range)
    return number, rows


def mark_resumed(spark: SparkSession, ledger: str, topic: str, number: int | None = None) -> None:
    """Mark the range with batch number `number` as written, or that batch; None marks all of them."""
    of_batch = "" if number is None else f" AND coalesce(resumed_as, batch_id) = {number}"
    with _writing:
        catalog.update(spark, ledger, "resumed_at = current_timestamp()", f"{_waits(topic)}{of_batch}")


def _not_fixed(waiting: Mapping[str, list[Row]], topic: str) -> list[Row]:
    return [row for row in waiting.get(topic, []) if row["resumed_as"] is None]


def _in_ranges(missed: Iterable[Row]) -> Iterator[list[Row]]:
    """Split rows of a topic between batches, so that each part has `MAX_OFFSETS` at most, or one batch."""
    part: list[Row] = []
    offsets = 0
    for _, of_batch in groupby(missed, key=lambda row: row["batch_id"]):
        rows = list(of_batch)
        more = number_of_records(rows)
        if part and offsets + more > MAX_OFFSETS:
            yield part
            part, offsets = [], 0
        part += rows
        offsets += more
    if part:
        yield part


def _combined(missed: Iterable[Row]) -> list[tuple[object, ...]]:
    """Return the rows that replace rows of a topic, a row for each partition and `MAX_OFFSETS` offsets."""
    combined: list[tuple[object, ...]] = []
    for rows in _in_ranges(missed):
        topic, batch_id, why = rows[-1]["topic"], rows[-1]["batch_id"], rows[-1]["why"]
        since = rows[0]["paused_at"]
        for partition, (first, after) in spans_of(rows).items():
            combined.append((topic, batch_id, partition, first, after - 1, why, since, None, None))
    return combined


def _waits(topic: str) -> str:
    return f"topic = {delta.literal(topic)} AND resumed_at IS NULL"
