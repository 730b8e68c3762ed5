"""What an audit found: counts for each partition, and the first offsets that are wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from pyspark.sql import DataFrame, SparkSession

from topiclake.errors import IngestError

#: What a finding may be, in the order in which it is told.
KINDS = ("missing", "doubled", "in_both", "aborted", "unknown")
#: At most so many findings are listed; all are counted.
MAX_FINDINGS = 100


@dataclass(frozen=True)
class PartitionAudit:
    """One partition; offsets from `first` to before `committed` are compared.

    Attributes:
        topic: The topic.
        partition: None for rows of the table that don't say where they came from.
        first: Where the checkpoint began.
        committed: The end of its last committed batch, exclusive.
        in_flight: Offsets after `committed` that a batch has begun with; neither right nor wrong yet.
        aged_out: Offsets that Kafka no longer holds; of those only `doubled` and `in_both` can be told.
        held: Records that Kafka holds.
        in_table: Offsets in the table.
        quarantined: Offsets in quarantine.
        skipped: Tombstones that are nowhere, as the configuration asks.
        paused: Records that a paused topic has missed and is to get; neither right nor wrong yet.
        compacted: Offsets in table or quarantine whose record Kafka has compacted away.
        missing: Records that are nowhere.
        doubled: Rows too many: of an offset that is in the table, or in quarantine, more than once.
        in_both: Offsets in the table and in quarantine.
        aborted: Offsets in table or quarantine whose record is of a transaction that was aborted.
        unknown: Offsets in table or quarantine without a record in Kafka.
    """

    topic: str
    partition: int | None
    first: int = 0
    committed: int = 0
    in_flight: int = 0
    aged_out: int = 0
    held: int = 0
    in_table: int = 0
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
        """What is wrong, by kind."""
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
    """What an audit found.

    Attributes:
        ok: Whether each record that Kafka holds is in exactly one place.
        partitions: One for each partition.
        findings: The first offsets that are wrong, `MAX_FINDINGS` at most.
    """

    ok: bool
    partitions: list[PartitionAudit]
    findings: list[Finding]

    @property
    def has_rows_without_record(self) -> bool:
        """Return whether a row was found whose record the audit did not read from Kafka."""
        return any(partition.unknown or partition.compacted for partition in self.partitions)

    def to_json(self, indent: int | None = None) -> str:
        """Return it as the exit value of a notebook."""
        return json.dumps(asdict(self), indent=indent)

    def require_ok(self) -> None:
        """Raise an IngestError that counts what is wrong, so that a job fails; nothing where all is right."""
        if not self.ok:
            raise IngestError(
                f"the audit found records that are not in exactly one place: {', '.join(self._wrong())}",
                "python -m workbench audit, which lists them",
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
        """Return the partitions as rows, one column an attribute of `PartitionAudit`."""
        kinds = {"topic": "STRING", "partition": "INT"}
        schema = ", ".join(
            f"{field.name} {kinds.get(field.name, 'BIGINT')}" for field in fields(PartitionAudit)
        )
        return spark.createDataFrame(
            [tuple(asdict(partition).values()) for partition in self.partitions], schema
        )

    def __str__(self) -> str:
        sums = {
            name: sum(getattr(partition, name) for partition in self.partitions)
            for name in ("held", "aged_out", "paused")
        }
        lines = [f"✗ {fault}" for fault in self._wrong()]
        if sums["paused"]:
            lines.append(f"· {sums['paused']:,} records wait until their topic goes on")
        if sums["aged_out"]:
            lines.append(f"· {sums['aged_out']:,} offsets cannot be checked: Kafka no longer holds them")
        in_kafka = sums["held"] - sums["paused"]
        right = f"✓ each of the {in_kafka:,} records that Kafka holds is in exactly one place"
        return "\n".join([right, *lines] if self.ok else lines)


def joined(reports: Iterable[AuditReport]) -> AuditReport:
    """Make one report of those of several topics."""
    all_reports = list(reports)
    return AuditReport(
        all(report.ok for report in all_reports),
        [partition for report in all_reports for partition in report.partitions],
        [finding for report in all_reports for finding in report.findings][:MAX_FINDINGS],
    )
