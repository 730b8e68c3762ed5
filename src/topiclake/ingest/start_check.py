"""Compare checkpoint, table and history before a query starts, since each may be missing or replaced.

Without this check, a query could double or lose records silently. If they differ, `resume` specifies how to
start. If they agree, it has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from topiclake.config.settings import Settings
from topiclake.config.source import EARLIEST
from topiclake.delta import table_commits
from topiclake.errors import IngestError
from topiclake.ingest import resume_table, table_content, targets
from topiclake.ingest.paused_topics import Span, mark_resumed, paused, spans_by_partition
from topiclake.ingest.resume_table import Resumption
from topiclake.ingest.start_state import StartState
from topiclake.ingest.table_content import TableContent
from topiclake.ingest.targets import Target
from topiclake.ingest.topic_targets import Topics
from topiclake.kafka import offsets as kafka_offsets
from topiclake.kafka import source as kafka_source
from topiclake.kafka.offsets import BrokerOffsets
from topiclake.storage.failures import storage_errors
from topiclake.streaming import batch_offsets, checkpoint, resumptions
from topiclake.streaming.checkpoint import NONE, Offsets
from topiclake.threads import side_by_side


@dataclass(frozen=True)
class StartCheck:
    """The comparison of checkpoint, table and history for one start.

    Attributes:
        spark: The session.
        settings: The configuration.
        target: The tables; for several topics, their paths contain `{topic}`.
        state: The state of checkpoint and table.
        topics: The targets of several topics; None for a single table.
        is_plan: Whether nothing is written.
    """

    spark: SparkSession
    settings: Settings
    target: Target
    state: StartState
    topics: Topics | None
    is_plan: bool = False

    def run(self) -> Settings:
        """Return the configuration to start with.

        With `resume=table` and no checkpoint, records that are in neither table are written first, unless
        this is a plan. Then `starting_offsets` are the ends of the tables.

        Raises:
            IngestError: Checkpoint, table and history differ, and `resume` does not specify how to start.
            ConfigError: The mode of `resume` is not possible.
            OffsetsLostError, KafkaError, SchemaRegistryError: Missing records cannot be written.
        """
        with storage_errors(self.settings.storage, self.target.table):
            if self.state.progress.position is None:
                return self._begin()
            self._require_agreement(self.state.progress.position)
        return self.settings

    @cached_property
    def _first_offsets(self) -> Offsets:
        """The first offsets of the checkpoint, which all its topics share."""
        return checkpoint.begin_offsets(self.spark, self.target.checkpoint, 0) or {}

    @cached_property
    def _paused(self) -> Mapping[str, Sequence[Row]]:
        """The ranges that paused topics wait for."""
        return {} if self.topics is None else paused(self.spark, self.topics.ledger)

    @property
    def _again(self) -> str:
        """The mode that begins a new checkpoint for the same table."""
        return "table" if self.target.changes is None else "restart"

    def _target(self, topic: str) -> Target:
        return self.target if self.topics is None else self.topics.target(topic)

    # A checkpoint that has begun

    def _require_agreement(self, position: Offsets) -> None:
        topics = self.settings.pipeline.topics
        if self.topics is not None:
            topics = tuple(topic for topic in sorted(position) if self.settings.pipeline.reads(topic))
        side_by_side(self.spark, (partial(self._compare, position, topic) for topic in topics))

    def _compare(self, position: Offsets, topic: str) -> None:
        """Compare the newest batch of a topic in the checkpoint with the one in the table."""
        target, progress = self._target(topic), self.state.progress
        commits = (
            self.state.commits if self.topics is None else table_commits.newest(self.spark, target.table)
        )
        if commits is None:
            if progress.committed != NONE and not self._may_lack_table(position, topic):
                self._refuse_table(target, topic, f"there is no table at {target.table}", "table_gone")
            return
        writer = targets.writer_name(target, self.spark)
        newest, is_certain = table_commits.newest_of(self.spark, target.table, writer, commits)
        if newest is None:
            if is_certain and progress.committed != NONE and not self._may_lack_table(position, topic):
                difference = f"the table at {target.table} has no batch of it"
                self._refuse_table(target, topic, difference, "table_replaced")
            return
        batch_id = int(newest.metadata["batch_id"])
        if batch_id > progress.planned:
            raise self._checkpoint_restored(target, topic, batch_id)
        if self.topics is not None:
            # A batch without records of the topic makes no commit, so no further comparison is possible.
            return
        if batch_id < progress.committed:
            difference = f"the table at {target.table} ends with batch {batch_id}"
            self._refuse_table(target, topic, difference, "table_put_back")
            return
        ends = position
        if batch_id > progress.committed:
            ends = checkpoint.end_offsets(self.spark, target.checkpoint, batch_id) or position
        batch_offsets.require_same_ends(
            newest.metadata, ends, table=target.table, checkpoint=target.checkpoint
        )

    def _checkpoint_restored(self, target: Target, topic: str, batch_id: int) -> IngestError:
        return IngestError(
            f"the checkpoint at {target.checkpoint} ends with batch {self.state.progress.planned}, but the "
            f"table at {target.table} has its batch {batch_id}: records would be lost",
            f"put the newest checkpoint back, or move this one away and start with resume={self._again}",
            pipeline=self.settings.name,
            topic=topic,
            checkpoint=target.checkpoint,
            table=target.table,
            batch_id=self.state.progress.planned,
            expected=batch_id,
            reason="checkpoint_put_back",
        )

    def _may_lack_table(self, position: Offsets, topic: str) -> bool:
        """Return whether a topic of several may have no table, which is created with its first record."""
        if self.topics is None:
            return False
        is_empty = position[topic] == self._first_offsets.get(topic, dict.fromkeys(position[topic], 0))
        return is_empty or topic in self._paused

    def _refuse_table(self, target: Target, topic: str, difference: str, reason: str) -> None:
        if self.settings.pipeline.resume == "checkpoint":
            return
        raise IngestError(
            f"the checkpoint at {target.checkpoint} has written topic {topic} up to batch "
            f"{self.state.progress.committed}, but "
            f"{difference}: the records before would be lost",
            "put the table back; or resume=checkpoint, which continues without them; or move the checkpoint "
            f"away and start with resume={self._again}, which reads them again",
            pipeline=self.settings.name,
            topic=topic,
            checkpoint=target.checkpoint,
            table=target.table,
            batch_id=self.state.progress.committed,
            reason=reason,
        )

    # A checkpoint that begins

    def _begin(self) -> Settings:
        broker_offsets = BrokerOffsets()
        if self.topics is None:
            topics: Iterable[str] = self.settings.pipeline.topics
        else:
            broker_offsets = kafka_offsets.pipeline_offsets(self.settings.kafka, self.settings.pipeline, [])
            topics = sorted(broker_offsets.offsets)
        found = side_by_side(self.spark, (partial(self._content, topic) for topic in topics))
        contents = [content for content in found if content is not None]
        pipeline = self.settings.pipeline
        if not contents:
            return self.settings
        if pipeline.resume == "restart":
            self._require_same_offsets(contents)
            if not self.is_plan:
                self._restart(contents)
            return self.settings
        if pipeline.resume != "table":
            raise self._checkpoint_missing(contents[0])
        for content in contents:
            content.require_traced(self.spark)
        if self.topics is None:
            broker_offsets = kafka_offsets.pipeline_offsets(self.settings.kafka, pipeline, [])
        return self._resume(contents, self._read_partitions(broker_offsets))

    def _read_partitions(self, broker_offsets: BrokerOffsets) -> dict[str, dict[int, Span]]:
        """Return the offsets in Kafka of the partitions that the pipeline reads."""
        assign = self.settings.pipeline.assign
        return {
            topic: {
                partition: span
                for partition, span in partitions.items()
                if assign is None or partition in assign[topic]
            }
            for topic, partitions in broker_offsets.offsets.items()
        }

    def _content(self, topic: str) -> TableContent | None:
        """Return the content of a topic that other queries have written, or None if it is empty."""
        spark, target = self.spark, self._target(topic)
        missed = spans_by_partition(self._paused.get(topic, ()))
        content = table_content.read(spark, topic, target, missed)
        if content.table_version is None:
            return content if missed else None
        if content.commits or missed:
            return content if self._reads_partition_of(content) else None
        if self.settings.pipeline.resume == "restart":
            # A topic that was migrated may have another name.
            return content
        is_known = content.explains_rows or not content.is_traced(spark)
        return None if is_known or content.rows(spark).isEmpty() else content

    def _reads_partition_of(self, content: TableContent) -> bool:
        """Return whether the pipeline reads a partition in the table; two pipelines may share a topic."""
        partitions = (self.settings.pipeline.assign or {}).get(content.topic)
        spans = table_content.spans_of(content.commits, content.topic)
        return partitions is None or bool(set(partitions) & (set(spans) | set(content.paused)))

    def _checkpoint_missing(self, content: TableContent) -> IngestError:
        target = content.target
        doubled, remedy = (
            ", which would be doubled",
            "resume=table, which continues where the table ends; or ",
        )
        if target.changes is not None:
            doubled = remedy = ""
        return IngestError(
            f"pipeline {self.settings.name} has no checkpoint at {target.checkpoint}, but the table at "
            f"{target.table} has records of topic {content.topic}{doubled}",
            f"set the old checkpoint_path; or {remedy}resume=restart, which begins at starting_offsets",
            pipeline=self.settings.name,
            topic=content.topic,
            checkpoint=target.checkpoint,
            table=target.table,
            reason="checkpoint_gone",
        )

    def _require_same_offsets(self, contents: Iterable[TableContent]) -> None:
        """Refuse another topic for a table whose changes offsets order: its rows would never change again."""
        pipeline = self.settings.pipeline
        if not pipeline.orders_changes_by_offset:
            return
        in_kafka = kafka_offsets.pipeline_offsets(self.settings.kafka, pipeline, []).offsets
        for content in contents:
            ends = content.ends_of_changes(self.spark)
            remedy = "set a new checkpoint_path and table_path"
            resume_table.require_same_topic(
                self.settings, content, ends, in_kafka.get(content.topic, {}), remedy
            )

    def _restart(self, contents: Iterable[TableContent]) -> None:
        """Note the offsets in the tables, so that an audit of the new checkpoint can ignore them."""
        if self.target.changes is not None:
            # The audit of a table of changes ignores no row, since each one is the newest of its key.
            contents = [replace(content, table_version=None) for content in contents]
        rows = [
            content.rows(self.spark)
            .where("NOT is_replayed")
            .select(F.lit(content.topic).alias("topic"), "is_quarantined", "partition", "offset")
            for content in contents
            if content.is_traced(self.spark)
        ]
        if rows:
            resumptions.note_rows(reduce(DataFrame.unionAll, rows), self.target.checkpoint)

    def _resume(
        self, contents: Iterable[TableContent], in_kafka: Mapping[str, Mapping[int, Span]]
    ) -> Settings:
        by_topic: dict[str, Resumption] = {}
        for content in contents:
            topic_resumption = _of_partitions(
                resume_table.resumption(self.spark, content), self.settings, content.topic
            )
            resume_table.require_same_topic(
                self.settings,
                content,
                topic_resumption.ends,
                in_kafka.get(content.topic, {}),
                f'set resume=restart with starting_offsets={{"{content.topic}": '
                '{"<partition>": <offset>, …}}, the offsets in the new topic',
            )
            by_topic[content.topic] = topic_resumption
        if not self.is_plan:
            self._write_missing(contents, by_topic, in_kafka)
        starts = resume_table.starting_offsets(by_topic, in_kafka, EARLIEST)
        pipeline = self.settings.pipeline.model_copy(update={"starting_offsets": starts})
        return self.settings.model_copy(update={"pipeline": pipeline})

    def _write_missing(
        self,
        contents: Iterable[TableContent],
        by_topic: Mapping[str, Resumption],
        in_kafka: Mapping[str, Mapping[int, Span]],
    ) -> None:
        """Write the records that are in neither table, and note from where to where the tables reach."""
        reader = kafka_source.range_options(self.settings.kafka)
        for content in contents:
            unfinished, spans = by_topic[content.topic].unfinished, in_kafka[content.topic]
            resume_table.write_missing(self.spark, self.settings, content, unfinished, spans, reader)
            if content.paused and self.topics is not None:
                mark_resumed(self.spark, self.topics.ledger, content.topic)
        firsts = {topic: content.firsts for topic, content in by_topic.items()}
        ends = {topic: content.ends for topic, content in by_topic.items()}
        resumptions.note_firsts(self.spark, self.target.checkpoint, firsts, ends)


def _of_partitions(resumption: Resumption, settings: Settings, topic: str) -> Resumption:
    """Return the resumption, only with the partitions that the pipeline reads."""
    partitions = (settings.pipeline.assign or {}).get(topic)
    if partitions is None:
        return resumption
    return Resumption(
        {partition: first for partition, first in resumption.firsts.items() if partition in partitions},
        {partition: end for partition, end in resumption.ends.items() if partition in partitions},
        {partition: spans for partition, spans in resumption.unfinished.items() if partition in partitions},
    )
