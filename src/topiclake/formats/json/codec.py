"""Decoding values that are JSON with a schema of the registry, exactly; without Python for valid records.

Each record is read by the schema that it names, within the frame of `formats.json.frame`, and checked against
this schema. Then it becomes the columns that all versions have together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from topiclake.formats.codec import (
    OWN,
    Codec,
    ImpossibleSchemaError,
    SchemaVersion,
    decoded_name,
    decoded_row,
    first_of,
    null_decoded,
    once,
)
from topiclake.formats.json import columns as json_columns
from topiclake.formats.json import diagnosis as json_diagnosis
from topiclake.formats.json import schema as json_schema
from topiclake.formats.json.frame import event_of, framed, is_single_object
from topiclake.schema_registry.wire_format import Part, SchemaKey, identifier, payload_of

_TEXT = f"{OWN}text"
_PARSED = f"{OWN}parsed"


class JsonSchemaCodec(Codec):
    """The codec of JSON Schemas: `reader` is the rows' shape, `writers` are the versions' shapes, as JSON."""

    schema_type: ClassVar[str] = "JSON"

    @classmethod
    def of_shapes(
        cls,
        schemas: Mapping[SchemaKey, SchemaVersion],
        accepts: Callable[[str], str | None] = lambda reader: None,
        reader_text: str | None = None,
    ) -> JsonSchemaCodec:
        """Unite schemas, oldest first; `accepts` says why a shape of rows is not possible, or None.

        Columns have the names of their fields, so no reader is stored.
        """
        return cls.unite(schemas, _extended, accepts)

    def decode(self, records: DataFrame, part: Part = "value") -> DataFrame:
        """Decode `part` of records that `identified` has seen, as `Codec.decode` says."""
        value, schema = F.col(part), F.col(f"{part}_schema")
        payload = F.when(F.col(f"{part}_named").isNull(), payload_of(value)).otherwise(value)
        text = payload.cast("string")
        parsed = {
            f"{_PARSED}_{number}": F.when(
                schema == F.lit(identifier(key)), framed(text, cast(StructType, json_columns.parsed(shape)))
            )
            for number, (key, shape) in enumerate(self._shapes())
        }
        rows = records.withColumn(_TEXT, F.is_valid_utf8(text)).withColumns(parsed)
        events = {f"{name}_event": once(event_of(F.col(name))) for name in parsed}
        decoded = once(self._decoded(schema, part))
        return rows.withColumns(events).withColumn(decoded_name(part), decoded).drop(_TEXT, *parsed, *events)

    def reason(self, payload: Column, schema: Column, part: Part = "value") -> Column:
        """Say why `payload BINARY` of a part, of the schema named `schema BINARY`, is wrong; runs Python."""
        shapes = [(schema == F.lit(identifier(key)), F.lit(shape)) for key, shape in self.writers.items()]
        return json_diagnosis.reason(payload, first_of(shapes) if shapes else F.lit(None).cast("string"))

    def _shapes(self) -> list[tuple[SchemaKey, Any]]:
        return [(key, json.loads(shape)) for key, shape in self.writers.items()]

    def _decoded(self, schema: Column, part: Part) -> Column:
        if self.reader is None:
            return null_decoded()
        reader = json.loads(self.reader)
        branches = [
            (schema == F.lit(identifier(key)), _row(f"{_PARSED}_{number}", shape, reader, part))
            for number, (key, shape) in enumerate(self._shapes())
        ]
        return first_of(branches)


def _extended(reader: Any, version: SchemaVersion) -> tuple[Any, Any]:  # noqa: ANN401
    shape = json_schema.shape(version.schema, dict(version.references))
    united = json_columns.united(reader or shape, shape)
    if united == json_schema.ANY:
        raise ImpossibleSchemaError(
            "its properties and those of earlier versions differ in the case of their names alone"
        )
    return united, shape


def event_type(_: SparkSession, reader: str) -> DataType:
    """Return the type of values that are decoded to the shape `reader`."""
    return json_columns.columns(json.loads(reader))


def _row(parsed: str, shape: Any, reader: Any, part: Part) -> Column:  # noqa: ANN401
    event = F.col(f"{parsed}_event")
    is_valid = is_single_object(F.col(parsed)) & F.col(_TEXT) & json_columns.has_shape(shape, event)
    return decoded_row(json_columns.converted_fields(shape, reader, event), is_valid, part)
