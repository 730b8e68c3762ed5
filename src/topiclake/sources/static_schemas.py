"""The schemas that a static plan decodes with: those that were known when its query started.

A plan that is not a micro-batch of Topiclake looks up no schemas. A record with another schema raises within
the plan. The caller that started the query learns the schema here and starts the query again. See
docs/exactly-once.md, "Parquet files".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from topiclake.delta import evolution
from topiclake.errors import DecodeError
from topiclake.formats.avro import plain as avro_plain
from topiclake.formats.codec import Codecs, SchemaVersion
from topiclake.kafka import source as kafka_source
from topiclake.reasons import TOMBSTONE, UNKNOWN_SCHEMA_ID
from topiclake.schema_registry.wire_format import Part, SchemaKey
from topiclake.sources import registered_rows
from topiclake.sources.topic_schemas import TopicSchemas

#: The message of `registered_rows.fail_on_bad_record` about a record.
_RECORD = re.compile(r"schema id (?P<id>-?\d+|none), reason (?P<reason>\w+)")


@dataclass
class StaticSchemas:
    """The schemas of one topic that a plan for Parquet files decodes with.

    Attributes:
        spark: The session.
        topic_schemas: The source of the schemas.
        schemas: The schemas of each part, oldest first, by id and, where they have one, by GUID.
        codecs: How records of these schemas are decoded.
    """

    spark: SparkSession
    topic_schemas: TopicSchemas
    schemas: dict[Part, dict[SchemaKey, SchemaVersion]] = field(default_factory=dict)
    codecs: Codecs = field(init=False)

    def __post_init__(self) -> None:
        self._list(refresh=False)
        self._unite()

    def rows(self, records: DataFrame) -> DataFrame:
        """Return Kafka's records as rows; the plan raises at the first that is not right."""
        plain = self.topic_schemas.usable_plain_keys(self.codecs)
        records = avro_plain.tag_plain_records(records, self.codecs.value, plain)
        decoded = registered_rows.decode(records, self.codecs, self.topic_schemas.layout)
        decoded = registered_rows.fail_on_bad_record(
            decoded, self.codecs, self.topic_schemas.layout, is_static=True
        )
        return registered_rows.valid_rows(
            registered_rows.as_rows(decoded, self.codecs, self.topic_schemas.layout)
        )

    def columns(self) -> StructType:
        """Return the columns of `rows`."""
        return registered_rows.columns(
            self.spark, self.codecs, self.topic_schemas.layout, kafka_source.RECORD_SCHEMA
        )

    def learn(self, error: DecodeError) -> None:
        """Learn the schema that a record lacked; repeated calls learn each schema only once.

        Args:
            error: The error that the plan raised.

        Raises:
            DecodeError: No schema is new, so that the same plan would meet the same record.
            SchemaRegistryError: The registry cannot be used.
        """
        before = self._keys()
        self._list(refresh=True)
        record = _RECORD.search(error.cause)
        if record and record["reason"] == UNKNOWN_SCHEMA_ID and record["id"] != "none":
            ids: list[SchemaKey] = [int(record["id"])]
            schemas, _, _ = self.topic_schemas.registry.by_ids(ids)
            self.schemas["value"].update(schemas)
        if self._keys() == before:
            raise DecodeError(
                error.cause + self._refusal_detail(record), _remedy(record), **error.fields
            ) from None
        self._unite()

    def _keys(self) -> dict[Part, set[SchemaKey]]:
        return {part: set(schemas) for part, schemas in self.schemas.items()}

    def _list(self, *, refresh: bool) -> None:
        for part in self.topic_schemas.subjects:
            self.schemas[part] = self.schemas.get(part, {}) | self.topic_schemas.listed(part, refresh=refresh)

    def _unite(self) -> None:
        self.codecs = self.topic_schemas.unite(
            self.schemas, lambda part: _Additions(self.spark, self.topic_schemas, part).refusal
        )

    def _refusal_detail(self, record: re.Match[str] | None) -> str:
        if record is None or record["id"] == "none":
            return ""
        _, detail = self.codecs.value.refused.get(int(record["id"]), ("", ""))
        return f" ({detail})" if detail else ""


@dataclass
class _Additions:
    """The check of further versions for Parquet files: more columns, but no other types."""

    spark: SparkSession
    topic_schemas: TopicSchemas
    part: Part
    columns: StructType = field(default_factory=StructType)

    def refusal(self, reader: str) -> str | None:
        return self.topic_schemas.refusal(self.spark, reader, self.part, self._refusal_of_columns)

    def _refusal_of_columns(self, columns: StructType) -> str | None:
        refused = evolution.parquet_refusal(self.columns, columns)
        self.columns = self.columns if refused else columns
        return refused


def _remedy(record: re.Match[str] | None) -> str:
    if record and record["reason"] == TOMBSTONE:
        return "set tombstones: skip"
    return "register the schema that the record has; or ingest into a Delta table, which has a quarantine"
