"""The report of an audit: counts for each partition, and the first wrong offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from pyspark.sql import DataFrame, SparkSession

from topiclake.errors import IngestError
from topiclake.local_frame import local_frame

#: Kinds of findings, in the order of the report.
KINDS = ("missing", "doubled", "in_both", "aborted", "unknown")
#: Number of findings in a report, at most. All findings are counted.
MAX_FINDINGS = 100


@dataclass(frozen=True)
class PartitionAudit:
    """Counts of one partition, of the offsets from `first` to before `committed`.

    Attributes:
        topic: The topic.
        partition: The partition, or None for rows of the table that do not name their record.
        first: First offset of the checkpoint.
        committed: End of its last committed batch, exclusive.
        in_flight: Offsets after `committed` of a batch that has begun; neither right nor wrong yet.
        aged_out: Offsets that Kafka no longer holds. Among those, only `doubled` and `in_both` are detected.
        in_kafka: Records that Kafka holds.
        in_table: Offsets in the table.
        deleted: Offsets of deletions in the table of change data, which `in_table` includes.
        superseded: Changes that a newer change of the table replaces.
        quarantined: Offsets in quarantine.
        skipped: Tombstones that are in neither table, as configured, and records that are no change.
        paused: Records that a paused topic has missed and will get; neither right nor wrong yet.
        compacted: Offsets in table or quarantine whose record Kafka has removed by compaction.
        missing: Records that are in neither table.
        doubled: Surplus rows of offsets that are in the table, or in quarantine, more than once.
        in_both: Offsets in the table and in quarantine.
        aborted: Offsets in table or quarantine whose record belongs to an aborted transaction.
        unknown: Offsets in table or quarantine without a record in Kafka.
    """

    topic: str
    partition: int | None
    first: int = 0
    committed: int = 0
    in_flight: int = 0
    aged_out: int = 0
    in_kafka: int = 0
    in_table: int = 0
    deleted: int = 0
    superseded: int = 0
    quarantined: int = 0
    skipped: int = 0
    paused: int = 0
    compacted: int = 0
    missing: int = 0
    doubled: int = 0
    in_both: int = 0
    aborted: int = 0
    unknown: int = 0

    @property
    def faults(self) -> dict[str, int]:
        """Number of wrong offsets by kind, without zeros."""
        return {kind: getattr(self, kind) for kind in KINDS if getattr(self, kind)}


@dataclass(frozen=True)
class Finding:
    """An offset that is not in exactly one place; `kind` is one of `KINDS`."""

    topic: str
    partition: int | None
    offset: int | None
    kind: str


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit.

    Attributes:
        ok: Whether each record that Kafka holds is in exactly one place.
        partitions: The counts of each partition.
        findings: The first wrong offsets, at most `MAX_FINDINGS`.
    """

    ok: bool
    partitions: list[PartitionAudit]
    findings: list[Finding]

    @property
    def has_rows_without_record(self) -> bool:
        """Whether a table has rows whose record the audit did not read from Kafka."""
        return any(partition.unknown or partition.compacted for partition in self.partitions)

    def to_json(self, indent: int | None = None) -> str:
        """Return the report as JSON, for the exit value of a notebook."""
        return json.dumps(asdict(self), indent=indent)

    def require_ok(self) -> None:
        """Raise an IngestError with the number of wrong offsets by kind, if any, so that a job fails."""
        if not self.ok:
            raise IngestError(
                f"the audit found records that are not in exactly one place: {', '.join(self._wrong())}",
                "run python -m workbench audit, which lists them",
                faults=tuple(
                    (partition.topic, partition.partition, kind, count)
                    for partition in self.partitions
                    for kind, count in partition.faults.items()
                ),
            )

    def _wrong(self) -> list[str]:
        return [
            f"topic {partition.topic}, partition {partition.partition}: {count:,} {kind}"
            for partition in self.partitions
            for kind, count in partition.faults.items()
        ]

    def summary(self, spark: SparkSession) -> DataFrame:
        """Return the partitions as rows, with one column for each attribute of `PartitionAudit`."""
        kinds = {"topic": "STRING", "partition": "INT"}
        schema = ", ".join(
            f"{field.name} {kinds.get(field.name, 'BIGINT')}" for field in fields(PartitionAudit)
        )
        return local_frame(
            spark, [tuple(asdict(partition).values()) for partition in self.partitions], schema
        )

    def __str__(self) -> str:
        sums = {
            name: sum(getattr(partition, name) for partition in self.partitions)
            for name in ("in_kafka", "aged_out", "paused")
        }
        lines = [f"✗ {fault}" for fault in self._wrong()]
        if sums["paused"]:
            lines.append(f"· {sums['paused']:,} records wait until their topic resumes")
        if sums["aged_out"]:
            lines.append(f"· {sums['aged_out']:,} offsets cannot be checked: Kafka no longer holds them")
        checked = sums["in_kafka"] - sums["paused"]
        valid = f"✓ each of the {checked:,} records that Kafka holds is in exactly one place"
        return "\n".join([valid, *lines] if self.ok else lines)


def joined(reports: Iterable[AuditReport]) -> AuditReport:
    """Return one report that joins those of several topics."""
    all_reports = list(reports)
    return AuditReport(
        all(report.ok for report in all_reports),
        [partition for report in all_reports for partition in report.partitions],
        [finding for report in all_reports for finding in report.findings][:MAX_FINDINGS],
    )
