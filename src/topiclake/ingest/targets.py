"""The tables of a configuration, and reports of the rows that batches write into them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.changes.order import CDC_COLUMN
from topiclake.changes.pipeline import RowChanges
from topiclake.config.settings import Settings
from topiclake.delta import catalog
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, IngestError, StorageError
from topiclake.ingest import quarantine_rows
from topiclake.ingest.row_transform import Function, RowTransform
from topiclake.sources.layout import KAFKA_COLUMN
from topiclake.sources.table_snapshot import TableSnapshot
from topiclake.sources.topic_schemas import TopicSchemas
from topiclake.storage import mount
from topiclake.storage.failures import storage_errors
from topiclake.streaming import batch_counts, checkpoint
from topiclake.streaming.batch_counts import TableCount

_log = logging.getLogger(__name__)

#: By start of a query and location: the path of a table, which its catalog is asked for once.
_folders: dict[tuple[str, str], str] = {}
#: The table property with the topic whose offsets order the changes of a table (`table_topics`).
TOPIC_PROPERTY = "topiclake.topic"
#: Suffix of the writer name in commit 2.
LATE = "/late"


@dataclass(frozen=True)
class Target:
    """The tables of a topic, and the settings to write them; picklable, for Spark Connect.

    Attributes:
        pipeline: The pipeline's name.
        run: Id of this run, for the histories of the tables.
        mode: PERMISSIVE or FAILFAST.
        schemas: Schemas of the records, and the additional columns of rows.
        table: Resolved location of the table.
        quarantine: Resolved location of the quarantine table.
        checkpoint: Resolved location of the checkpoint.
        properties: Table properties, for a new table.
        topic: The topic, only if the query has several: each topic is a separate writer.
        is_new: Whether this start created the table, so that no batch can be in it.
        snapshot: State of the table, if this start has read it.
        type_widening: Whether columns of the table may become wider.
        transform: The transform of valid rows before they are written.
        changes: The rules by which valid rows change those of the table; None if they are appended.
        start: Id of this start of the query.
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
    changes: RowChanges | None = None
    start: str = field(default_factory=lambda: uuid4().hex)

    @property
    def decoding_settings(self) -> dict[str, object]:
        """The settings that decide how records are classified and which columns rows have, as JSON values."""
        layout, declared_key = self.schemas.layout, self.schemas.declared_key
        # Batches of earlier versions only have a boolean, which is whether they had an Avro key.
        key: object = {"none": False, "avro": True}.get(layout.key, layout.key)
        if declared_key is not None:
            key = f"{layout.key} {declared_key.columns.simpleString()}"
        found = asdict(layout)
        if not layout.keeps_tombstones:
            # Batches of earlier versions do not have it.
            del found["keeps_tombstones"]
        return found | {"kafka": list(layout.kafka), "format": self.schemas.format.name, "key": key}

    @property
    def mapping(self) -> RowTransform | RowChanges | None:
        """The meaning of valid rows for the table; None if they are its rows."""
        return self.transform if self.changes is None else self.changes

    @property
    def origin(self) -> dict[str, str]:
        """The origin of rows in the metadata of each commit."""
        transform = {} if self.transform is None else {"transform": self.transform.name}
        return {"pipeline": self.pipeline, "run": self.run} | transform

    def table_rows(self, rows: DataFrame, table: StructType, unit: str) -> AbstractContextManager[DataFrame]:
        """Return the rows to write: valid rows, or those that `RowTransform.computed` makes of them."""
        return nullcontext(rows) if self.transform is None else self.transform.computed(rows, table, unit)

    def require_writable(self, settings: Settings) -> None:
        """Check that a start can write its folders; raises StorageError."""
        is_single = not settings.pipeline.has_table_for_each
        for location in (self.table, self.quarantine, self.checkpoint) if is_single else (self.checkpoint,):
            mount.require_writable(location)

    def require_own_rows(self, spark: SparkSession, settings: Settings, snapshot: TableSnapshot) -> None:
        """Check that Topiclake wrote the rows of a table, so that they have their origin.

        Raises:
            IngestError: Another program wrote them.
        """
        if not self.schemas.layout.kafka:
            return
        origin = KAFKA_COLUMN if self.changes is None else CDC_COLUMN
        with storage_errors(settings.storage, self.table):
            is_own = origin in snapshot.columns.names or delta.read(spark, self.table).isEmpty()
        if not is_own:
            remedy = ", or set kafka_column: false" if self.changes is None else ""
            raise IngestError(
                f"the table {self.table} has rows without {origin}, so another program wrote them",
                f"choose another table{remedy}",
                table=self.table,
                reason="foreign",
            )

    def require_fit(self, snapshot: TableSnapshot, columns: StructType, *, may_widen: bool = False) -> None:
        """Check that the table can take columns that only the configuration or the transform decides.

        Raises:
            IngestError: It cannot.
        """
        problem = snapshot.refusal(columns, may_widen=may_widen)
        if problem is None:
            return
        if self.transform is not None:
            raise self.transform.error(
                f"makes columns that the table cannot accept: {problem}",
                "cast the column in the transform, or choose another table",
                reason="columns",
            )
        raise IngestError(
            f"the table {self.table} cannot accept the columns of the configuration: {problem}",
            "set key, key_schema and value_schema to what the table has, or choose another table",
            table=self.table,
            reason="columns",
        )


def target(settings: Settings, transform: Function | None = None) -> Target:
    """Return the target of a configuration, with resolved paths and secrets."""
    resolve = partial(mount.resolve_table, settings.storage)
    pipeline = settings.pipeline
    if pipeline.changes is not None and transform is not None:
        raise ConfigError(
            f"pipeline {settings.name} has apply: upsert, which has no transform",
            "omit the transform, and use changes.columns or a view of the table",
            key="pipeline.apply",
            reason="transform",
        )
    return Target(
        pipeline=settings.name,
        run=settings.run_id,
        mode=pipeline.mode,
        schemas=TopicSchemas.from_settings(settings),
        table=resolve(pipeline.location),
        quarantine=resolve(pipeline.quarantine_path),
        checkpoint=mount.resolve(settings.storage, pipeline.checkpoint_path),
        properties=pipeline.table_properties,
        type_widening=pipeline.type_widening,
        transform=None if transform is None else RowTransform(transform, settings.name),
        changes=None if pipeline.changes is None else RowChanges(pipeline.changes, settings.name),
    )


def topic_property(topic: str, ids: Mapping[str, str]) -> dict[str, str]:
    """Return the table property that names a topic, or nothing if the broker returns no id of it."""
    return {TOPIC_PROPERTY: json.dumps({"name": topic, "id": ids[topic]})} if topic in ids else {}


def writer_name(target: Target, spark: SparkSession) -> str:
    """Return Delta's writer name of a target: by the query id, since a pipeline may be renamed."""
    query = checkpoint.query_id(spark, target.checkpoint, target.start)
    return query if target.topic is None else f"{query}/{target.topic}"


def report_counts(target: Target, spark: SparkSession, batch_id: int, count: TableCount) -> None:
    """Report the rows that a batch wrote into a table to subscribers of its query."""
    if not batch_counts.has_subscribers():
        return
    query = checkpoint.query_id(spark, target.checkpoint, target.start)
    key = target.start, count.path
    try:
        if key not in _folders:
            _folders[key] = catalog.folder(spark, count.path)
    except (StorageError, PySparkException, Py4JError) as error:
        # The batch is committed, and reports must not end its query.
        _log.warning("the folder of table %s is not known to reports: %s", count.path, error)
    batch_counts.publish(query, batch_id, replace(count, topic=target.topic, folder=_folders.get(key, "")))


def report_earlier_counts(target: Target, records: DataFrame, batch_id: int) -> None:
    """Report the rows that earlier attempts of a batch have committed; errors are only logged."""
    if not batch_counts.has_subscribers():
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
        # The rows of a MERGE include those that it has only copied.
        rows, reasons = commit.get("changes", {}).get("merged", commit["rows"]), None
        if path == target.quarantine:
            location = ["topic", "partition", "offset"]
            batch_rows = delta.read(spark, path).where(F.col("batch_id") == batch_id)
            reasons = quarantine_rows.count_reasons(
                batch_rows.join(records.select(location), location, "left_semi")
            )
        yield TableCount(path, rows, reasons, name, commit.get("schemas", {}))
