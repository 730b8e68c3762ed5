"""A batch of changes into its table by one MERGE, exactly once, and its rejected changes into quarantine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topiclake.changes import clauses, lookup, unavailable
from topiclake.changes.counts import Counts
from topiclake.changes.history import NEW, versions
from topiclake.changes.newest import newest
from topiclake.changes.order import CDC_COLUMN, Order
from topiclake.changes.quarantine import quarantine_rows, refused, unresolved
from topiclake.changes.rows import DELETED, OPERATION_FIELD, REASON_FIELD, ChangeRows, named
from topiclake.changes.rules import ChangeRules
from topiclake.changes.truncates import Truncate
from topiclake.delta import merge
from topiclake.delta import table as delta
from topiclake.formats.envelope import DELETE, UPSERT
from topiclake.session import is_connect
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
        with resolved(rows, self.table, self.rules) as changes:
            if changes.rejections:
                bad = quarantine_rows(changes.rejected, changes.order, batch_id)
                delta.append_once(bad, self.quarantine, writer=writer, batch_id=batch_id, commit={})
            changes.merge(writer=writer, batch_id=batch_id)


@contextmanager
def resolved(rows: DataFrame, path: str, rules: ChangeRules) -> Iterator[Changes]:
    """Compute the newest changes of a batch, and those that the table cannot have.

    Write rejected changes before the MERGE. After it, the rows of unavailable values might be known.

    Args:
        rows: The changes.
        path: Location of the table, which exists.
        rules: The rules by which changes become rows.
    """
    source, table = ChangeRows.of(rows, rules), delta.read(rows.sparkSession, path)
    order, properties = source.order, delta.properties(rows.sparkSession, path)
    with ExitStack() as caches:
        prepared = caches.enter_context(cached(refused(source.prepare(rows), table.schema, properties)))
        counts = Counts.of(prepared, order)
        version = None
        if counts.unavailable or rules.has_versions:
            # Merged and rejected changes must fit one version of the table. After a commit of another writer,
            # Spark computes cached rows again.
            version = delta.latest_version(rows.sparkSession, path)
            table = delta.read(rows.sparkSession, path, version)
        last = None
        if rules.truncates:
            last = Truncate.newest(prepared if counts.truncates else None, table, rules.keys, order)
        is_valid = F.col(REASON_FIELD).isNull()
        changes = prepared.where(is_valid & F.col(OPERATION_FIELD).isin(UPSERT, DELETE))
        if last is not None:
            changes = changes.where(last.precedes())
        rejected, rejections = prepared.where(~is_valid), counts.rejected
        if counts.moved:
            changes = caches.enter_context(cached(unavailable.moved(changes, table, rules, order)))
        if rules.has_versions:
            stored = lookup.stored(table, changes.select(*map(named, rules.keys)), rules.keys)
            result, unknown = versions(changes, stored, rules, order)
            unknown = caches.enter_context(cached(unknown)) if counts.unavailable else unknown
        else:
            if counts.unavailable:
                found = caches.enter_context(
                    cached(unavailable.with_known(changes, table, rules, order, last))
                )
                is_known = F.col(unavailable.KNOWN)
                changes, unknown = (
                    found.where(part).drop(unavailable.KNOWN) for part in (is_known, ~is_known)
                )
            truncated = None if last is None else last.literal
            result = newest(
                changes, rules, order, truncated=truncated, has_unavailable=counts.unavailable > 0
            )
        if counts.unavailable and (unresolvable := unknown.count()):
            rejected = rejected.unionByName(unresolved(unknown))
            rejections += unresolvable
        merged = caches.enter_context(cached(result))
        truncate = last if last is not None and last.is_new else None
        # A correction of versions has the columns of changes, and none of them.
        nothing = changes.limit(0)
        yield Changes(
            path, rules, order, table, version, counts, nothing, merged, truncate, rejected, rejections
        )


@dataclass(frozen=True)
class Changes:
    """The changes of a batch.

    Attributes:
        path: Location of the table.
        rules: The rules by which changes become rows.
        order: The order of the changes of a key.
        table: The rows of the table before the batch.
        version: The version of the table that has them, if it is fixed.
        counts: The counts of the batch.
        no_changes: The columns of changes, without rows.
        merged: The newest change of each key.
        truncate: A truncate of the batch.
        rejected: The changes that the table cannot have, with their reason.
        rejections: Their number.
    """

    path: str
    rules: ChangeRules
    order: Order
    table: DataFrame
    version: int | None
    counts: Counts
    no_changes: DataFrame
    merged: DataFrame
    truncate: Truncate | None
    rejected: DataFrame
    rejections: int

    def merge(
        self,
        *,
        writer: str | None,
        batch_id: int = 0,
        skipped: int = 0,
        quarantined: int = 0,
        shares_session: bool = False,
        commit: Mapping[str, object] = MappingProxyType({}),
    ) -> dict[str, int]:
        """Merge the newest changes; the commit has the counts that are known before it.

        Args:
            writer: Name of the writer. None: the MERGE is executed in any case. If it is repeated, it changes
                no row.
            batch_id: Number of the batch.
            skipped: Number of records of the batch that the caller has skipped.
            quarantined: Number of records of the batch that the caller has put into quarantine before.
            shares_session: Whether other threads use the session at the same time. Then the MERGE has no
                transaction id, and a commit without rows after it has the id and the metadata. It is so on
                Spark Connect, too.
            commit: Metadata of the commit.

        Returns:
            The counts.
        """
        counts, merged, truncate = self.counts, self.merged, self.truncate
        is_new = F.col(NEW) if self.rules.has_versions else F.lit(True)
        is_deletion = F.col(f"{CDC_COLUMN}.{DELETED}")
        totals = (
            F.count("*"),
            F.count_if(is_new),
            F.count_if(is_new & is_deletion),
            *lookup.ends(merged.schema, self.rules.keys),
        )
        ((rows, number, deletions, *ends),) = merged.agg(*totals).collect()
        # As far as it is known before the MERGE. Delta's metrics of the MERGE have the updated rows.
        superseded = counts.rows - counts.skipped - counts.truncates - self.rejections - number
        changes = {
            "merged": number,
            "superseded": superseded,
            "deleted": deletions,
            "skipped": counts.skipped + skipped,
            "quarantined": self.rejections + quarantined,
        }
        metadata = {"changes": changes, "offsets": counts.offsets} | dict(commit)
        # A batch without new rows is usually a repeated one. With an id, Delta would skip its corrections.
        may_have_id = not shares_session and not is_connect(merged.sparkSession)
        has_id = may_have_id and (bool(number) or truncate is not None)
        changed_rows = 0
        if rows or truncate is not None:
            changed_rows = self._execute(merged, ends, writer if has_id else None, batch_id, metadata)
        if rows and self.rules.has_versions:
            # A MERGE that changes no row is that of a repeated batch.
            self.correct(self.version if changed_rows else None)
        if writer is not None and not has_id:
            # The history has each batch.
            nothing = self.table.limit(0)
            delta.append_once(nothing, self.path, writer=writer, batch_id=batch_id, commit=metadata)
        return changes

    def correct(self, version: int | None = None) -> None:
        """Compute the versions of the batch's keys again, if another writer has committed since.

        That writer has computed them without the changes of this batch, and this batch without its changes.

        Args:
            version: The version of the table before the MERGE. None: compute the versions in any case.
        """
        spark, keys = self.merged.sparkSession, self.rules.keys
        newest_version = delta.latest_version(spark, self.path)
        while version is None or newest_version != version + 1:
            version = newest_version
            wanted = self.merged.select(*map(named, keys))
            stored = lookup.stored(delta.read(spark, self.path, version), wanted, keys)
            result, _ = versions(self.no_changes, stored, self.rules, self.order)
            with cached(result) as corrections:
                totals = F.count("*"), *lookup.ends(corrections.schema, keys)
                ((rows, *ends),) = corrections.agg(*totals).collect()
                if not rows:
                    return
                self._execute(corrections, ends)
            newest_version = delta.latest_version(spark, self.path)

    def _execute(
        self,
        rows: DataFrame,
        ends: Sequence[str | None],
        writer: str | None = None,
        batch_id: int = 0,
        metadata: Mapping[str, object] = MappingProxyType({}),
    ) -> int:
        rules, truncate, source = self.rules, self.truncate, rows
        if rules.has_versions:
            actions = clauses.versions(source, rules)
        else:
            actions = clauses.newest(source, self.table, rules, self.order, truncate)
        if truncate is not None:
            source = source.unionByName(truncate.row(rows, rules.keys), allowMissingColumns=True)
        conditions = clauses.same_row(rules, self.order)
        conditions += lookup.within(rows.schema, rules.keys, ends, "old.")
        return merge.execute_once(
            source,
            self.path,
            " AND ".join(conditions),
            actions,
            writer=writer,
            batch_id=batch_id,
            commit=metadata,
        )
