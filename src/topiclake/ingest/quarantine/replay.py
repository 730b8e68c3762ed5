"""Quarantined records, decoded again with the schemas of today: each that is right now lands once.

Three commits, and a crash may come after each:
1. claim: rows that decode get the id of a claim, in one commit of the table of claims;
2. append: the rows of a claim go to the table as batch 0 of a writer of the claim's name, so once for ever;
3. mark: the rows get the time.
The next replay finishes what an earlier one claimed. Which rows a claim holds never changes, so it does not
matter who finishes it, nor how many try at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TypeVar
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

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
#: Commits in which the newest batch is looked for; between batches are OPTIMIZE and changes of the table.
_NEWEST_COMMITS = 10

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ReplayReport:
    """What one replay did.

    Attributes:
        looked_at: Rows that waited, and those that an earlier replay had claimed and not marked.
        replayed: Rows of the quarantine that this replay marked as being in the table.
        left: Rows that wait on, by reason.
        claims: Ids of the claims that it finished.
    """

    looked_at: int = 0
    replayed: int = 0
    left: dict[str, int] = field(default_factory=dict)
    claims: list[str] = field(default_factory=list)

    def to_json(self, indent: int | None = None) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=indent)


def replay_quarantine(
    spark: SparkSession,
    settings: Settings,
    reasons: Sequence[str] = (),
    *,
    transform: Function | None = None,
) -> ReplayReport:
    """Put quarantined records of the pipeline's topic into its table, each once, if they decode now.

    Run it again after a crash, or while another one runs: no record is lost, none lands twice.

    Args:
        spark: The session.
        settings: The configuration.
        reasons: Only rows with these reasons are claimed; empty: all. Earlier claims are finished anyway.
        transform: That of `start_ingest`.

    Raises:
        ConfigError: A reason that there is not.
        SchemaRegistryError, StorageError: A service cannot be used.
        IngestError: Rows that an earlier replay claimed no longer decode, or the transform fails; everything
            else is done. Or the table has transformed rows, and there is no transform. Or another version of
            Topiclake wrote the quarantine.

    Example:
        >>> tl.replay_quarantine(spark, settings).left
        {'undecodable': 1}
    """
    settings = settings.only_topic()
    require_reasons(reasons)
    to = target(settings, transform)
    with storage_errors(settings.storage, to.quarantine):
        if not delta.is_table(spark, to.quarantine):
            return ReplayReport()
    require_avro_limits(spark)
    log_store.require_log_store(spark, to.quarantine)
    _require_transform(spark, to)
    read = decoder_for(spark, to, settings.pipeline)
    return _Replay(spark, to, settings.pipeline.topic, tuple(reasons), read).run()


def _require_transform(spark: SparkSession, to: Target) -> None:
    """Check that rows of a table that a transform has made get no others among them."""
    if to.transform is not None or not delta.is_table(spark, to.table):
        return
    newest = next(iter(table_commits.read(spark, to.table, limit=_NEWEST_COMMITS).valid), None)
    if newest is not None and (name := newest.kept.get("transform")):
        raise IngestError(
            f"the newest rows of {to.table} were made by transform {name}, and this replay has none",
            f"replay_quarantine(spark, settings, transform={name})",
            table=to.table,
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
        looked_at = self._retried(lambda: self._open().count())
        if not looked_at:
            return ReplayReport()
        self._retried(self._claim)
        claims = self._retried(self._open_claims)
        replayed, stuck = 0, []
        for claim in claims:
            try:
                replayed += self._retried(partial(self._finish, claim))
            except IngestError as error:
                stuck.append(error)
        if stuck:
            raise stuck[0]
        return ReplayReport(looked_at, replayed, self._retried(self._waiting), claims)

    def _rows(self) -> DataFrame:
        rows = replay_claims.read(self.spark, self.target.quarantine)
        return self.decoder.tag(rows.where(F.col("topic") == self.topic))

    def _open(self) -> DataFrame:
        """Return the rows that wait, and those that are claimed and not marked yet."""
        asked = F.col("reason").isin(*self.reasons) if self.reasons else F.lit(True)
        return self._rows().where(F.col("replayed_at").isNull() & (F.col("replay").isNotNull() | asked))

    def _open_claims(self) -> list[str]:
        claimed = self._open().where("replay IS NOT NULL").select("replay").distinct()
        return sorted(row["replay"] for row in claimed.collect())

    def _waiting(self) -> dict[str, int]:
        rows = self._open().where("replay IS NULL").groupBy("reason").count().orderBy("reason")
        return {row["reason"]: row["count"] for row in rows.collect()}

    def _claim(self) -> None:
        """Step 1, for rows that are valid now."""
        waiting = self._open().where("replay IS NULL")
        valid = self.decoder.valid(waiting)
        if not valid.isEmpty():
            replay_claims.claim(self.spark, self.target.quarantine, valid, uuid4().hex)

    def _finish(self, claim: str) -> int:
        """Do steps 2 and 3, whether or not they were done before; return how many rows were marked."""
        claimed = self._rows().where(F.col("replay") == claim).dropDuplicates(["partition", "offset"])
        lost = self.decoder.invalid(claimed)
        writer = f"replay/{claim}"
        if not lost:
            self._append(claimed, writer)
        elif delta.commit_of(self.spark, self.target.table, writer=writer, batch_id=0) is None:
            raise IngestError(
                f"claim {claim} in {self.target.quarantine} cannot be finished: its records with "
                f"{', '.join(lost)} decoded when they were claimed and no longer do; nothing is lost",
                "put back the schemas (under their ids), value_schema, or what the table demanded, then "
                "python -m workbench quarantine replay",
                claim=claim,
                quarantine=self.target.quarantine,
                lost=tuple(lost),
            )
        return replay_claims.mark(self.spark, self.target.quarantine, claim)

    def _append(self, claimed: DataFrame, writer: str) -> None:
        rows, how = self.decoder.rows(claimed)
        commit = self.target.origin | how
        with self.target.table_rows(rows, self.decoder.table_columns(), writer) as table_rows:
            delta.append_once(table_rows, self.target.table, writer=writer, batch_id=0, commit=commit)

    def _retried(self, step: Callable[[], _Result]) -> _Result:
        """Do a step again when another writer was faster: to read rows may change the table, too."""
        tries = Retrying(
            retry=retry_if_exception(delta.is_conflict),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.1, max=1),  # so that two do not meet again
            before_sleep=lambda _: self.decoder.refresh(),
            reraise=True,
        )
        return tries(step)


def quarantine_summary(
    spark: SparkSession,
    settings: Settings,
    reason: str | None = None,
    replayed: ReplayReport | None = None,
) -> str:
    """Return what is in quarantine as the exit value of a notebook.

    Returns:
        JSON: `path`, `reasons` and the first 20 `rows` as their functions return them, and `replay`, or null.

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
