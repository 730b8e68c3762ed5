"""Spark's own report of a micro-batch, read into the values that are shown and stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class PartitionReport:
    """The progress of a query in one partition.

    Attributes:
        topic: Its topic.
        partition: Its number.
        end: The offset after the last record that the query has read.
        head: The offset after the last record that Kafka held then.
    """

    topic: str
    partition: int
    end: int
    head: int

    @property
    def lag(self) -> int:
        """Records that are still to be read."""
        return max(0, self.head - self.end)


@dataclass(frozen=True)
class BatchReport:
    """Spark's report of one micro-batch.

    Attributes:
        at: When it began, in seconds since 1970.
        rows: Records that were read; if `is_exact`, each was counted once.
        input_rate: Records that came per second, since the batch before it began.
        processing_rate: Records that were processed per second.
        phases: Milliseconds by phase, without the whole.
        milliseconds: The whole of it.
        late_rows: Rows that the watermark dropped.
        state_rows: Rows of the query's state.
        state_bytes: Memory of it.
        partitions: Of Kafka's topics.
        sink: Spark's name of the sink.
        run_id: Spark's id of this start of the query.
    """

    batch_id: int
    at: float
    rows: int
    input_rate: float
    processing_rate: float
    phases: Mapping[str, int]
    milliseconds: int
    late_rows: int
    state_rows: int
    state_bytes: int
    partitions: tuple[PartitionReport, ...]
    sink: str
    is_exact: bool = True
    run_id: str = ""

    @property
    def lag(self) -> int | None:
        """Records that are still to be read; None where the source is not Kafka."""
        return sum(partition.lag for partition in self.partitions) if self.partitions else None

    def with_rows(self, rows: int, before: float | None = None) -> BatchReport:
        """Return the same with another count of records, and the rates that follow from it.

        Args:
            rows: The number of records.
            before: When the previous batch began, in seconds since 1970, if it is known.
        """
        if self.rows:
            input_rate, processing_rate = (
                rate * rows / self.rows for rate in (self.input_rate, self.processing_rate)
            )
        else:
            # Spark counted none, so its rates are 0.
            seconds = 0.0 if before is None else self.at - before
            input_rate = rows / seconds if seconds > 0 else 0.0
            processing_rate = rows * 1000 / self.milliseconds if self.milliseconds else 0.0
        return replace(self, rows=rows, is_exact=True, input_rate=input_rate, processing_rate=processing_rate)


def read_report(progress: str) -> BatchReport:
    """Read `StreamingQueryProgress.json`.

    Source: https://spark.apache.org/docs/latest/streaming/apis-on-dataframes-and-datasets.html
    (Reading Metrics Interactively); rates of an empty batch may be absent or NaN.
    """
    event: dict[str, Any] = json.loads(progress)
    durations = {name: int(value) for name, value in (event.get("durationMs") or {}).items()}
    operators = event.get("stateOperators") or []
    sources = event.get("sources") or []
    partitions = [partition for source in sources for partition in _partitions(source)]
    counts = [_records(source) for source in sources]
    report = BatchReport(
        batch_id=int(event["batchId"]),
        at=datetime.fromisoformat(str(event["timestamp"]).replace("Z", "+00:00")).timestamp(),
        rows=int(event.get("numInputRows") or 0),
        input_rate=_rate(event, "inputRowsPerSecond"),
        processing_rate=_rate(event, "processedRowsPerSecond"),
        phases={name: value for name, value in durations.items() if name != "triggerExecution"},
        milliseconds=durations.get("triggerExecution", int(event.get("batchDuration") or 0)),
        late_rows=_sum(operators, "numRowsDroppedByWatermark"),
        state_rows=_sum(operators, "numRowsTotal"),
        state_bytes=_sum(operators, "memoryUsedBytes"),
        partitions=tuple(sorted(partitions, key=lambda each: (each.topic, each.partition))),
        sink=str((event.get("sink") or {}).get("description", "")),
        is_exact=not any(count is None for count in counts),
        run_id=str(event.get("runId", "")),
    )
    if not counts or not report.is_exact:
        return report
    return report.with_rows(sum(count or 0 for count in counts))


def _records(source: Mapping[str, Any]) -> int | None:
    """Return the number of a source's records, or None if only Spark's count of reads is known.

    A batch that is written in several steps reads its records more than once. Spark counts no read of a
    batch with a topic that is paused for lost records, since the others are read by their offsets.
    """
    starts, ends = _offsets(source.get("startOffset")), _offsets(source.get("endOffset"))
    reads = int(source.get("numInputRows") or 0)
    if not ends:
        return reads
    if not starts:
        return None
    offsets = sum(max(0, end - starts.get(partition, 0)) for partition, end in ends.items())
    if offsets and not reads:
        return None
    # Some offsets have no record, in compacted topics and in topics with transactions.
    return min(offsets, reads)


def _rate(event: Mapping[str, Any], name: str) -> float:
    value = event.get(name)
    # Spark writes "Infinity" and "NaN" where it divides by zero.
    return float(value) if isinstance(value, int | float) and abs(value) < float("inf") else 0.0


def _sum(operators: list[Mapping[str, Any]], name: str) -> int:
    return sum(int(operator.get(name) or 0) for operator in operators)


def _partitions(source: Mapping[str, Any]) -> list[PartitionReport]:
    ends, heads = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    return [
        PartitionReport(topic, partition, end, max(end, heads.get((topic, partition), end)))
        for (topic, partition), end in ends.items()
    ]


def _offsets(event: object) -> dict[tuple[str, int], int]:
    """Read Kafka's offsets, `{topic: {partition: offset}}`; return {} for another source."""
    try:
        parsed = json.loads(event) if isinstance(event, str) else event
        return {
            (topic, int(partition)): int(offset)
            for topic, offsets in parsed.items()  # type: ignore[union-attr]
            for partition, offset in offsets.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}
