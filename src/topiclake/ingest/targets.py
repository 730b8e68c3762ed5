"""Where the records of a configuration go, and what a batch has put there."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.ingest import quarantine_rows
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.ingest.row_transform import Function, RowTransform
from topiclake.sources.table_snapshot import TableSnapshot
from topiclake.sources.topic_schemas import TopicSchemas
from topiclake.storage import mount
from topiclake.streaming import batch_counts, checkpoint
from topiclake.streaming.batch_counts import TableCount

_log = logging.getLogger(__name__)

#: What commit 2 adds to the name of the writer.
LATE = "/late"


@dataclass(frozen=True)
class Target:
    """Where the records of a topic go; all of it can be pickled, for Spark Connect.

    Attributes:
        pipeline: The pipeline's name.
        run: Id of this run, for the tables' histories.
        mode: PERMISSIVE or FAILFAST.
        schemas: What its records may have, and which columns rows have beside them.
        table: Resolved location of the table.
        quarantine: Resolved location of the quarantine table.
        checkpoint: Resolved location of the checkpoint.
        properties: Table properties, for a new table.
        topic: Set where a query has several topics: each is a writer of its own.
        is_new: Whether this start created the table, so that no batch can be in it.
        snapshot: Of the table, where this start has had one.
        type_widening: Whether columns of the table may become wider.
        transform: What is done to valid rows before they are written.
        start: Names this start of the query.
    """

    pipeline: str
    run: str
    mode: str
    schemas: TopicSchemas
    table: str
    quarantine: str
    checkpoint: str
    properties: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    is_new: bool = False
    snapshot: TableSnapshot | None = None
    type_widening: bool = False
    transform: RowTransform | None = None
    start: str = field(default_factory=lambda: uuid4().hex)

    @property
    def judgement(self) -> dict[str, object]:
        """What of the configuration decides where a record belongs, and what a row holds; as JSON has it."""
        layout, declared_key = self.schemas.layout, self.schemas.declared_key
        # Batches of earlier versions say whether there was an Avro key.
        key: object = {"none": False, "avro": True}.get(layout.key, layout.key)
        if declared_key is not None:
            key = f"{layout.key} {declared_key.columns.simpleString()}"
        return asdict(layout) | {"kafka": list(layout.kafka), "format": self.schemas.format.name, "key": key}

    @property
    def origin(self) -> dict[str, str]:
        """What each commit keeps of where its rows come from."""
        transform = {} if self.transform is None else {"transform": self.transform.name}
        return {"pipeline": self.pipeline, "run": self.run} | transform

    @contextmanager
    def table_rows(self, rows: DataFrame, table: StructType, unit: str) -> Iterator[DataFrame]:
        """Yield valid rows as they are written: transformed, where there is a transform.

        Args:
            rows: Valid rows.
            table: The columns that the table has.
            unit: The rows in words, for errors: a batch or a claim.

        Raises:
            IngestError: The transform fails, or changed the number of rows or their `_kafka`.
        """
        if self.transform is None:
            yield rows
            return
        with self.transform.computed(rows, table, unit) as transformed:
            yield transformed

    def batch_schemas(self) -> BatchSchemas:
        """Return the schemas of this topic, with nothing learnt yet."""
        return BatchSchemas(
            self.schemas, self.table, self.properties, self.snapshot, self.type_widening, self.transform
        )


def target(settings: Settings, transform: Function | None = None) -> Target:
    """Resolve paths and secrets of a configuration into what a micro-batch must know."""
    resolve = partial(mount.resolve, settings.storage)
    pipeline = settings.pipeline
    return Target(
        pipeline=settings.name,
        run=settings.run_id,
        mode=pipeline.mode,
        schemas=TopicSchemas.from_settings(settings),
        table=resolve(pipeline.table_path),
        quarantine=resolve(pipeline.quarantine_path),
        checkpoint=resolve(pipeline.checkpoint_path),
        properties=pipeline.table_properties,
        type_widening=pipeline.type_widening,
        transform=None if transform is None else RowTransform(transform, settings.name),
    )


def writer_name(target: Target, spark: SparkSession) -> str:
    """Return how Delta knows the writer of a target's batches: a pipeline may be renamed."""
    query = checkpoint.query_id(spark, target.checkpoint, target.start)
    return query if target.topic is None else f"{query}/{target.topic}"


def report_counts(target: Target, spark: SparkSession, batch_id: int, count: TableCount) -> None:
    """Tell who watches a query what one of its batches put into a table."""
    query = checkpoint.query_id(spark, target.checkpoint, target.start)
    batch_counts.publish(query, batch_id, replace(count, topic=target.topic))


def report_earlier_counts(target: Target, records: DataFrame, batch_id: int) -> None:
    """Tell who watches a query what earlier attempts of a batch have committed; never fails."""
    if not batch_counts.are_wanted():
        return
    try:
        for count in _earlier_counts(target, records, batch_id):
            report_counts(target, records.sparkSession, batch_id, count)
    except (PySparkException, Py4JError) as error:
        _log.warning("batch %d was written before, but is not counted: %s", batch_id, error)


def _earlier_counts(target: Target, records: DataFrame, batch_id: int) -> Iterator[TableCount]:
    spark = records.sparkSession
    writer = writer_name(target, spark)
    for path, name in (
        (target.table, writer),
        (target.table, writer + LATE),
        (target.quarantine, writer),
    ):
        commit = delta.commit_of(spark, path, writer=name, batch_id=batch_id)
        if commit is None:
            continue
        reasons = None
        if path == target.quarantine:
            location = ["topic", "partition", "offset"]
            here = delta.read(spark, path).where(F.col("batch_id") == batch_id)
            reasons = quarantine_rows.count_reasons(
                here.join(records.select(location), location, "left_semi")
            )
        yield TableCount(path, commit["rows"], reasons, name, commit.get("schemas", {}))
