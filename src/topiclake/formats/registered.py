"""What the schemas of the registry mean for values, by their type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from topiclake.config.pipeline import PipelineSettings
from topiclake.errors import ConfigError
from topiclake.formats.avro import spark_type
from topiclake.formats.avro.codec import AvroCodec
from topiclake.formats.avro.reader_schema import is_record
from topiclake.formats.codec import Codec, SchemaVersion
from topiclake.formats.json import codec as json_codec
from topiclake.formats.json.codec import JsonSchemaCodec
from topiclake.formats.protobuf import codec as protobuf_codec
from topiclake.formats.protobuf.codec import ProtobufCodec
from topiclake.schema_registry.wire_format import SchemaKey

#: Says why nothing can be decoded with the reader schema that it is given, and stored; None: it can.
Accepts = Callable[[str], str | None]


class Format(Protocol):
    """A type of schemas; can be pickled, for Spark Connect."""

    @property
    def name(self) -> str:
        """Names the type, and what else decides how a value is read."""

    def codec(
        self, schemas: Mapping[SchemaKey, SchemaVersion], accepts: Accepts, kept: str | None = None
    ) -> Codec:
        """Unite schemas, oldest first, with what a table has `kept` of earlier ones (`Codec.kept`)."""

    def event_type(self, spark: SparkSession, reader: str) -> DataType:
        """Return the type of what is decoded with a codec's reader schema.

        Raises:
            ImpossibleSchemaError: Nothing can be decoded with it, or not be stored.
        """

    def is_row(self, reader: str) -> bool:
        """Return whether the fields of what is decoded are columns; else it is one column `value`."""


@dataclass(frozen=True)
class AvroFormat:
    """Avro; also that of keys."""

    name: ClassVar[str] = "avro"

    def codec(
        self, schemas: Mapping[SchemaKey, SchemaVersion], accepts: Accepts, kept: str | None = None
    ) -> Codec:
        """Unite schemas, oldest first, with what was kept."""
        return AvroCodec.of(schemas, accepts, kept)

    def event_type(self, spark: SparkSession, reader: str) -> DataType:
        """Return the type of what is decoded; raises as `Format.event_type` says."""
        return spark_type.event_type(spark, reader)

    def is_row(self, reader: str) -> bool:
        """Return whether it is a record."""
        return is_record(reader)


@dataclass(frozen=True)
class JsonSchemaFormat:
    """JSON Schema."""

    name: ClassVar[str] = "json_schema"

    def codec(
        self, schemas: Mapping[SchemaKey, SchemaVersion], accepts: Accepts, kept: str | None = None
    ) -> Codec:
        """Unite schemas, oldest first; columns have the names of their fields, so nothing is kept."""
        return JsonSchemaCodec.of_shapes(schemas, accepts)

    def event_type(self, spark: SparkSession, reader: str) -> DataType:
        """Return the type of what is decoded."""
        return json_codec.event_type(reader)

    def is_row(self, reader: str) -> bool:
        """Values are objects."""
        return True


@dataclass(frozen=True)
class ProtobufFormat:
    """Protobuf.

    Attributes:
        messages: Full names of the messages that values may be; empty: the first one of each schema.
    """

    messages: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Names the type and the messages."""
        return " ".join(("protobuf", *self.messages))

    def codec(
        self, schemas: Mapping[SchemaKey, SchemaVersion], accepts: Accepts, kept: str | None = None
    ) -> Codec:
        """Unite schemas, oldest first; columns have the names of their fields, so nothing is kept."""
        return ProtobufCodec.of_messages(schemas, accepts, self.messages)

    def event_type(self, spark: SparkSession, reader: str) -> DataType:
        """Return the type of what is decoded."""
        return protobuf_codec.event_type(reader)

    def is_row(self, reader: str) -> bool:
        """Values are messages."""
        return True


AVRO = AvroFormat()


def format_of(pipeline: PipelineSettings) -> Format:
    """Return the format of a pipeline's values.

    Raises:
        ConfigError: They name no schemas of the registry.
    """
    if pipeline.value_format == "avro":
        return AVRO
    if pipeline.value_format == "json_schema":
        return JsonSchemaFormat()
    if pipeline.value_format == "protobuf":
        return ProtobufFormat(pipeline.record_names)
    raise ConfigError(
        f"values of topic {pipeline.topic} are {pipeline.value_format}",
        "value_format: avro, json_schema or protobuf",
        topic=pipeline.topic,
        value_format=pipeline.value_format,
    )


def columns(event: DataType, *, is_row: bool) -> StructType:
    """Return the columns of decoded rows: the fields of an event, or `value`."""
    return event if is_row and isinstance(event, StructType) else StructType().add("value", event)
