"""Replay of quarantined records with the current schemas: each valid record is appended to the table once.

A replay makes three commits, and may crash after each.

1. Claim. In one commit of the table of claims, valid rows get the id of a claim.
2. Append. The rows of a claim are appended as batch 0 of a writer with the claim's name, so only once.
3. Mark. The rows of the claim get a time.

The next replay finishes the claims of earlier ones. No row joins a claim later, so any replay can finish it,
also several at once. Changes are merged in step 2. A claimed change whose row was deleted meanwhile leaves
the claim and waits again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TypeVar
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from topiclake.changes.batch import Changes
from topiclake.changes.order import CDC_COLUMN, OFFSET, PARTITION
from topiclake.changes.pipeline import RowChanges
from topiclake.config.settings import Settings
from topiclake.delta import log_store, table_commits
from topiclake.delta import table as delta
from topiclake.errors import IngestError
from topiclake.ingest.quarantine import replay_claims
from topiclake.ingest.quarantine.views import quarantine_reasons, quarantine_rows, require_reasons
from topiclake.ingest.row_decoder import RowDecoder, decoder_for
from topiclake.ingest.row_transform import Function
from topiclake.ingest.targets import Target, target
from topiclake.session import require_avro_limits
from topiclake.storage.failures import storage_errors

_ATTEMPTS = 10
#: Number of commits in which the newest batch is searched. OPTIMIZE and ALTER TABLE may be between batches.
_NEWEST_COMMITS = 10

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ReplayReport:
    """The result of one replay.

    Attributes:
        examined: Number of rows that waited, or that an earlier replay had claimed and not marked.
        replayed: Number of rows that this replay marked as being in the table.
        waiting: Number of rows that still wait, by reason.
        claims: Ids of the finished claims.
    """

    examined: int = 0
    replayed: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    claims: list[str] = field(default_factory=list)

    def to_json(self, indent: int | None = None) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self), indent=indent)

    def __str__(self) -> str:
        waiting = "".join(f", {count:,} wait: {reason}" for reason, count in sorted(self.waiting.items()))
        return f"{self.examined:,} examined, {self.replayed:,} replayed{waiting}"


def replay_quarantine(
    spark: SparkSession,
    settings: Settings,
    reasons: Sequence[str] = (),
    *,
    transform: Function | None = None,
) -> ReplayReport:
    """Append quarantined records of the pipeline's topic to its table, each once, if they decode now.

    It is safe to repeat after a crash, or while another replay runs: no record is lost or doubled.

    Args:
        spark: The session.
        settings: The configuration.
        reasons: Reasons of the rows to claim; empty for all. Earlier claims are always finished.
        transform: The transform of `start_ingest`.

    Returns:
        The number of examined and replayed rows, and of those that still wait, by reason.

    Raises:
        ConfigError: A reason does not exist.
        SchemaRegistryError, StorageError: A service cannot be used.
        IngestError: Rows that an earlier replay claimed no longer decode, or the transform fails; all other
            claims are finished. Or the table has transformed rows, and `transform` is missing. Or another
            version of Topiclake wrote the quarantine.

    Example:
        >>> tl.replay_quarantine(spark, settings).waiting
        {'undecodable': 1}
    """
    settings = settings.only_topic()
    require_reasons(reasons)
    ingest_target = target(settings, transform)
    with storage_errors(settings.storage, ingest_target.quarantine):
        if not delta.is_table(spark, ingest_target.quarantine):
            return ReplayReport()
    require_avro_limits(spark)
    log_store.require_log_store(spark, ingest_target.table, ingest_target.quarantine)
    _require_transform(spark, ingest_target)
    decoder = decoder_for(spark, ingest_target, settings.pipeline)
    return _Replay(spark, ingest_target, settings.pipeline.topic, tuple(reasons), decoder).run()


def _require_transform(spark: SparkSession, target: Target) -> None:
    """Check that rows without a transform are not added to a table of transformed rows."""
    if target.transform is not None or not delta.is_table(spark, target.table):
        return
    newest = next(iter(table_commits.read(spark, target.table, limit=_NEWEST_COMMITS).valid), None)
    if newest is not None and (name := newest.metadata.get("transform")):
        raise IngestError(
            f"the newest rows of {target.table} were made by transform {name}, and this replay has none",
            f"use replay_quarantine(spark, settings, transform={name})",
            table=target.table,
            transform=name,
            reason="no_transform",
        )


@dataclass
class _Replay:
    """One replay of one topic."""

    spark: SparkSession
    target: Target
    topic: str
    reasons: tuple[str, ...]
    decoder: RowDecoder

    def run(self) -> ReplayReport:
        examined = self._retried(lambda: self._open().count())
        if not examined:
            return ReplayReport()
        self._retried(self._claim)
        claims = self._retried(self._open_claims)
        replayed, errors = 0, []
        for claim in claims:
            try:
                replayed += self._retried(partial(self._finish, claim))
            except IngestError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return ReplayReport(examined, replayed, self._retried(self._waiting), claims)

    def _rows(self, version: int | None = None) -> DataFrame:
        rows = replay_claims.read(self.spark, self.target.quarantine, version)
        return self.decoder.tag(rows.where(F.col("topic") == self.topic))

    def _open(self, version: int | None = None) -> DataFrame:
        """Return the rows that wait, and those that are claimed but not marked yet, at most of a version."""
        is_requested = F.col("reason").isin(*self.reasons) if self.reasons else F.lit(True)
        return self._rows(version).where(
            F.col("replayed_at").isNull() & (F.col("replay").isNotNull() | is_requested)
        )

    def _open_claims(self) -> list[str]:
        claimed = self._open().where("replay IS NOT NULL").select("replay").distinct()
        return sorted(row["replay"] for row in claimed.collect())

    def _waiting(self) -> dict[str, int]:
        rows = self._open().where("replay IS NULL").groupBy("reason").count().orderBy("reason")
        return {row["reason"]: row["count"] for row in rows.collect()}

    def _claim(self) -> None:
        """Do step 1 for rows that are valid now."""
        # Rows that the ingest adds meanwhile are not among the rejected changes.
        version = delta.latest_version(self.spark, self.target.quarantine)
        waiting = self._open(version).where("replay IS NULL")
        valid = self.decoder.valid(waiting)
        with ExitStack() as until_claimed:
            if self.target.changes is not None:
                rows, _ = self.decoder.rows(waiting)
                changes = until_claimed.enter_context(self.target.changes.resolved(rows, self.target.table))
                valid = valid.join(_rejected(changes), [PARTITION, OFFSET], "left_anti")
            if not valid.isEmpty():
                replay_claims.claim(self.spark, self.target.quarantine, valid, uuid4().hex)

    def _finish(self, claim: str) -> int:
        """Do steps 2 and 3, which are safe to repeat; return the number of rows that were marked."""
        claimed = self._rows().where(F.col("replay") == claim).dropDuplicates(["partition", "offset"])
        invalid = self.decoder.invalid(claimed)
        writer = f"replay/{claim}"
        if not invalid and self.target.changes is not None:
            self._merge(self.target.changes, claimed, claim)
        elif not invalid:
            self._append(claimed, writer)
        elif delta.commit_of(self.spark, self.target.table, writer=writer, batch_id=0) is None:
            raise IngestError(
                f"claim {claim} in {self.target.quarantine} cannot be finished: its records with "
                f"{', '.join(invalid)} decoded when they were claimed and no longer do; nothing is lost",
                "put back the schemas (under their ids), value_schema, or what the table demanded, then "
                "python -m workbench quarantine replay",
                claim=claim,
                quarantine=self.target.quarantine,
                lost=tuple(invalid),
            )
        return replay_claims.mark(self.spark, self.target.quarantine, claim)

    def _append(self, claimed: DataFrame, writer: str) -> None:
        rows, decoding = self.decoder.rows(claimed)
        commit = self.target.origin | decoding
        with self.target.table_rows(rows, self.decoder.table_columns(), writer) as table_rows:
            delta.append_once(table_rows, self.target.table, writer=writer, batch_id=0, commit=commit)

    def _merge(self, row_changes: RowChanges, claimed: DataFrame, claim: str) -> None:
        """Merge the usable changes of a claim, and let the others wait again.

        A change with an unavailable value needs its row, which a batch may have deleted since the claim.
        The MERGE needs no transaction id: a repeated one changes no row. And it never undoes a newer change.
        """
        rows, _ = self.decoder.rows(claimed)
        with row_changes.resolved(rows, self.target.table) as changes:
            if changes.rejections:
                released = self._rows().join(_rejected(changes), [PARTITION, OFFSET], "left_semi")
                replay_claims.release(self.target.quarantine, released, claim)
            changes.merge(writer=None)

    def _retried(self, step: Callable[[], _Result]) -> _Result:
        """Repeat a step if another writer was faster; also reading rows may change the table."""
        tries = Retrying(
            retry=retry_if_exception(delta.is_conflict),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.1, max=1),  # so that two replays do not conflict again
            before_sleep=lambda _: self.decoder.refresh(),
            reraise=True,
        )
        return tries(step)


def _rejected(changes: Changes) -> DataFrame:
    """Return the positions of the changes that are not usable now."""
    return F.broadcast(changes.rejected.select(*(f"{CDC_COLUMN}.{name}" for name in (PARTITION, OFFSET))))


def quarantine_summary(
    spark: SparkSession,
    settings: Settings,
    reason: str | None = None,
    replayed: ReplayReport | None = None,
) -> str:
    """Return a summary of the quarantine as the exit value of a notebook.

    Returns:
        JSON: `path`, `reasons` and the first 20 `rows` as the functions of these names return them, and
        `replay`, which may be null.

    Example:
        >>> import json
        >>> json.loads(tl.quarantine_summary(spark, settings))["replay"]
    """
    return json.dumps(
        {
            "path": target(settings).quarantine,
            "reasons": delta.as_json(quarantine_reasons(spark, settings)),
            "rows": delta.as_json(quarantine_rows(spark, settings, reason).limit(20)),
            "replay": replayed and asdict(replayed),
        }
    )
