"""The state of checkpoint and table when a query starts, read side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from topiclake.config.settings import Settings
from topiclake.delta import table_commits
from topiclake.delta.table_commits import Commits
from topiclake.ingest.targets import Target
from topiclake.session import require_avro_limits
from topiclake.sources.table_snapshot import TableSnapshot, read_snapshot
from topiclake.storage.failures import storage_errors
from topiclake.streaming import checkpoint, lost_offsets
from topiclake.streaming.checkpoint import Progress
from topiclake.threads import both


@dataclass(frozen=True)
class StartState:
    """The state that a start finds.

    Attributes:
        progress: Progress of the query of the checkpoint.
        topic_ids: By topic its id, as the checkpoint has noted it.
        snapshot: Columns and properties of the table. None if the table does not exist, or if each topic has
            a table.
        commits: Newest commits of the table; None likewise, and before the first batch.
    """

    progress: Progress
    topic_ids: Mapping[str, str]
    snapshot: TableSnapshot | None
    commits: Commits | None


def read(spark: SparkSession, settings: Settings, target: Target) -> StartState:
    """Read the state of a target; with several topics, only that of the checkpoint.

    Raises:
        PlatformError: The JVM lacks Avro's limits.
        StorageError: A folder cannot be written or read, or the table forgets which batches it has.
        IngestError: The checkpoint is damaged, or the table has rows of another writer.
    """
    target.require_writable(settings)
    is_single = not settings.pipeline.has_table_for_each

    def batches() -> tuple[Progress, Commits | None]:
        with storage_errors(settings.storage, target.checkpoint):
            progress = checkpoint.progress(spark, target.checkpoint)
        if progress.position is None or not is_single:
            return progress, None
        # The commits are read later than the progress, so that no batch of the progress is missing.
        with storage_errors(settings.storage, target.table):
            return progress, table_commits.newest(spark, target.table)

    def others() -> tuple[Mapping[str, str], TableSnapshot | None]:
        # The first query of a session takes two seconds, in which the other thread reads.
        require_avro_limits(spark)
        with storage_errors(settings.storage, target.checkpoint):
            topic_ids = lost_offsets.topic_ids(spark, target.checkpoint)
        with storage_errors(settings.storage, target.table):
            return topic_ids, read_snapshot(spark, target.table) if is_single else None

    (progress, commits), (topic_ids, snapshot) = both(spark, batches, others)
    if snapshot is not None:
        target.require_own_rows(spark, settings, snapshot)
    return StartState(progress, topic_ids, snapshot, commits)
