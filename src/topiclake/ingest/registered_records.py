"""A micro-batch of records whose schemas are in the registry, and what its earlier commits decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from topiclake.delta import table as delta
from topiclake.errors import IngestError
from topiclake.formats.avro import plain as avro_plain
from topiclake.formats.codec import Codecs
from topiclake.ingest.batch import Batch
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.kafka import source as kafka_source
from topiclake.schema_registry.wire_format import SchemaKey
from topiclake.sources import registered_rows
from topiclake.sources.layout import KAFKA_COLUMN


@dataclass
class TopicState:
    """State of one start of a query for one topic.

    Attributes:
        name: Id of the start.
        writer: Delta's name of the writer of the query's batches.
        schemas: The schemas that the start knows.
        has_written: Whether the table is new, or this start has written a batch, so that later batches are
            not repeated ones.
    """

    name: str
    writer: str
    schemas: BatchSchemas
    has_written: bool


@dataclass(frozen=True)
class RegisteredBatch(Batch):
    """One micro-batch of values whose schemas are in the registry.

    Attributes:
        state: State of this start of the query for the topic.
        is_resumed: Whether it is older than the query's newest batch, and may be written already.
    """

    state: TopicState
    is_resumed: bool

    def decode(self, records: DataFrame, codecs: Codecs, plain: Sequence[SchemaKey]) -> DataFrame:
        """Return the records with their decoded values, and plain ones with the header of a schema."""
        tagged = avro_plain.tag_plain_records(records, codecs.value, plain)
        return registered_rows.decode(tagged, codecs, self.target.schemas.layout)

    def rejected(self, records: DataFrame, codecs: Codecs, plain: Sequence[SchemaKey]) -> DataFrame:
        """Return the records that are no valid rows by `codecs`, with Kafka's columns."""
        is_rejected = registered_rows.is_rejected(codecs, self.target.schemas.layout)
        rejected = self.decode(records, codecs, plain).where(is_rejected)
        return avro_plain.untag_plain_records(rejected.select(*kafka_source.RECORD_COLUMNS), plain)

    def pinned(self, codecs: Codecs, plain: Sequence[SchemaKey]) -> dict[str, object]:
        """Return the metadata of a commit with which later attempts decode its records in the same way."""
        return {
            "schemas": codecs.keys,
            "plain": plain,
            "constraints": codecs.constraints,
            "judged": self.target.decoding_settings,
        }

    def require_same(self, commit: Mapping[str, Any] | None) -> None:
        """Check that a partly written batch is finished with its configuration: else records may be lost.

        Raises:
            IngestError: The configuration has changed.
        """
        now = self.target.decoding_settings
        if commit is None or commit["judged"] == now:
            return
        changed = [
            f"{name} was {was}, and is {now.get(name)}"
            for name, was in commit["judged"].items()
            if was != now.get(name)
        ]
        raise IngestError(
            f"batch {self.number} of pipeline {self.target.pipeline} was written in part with another "
            f"configuration ({'; '.join(changed)}); with this one, records would be lost or doubled",
            "put it back until that batch is done, then change it",
            pipeline=self.target.pipeline,
            batch_id=self.number,
            changed=tuple(changed),
            reason="configuration_changed",
        )

    def not_written(self, records: DataFrame, commit: Mapping[str, Any] | None) -> DataFrame:
        """Return the records that an earlier commit rejected, decoded with the schemas of that commit.

        Without a `commit`, Delta has cleaned up the table's history since.

        Raises:
            IngestError: Neither the schemas of the commit nor the rows of the table show the records.
        """
        pinned = None
        if commit is not None:
            pinned = self.state.schemas.pinned(self.spark, commit["schemas"], commit["constraints"])
        if pinned is not None and commit is not None:
            return self.rejected(records, pinned, commit["plain"])
        fields = self.target.schemas.layout.kafka
        location: list[str] = [name for name in ("topic", "partition", "offset") if name in fields]
        if {"partition", "offset"} <= set(location):
            # The schemas of the commit are no longer known, so the rows of the table show which records it
            # has. The version is fixed: commit 2 may change types of columns, which Spark refuses in an older
            # plan.
            now = delta.latest_version(self.spark, self.target.table)
            written = delta.read(self.spark, self.target.table, now).select(f"{KAFKA_COLUMN}.*")
            return records.join(written, location, "left_anti")
        cause = "the table's history no longer names" if commit is None else "the registry no longer knows"
        schemas = "" if commit is None else f" ({commit['schemas']})"
        raise IngestError(
            f"batch {self.number} was written in part with schemas that {cause}{schemas}, and without "
            f"partition and offset in the column {KAFKA_COLUMN} nothing shows which records",
            "register the schemas again under their ids, or set a new table_path and checkpoint_path",
            pipeline=self.target.pipeline,
            batch_id=self.number,
            reason="schemas_unknown",
        )
