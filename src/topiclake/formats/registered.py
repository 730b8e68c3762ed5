"""The formats of the registry, by the type of their schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType

from topiclake.config.pipeline import PipelineSettings
from topiclake.formats.avro import spark_type
from topiclake.formats.avro.codec import AvroCodec
from topiclake.formats.avro.reader_schema import is_record
from topiclake.formats.codec import Codec, SchemaVersion
from topiclake.formats.json import codec as json_codec
from topiclake.formats.json.codec import JsonSchemaCodec
from topiclake.schema_registry.wire_format import SchemaKey

Schemas = Mapping[SchemaKey, SchemaVersion]
#: Says why nothing can be decoded with the reader schema that it is given, and stored; None: it can.
Accepts = Callable[[str], str | None]


@dataclass(frozen=True)
class Format:
    """A type of schemas; can be pickled, for Spark Connect.

    Attributes:
        name: Names the type, and what else decides how a value is read.
        codec: Unites schemas, oldest first, with the reader that a table stores (`Codec.reader_text`).
        event_type: Returns the type of values decoded with a codec's reader schema. ImpossibleSchemaError:
            no value can be decoded with it, or values cannot be stored.
        has_columns: Returns whether the fields of a decoded value are columns; else it is one column `value`.
    """

    name: str
    codec: Callable[[Schemas, Accepts, str | None], Codec]
    event_type: Callable[[SparkSession, str], DataType]
    has_columns: Callable[[str], bool]


def _always(_: str) -> bool:
    return True


AVRO = Format("avro", AvroCodec.of, spark_type.event_type, is_record)
JSON_SCHEMA = Format("json_schema", JsonSchemaCodec.of_shapes, json_codec.event_type, _always)


def protobuf(messages: tuple[str, ...]) -> Format:
    """Return Protobuf whose values may be `messages` (full names); empty: the first one of each schema."""
    # Its packages are an extra.
    from topiclake.formats.protobuf.codec import ProtobufCodec, event_type

    codec = partial(ProtobufCodec.of_messages, messages)
    return Format(" ".join(("protobuf", *messages)), codec, event_type, _always)


def format_of(pipeline: PipelineSettings) -> Format:
    """Return the format of a pipeline's values; Avro if values name no schemas."""
    if pipeline.value_format == "json_schema":
        return JSON_SCHEMA
    if pipeline.value_format == "protobuf":
        return protobuf(pipeline.record_names)
    return AVRO


def key_format_of(pipeline: PipelineSettings) -> Format:
    """Return the format of a pipeline's keys; Avro if keys name no schemas."""
    if pipeline.key == "json_schema":
        return JSON_SCHEMA
    return protobuf(()) if pipeline.key == "protobuf" else AVRO
