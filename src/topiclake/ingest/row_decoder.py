"""Decoders from records to rows, for registered and for declared formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.config.pipeline import PipelineSettings
from topiclake.formats.avro import plain as avro_plain
from topiclake.formats.codec import Codecs, identified
from topiclake.formats.declared import DeclaredFormat
from topiclake.ingest import quarantine_rows
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.ingest.targets import Target
from topiclake.kafka import source as kafka_source
from topiclake.reasons import OK, UNDECODABLE
from topiclake.schema_registry.wire_format import Part, SchemaKey, schema_id_of, schema_key
from topiclake.sources import declared_rows, registered_rows
from topiclake.sources.layout import Layout
from topiclake.sources.table_snapshot import NO_TABLE, TableSnapshot, read_snapshot


@dataclass
class RegisteredDecoder:
    """Decodes records with schemas of the registry, as the ingest of the pipeline would now.

    Attributes:
        spark: The session.
        target: The tables of the topic.
        schemas: The schemas.
        unknown: Schemas that the registry did not know when `learn` asked for them.
    """

    spark: SparkSession
    target: Target
    schemas: BatchSchemas
    unknown: Mapping[Part, set[SchemaKey]] = field(default_factory=dict)

    def tag(self, records: DataFrame) -> DataFrame:
        """Return the records, with a header that names the schema of each plain value."""
        codecs = self.schemas.current(self.spark)
        return avro_plain.tag_plain_records(records, codecs.value, self.schemas.plain(codecs))

    def valid(self, records: DataFrame) -> DataFrame:
        """Return the records that are valid rows of the table now."""
        codecs = self._learn(records)
        layout = self.target.schemas.layout
        return registered_rows.decode(records, codecs, layout).where(registered_rows.is_valid(codecs, layout))

    def invalid(self, records: DataFrame) -> list[str]:
        """Return in words the schemas of records that are no longer valid, at most ten."""
        # Rows that another replay claimed may have schemas that this one has not looked up yet.
        layout, codecs = self.target.schemas.layout, self.schemas.current(self.spark)
        return _invalid(records, codecs, layout) and _invalid(records, self._learn(records), layout)

    def rejected(self, records: DataFrame) -> DataFrame:
        """Return the records that are not valid, with `schema_id`, `reason` and `detail`."""
        codecs, layout = self.schemas.current(self.spark), self.target.schemas.layout
        decoded = registered_rows.decode(records, codecs, layout)
        bad = quarantine_rows.with_reasons(
            decoded.where(registered_rows.is_rejected(codecs, layout)),
            codecs,
            self.unknown,
            needs_python=True,
            keeps_tombstones=layout.keeps_tombstones,
        )
        return self._untagged(bad.withColumn("schema_id", schema_id_of(F.col("value_schema"))), codecs)

    def with_schema_id(self, records: DataFrame) -> DataFrame:
        """Return the records with `schema_id`."""
        named = identified(records).withColumn("schema_id", schema_id_of(F.col("value_schema")))
        return self._untagged(named, self.schemas.current(self.spark))

    def _untagged(self, records: DataFrame, codecs: Codecs) -> DataFrame:
        columns = [name for name in ("schema_id", "reason", "detail") if name in records.columns]
        selected = records.select(*kafka_source.RECORD_COLUMNS, *columns)
        return avro_plain.untag_plain_records(selected, self.schemas.plain(codecs))

    def learn(self, records: DataFrame) -> bool:
        """Look up the schemas that records name; return whether one is new, so that more may be valid."""
        before = self.schemas.current(self.spark)
        tally = registered_rows.tally(records, before, self.target.schemas.layout)
        if UNDECODABLE in tally.reasons:
            self.schemas.refresh_plain()
        self.unknown = self.schemas.look_up(tally.late, is_complete=tally.is_complete)
        return self.schemas.current(self.spark) is not before

    def rows(self, records: DataFrame) -> tuple[DataFrame, dict[str, object]]:
        """Return valid records as rows, and metadata of their decoding for the table's history."""
        codecs = self.schemas.current(self.spark)
        layout = self.target.schemas.layout
        flat = registered_rows.as_rows(registered_rows.decode(records, codecs, layout), codecs, layout)
        return registered_rows.valid_rows(flat), {"schemas": codecs.keys}

    def table_columns(self) -> StructType:
        """Return the columns that the table has."""
        return self.schemas.table_columns

    def refresh(self) -> None:
        """Read the table again next time, because another writer was faster."""
        self.schemas.forget()

    def _learn(self, records: DataFrame) -> Codecs:
        """Return the current codecs, including the schemas that the records name."""
        codecs = self.schemas.current(self.spark)
        tally = registered_rows.tally(records, codecs, self.target.schemas.layout)
        self.schemas.look_up(tally.late, is_complete=tally.is_complete)
        return self.schemas.current(self.spark)


def _invalid(claimed: DataFrame, codecs: Codecs, layout: Layout) -> list[str]:
    """Return in words the schemas of records that are not valid, at most ten."""
    invalid = registered_rows.decode(claimed, codecs, layout).where(~registered_rows.is_valid(codecs, layout))
    rows = invalid.select(*(f"{part}_schema" for part in codecs.parts)).distinct().limit(10).collect()
    schemas = {(part, bytes(row[f"{part}_schema"] or b"")) for row in rows for part in codecs.parts}
    return sorted(f"{part} schema {schema_key(schema) or schema.hex()}" for part, schema in schemas)


@dataclass
class DeclaredDecoder:
    """Decodes records of a declared format; methods as in `RegisteredDecoder`."""

    spark: SparkSession
    target: Target
    values: DeclaredFormat
    snapshot: TableSnapshot | None = None

    def tag(self, records: DataFrame) -> DataFrame:
        """Return the records."""
        return records

    def valid(self, records: DataFrame) -> DataFrame:
        """Return the records that are valid rows of the table now."""
        return self._decoded(records).where(F.col("reason") == OK)

    def invalid(self, records: DataFrame) -> list[str]:
        """Return in words the offsets of records that are no longer valid, at most ten."""
        invalid = self._decoded(records).where(F.col("reason") != OK).limit(10).collect()
        return [f"partition {row['partition']}, offset {row['offset']}" for row in invalid]

    def rejected(self, records: DataFrame) -> DataFrame:
        """Return the records that are not valid, with `schema_id`, `reason` and `detail`."""
        decoded = self._decoded(records)
        bad = decoded.where(declared_rows.is_rejected(self.target.schemas.layout))
        return self.with_schema_id(
            bad.withColumn("detail", declared_rows.detail(bad, self.values)).select(
                *kafka_source.RECORD_COLUMNS, "reason", "detail"
            )
        )

    def with_schema_id(self, records: DataFrame) -> DataFrame:
        """Return the records with `schema_id`, which is null."""
        return records.withColumn("schema_id", F.lit(None).cast("int"))

    def learn(self, records: DataFrame) -> bool:
        """Return False: the columns are declared."""
        return False

    def rows(self, records: DataFrame) -> tuple[DataFrame, dict[str, object]]:
        """Return valid records as rows, without metadata of their decoding."""
        return declared_rows.valid_rows(
            self._decoded(records), self.target.schemas.layout, self._enforced()
        ), {}

    def table_columns(self) -> StructType:
        """Return the columns that the table has."""
        return self._snapshot().columns

    def refresh(self) -> None:
        """Read the table again next time, because another writer was faster."""
        self.snapshot = None

    def _decoded(self, records: DataFrame) -> DataFrame:
        return declared_rows.decode(self.values, records, self.target.schemas.layout, self._enforced())

    def _enforced(self) -> TableSnapshot:
        """Return the table whose constraints decoded rows must satisfy; other rows are checked later."""
        return self._snapshot() if self.target.mapping is None else NO_TABLE

    def _snapshot(self) -> TableSnapshot:
        if self.snapshot is None:
            self.snapshot = read_snapshot(self.spark, self.target.table) or NO_TABLE
            if self.target.mapping is None:
                columns = declared_rows.columns(self.spark, self.values, self.target.schemas.layout)
                self.target.require_fit(self.snapshot, columns)
        return self.snapshot


RowDecoder = RegisteredDecoder | DeclaredDecoder


def decoder_for(spark: SparkSession, target: Target, pipeline: PipelineSettings) -> RowDecoder:
    """Return the decoder of a pipeline's values."""
    if pipeline.is_registered:
        return RegisteredDecoder(spark, target, BatchSchemas(target))
    return DeclaredDecoder(spark, target, DeclaredFormat.from_settings(pipeline))
