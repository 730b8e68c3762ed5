"""A batch of changes into its table by one MERGE, exactly once, and its rejected changes into quarantine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topiclake.changes import clauses
from topiclake.changes.counts import Counts
from topiclake.changes.newest import Folded, folded, newest
from topiclake.changes.order import CDC_COLUMN, Order
from topiclake.changes.quarantine import quarantine_rows, unresolved
from topiclake.changes.rows import DELETED, OPERATION_FIELD, REASON_FIELD, ChangeRows
from topiclake.changes.rules import ChangeRules
from topiclake.changes.truncates import Truncate
from topiclake.delta import merge
from topiclake.delta import table as delta
from topiclake.formats.envelope import DELETE, UPSERT
from topiclake.streaming.row_cache import cached


@dataclass(frozen=True)
class ChangeTarget:
    """A table of changed rows, and the quarantine of rejected changes.

    Attributes:
        table: Location of the table, which exists.
        quarantine: Location of the quarantine; the first rejected change creates it.
        rules: The rules by which changes become rows.
    """

    table: str
    quarantine: str
    rules: ChangeRules

    def write(self, rows: DataFrame, *, writer: str, batch_id: int) -> None:
        """Merge a batch of changes once, and append its rejected changes once to the quarantine.

        Args:
            rows: The changes.
            writer: Name of the writer, whose batches arrive in the order of their numbers.
            batch_id: Number of the batch. Delta skips a batch that a table already has.
        """
        changes = ChangeRows.of(rows, self.rules)
        table = delta.read(rows.sparkSession, self.table)
        with cached(changes.prepare(rows)) as prepared:
            _Batch(self, changes.order, table, writer, batch_id).write(prepared)


@dataclass(frozen=True)
class _Batch:
    """A batch of changes.

    Attributes:
        target: The table and its rules.
        order: The order of the changes of a key.
        table: The rows of the table before the batch.
        writer: Name of the writer.
        number: Number of the batch.
    """

    target: ChangeTarget
    order: Order
    table: DataFrame
    writer: str
    number: int

    def write(self, prepared: DataFrame) -> None:
        rules = self.target.rules
        counts = Counts.of(prepared, self.order)
        last = Truncate.newest(prepared, self.table, rules.keys, self.order) if rules.truncates else None
        is_valid = F.col(REASON_FIELD).isNull()
        changes = prepared.where(is_valid & F.col(OPERATION_FIELD).isin(UPSERT, DELETE))
        if last is not None:
            changes = changes.where(last.precedes())
        rejected, result = prepared.where(~is_valid), self._fold(changes, counts)
        if result.unresolved is not None:
            rejected = rejected.unionByName(unresolved(result.unresolved))
        with cached(result.newest) as merged, cached(rejected) as quarantined:
            # Before the MERGE: after it, the rows of unavailable values might be known.
            rejections = self._quarantine(quarantined)
            self._merge(merged, counts, rejections, last if last is not None and last.is_new else None)

    def _fold(self, changes: DataFrame, counts: Counts) -> Folded:
        rules = self.target.rules
        if counts.unavailable or rules.ignore_null_updates:
            return folded(changes, self.table, rules, self.order)
        return Folded(newest(changes, rules.keys, self.order), None)

    def _quarantine(self, rejected: DataFrame) -> int:
        number = rejected.count()
        if number:
            rows = quarantine_rows(rejected, self.order, self.number)
            delta.append_once(
                rows, self.target.quarantine, writer=self.writer, batch_id=self.number, commit={}
            )
        return number

    def _merge(self, merged: DataFrame, counts: Counts, rejections: int, truncate: Truncate | None) -> None:
        """Merge the newest changes; the commit has the counts that are known before it."""
        rules = self.target.rules
        deleted = F.count_if(f"{CDC_COLUMN}.{DELETED}")
        ((number, deletions),) = merged.agg(F.count("*"), deleted).collect()
        if not number and truncate is None:
            return
        # As far as it is known before the MERGE. Delta's metrics of the MERGE have the updated rows.
        superseded = counts.rows - counts.skipped - counts.truncates - rejections - number
        changes = {
            "merged": number,
            "superseded": superseded,
            "deleted": deletions,
            "skipped": counts.skipped,
            "quarantined": rejections,
        }
        source = merged
        if truncate is not None:
            source = merged.unionByName(truncate.row(merged, rules.keys), allowMissingColumns=True)
        merge.execute_once(
            source,
            self.target.table,
            clauses.same_key(rules),
            partial(
                clauses.add,
                merged=merged,
                table=self.table,
                rules=rules,
                order=self.order,
                truncate=truncate,
            ),
            writer=self.writer,
            batch_id=self.number,
            commit={"changes": changes, "offsets": counts.offsets},
        )
