"""Decoding values that are Protobuf in Confluent's framing: a message as columns."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from subprocess import SubprocessError
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.formats.codec import (
    OWN,
    Codec,
    ImpossibleSchemaError,
    SchemaVersion,
    decoded_name,
    decoded_row,
    null_decoded,
    once,
)
from topiclake.formats.protobuf import decoding as protobuf_decoding
from topiclake.formats.protobuf import schema as protobuf_schema
from topiclake.formats.protobuf.message import Described
from topiclake.schema_registry.wire_format import (
    GUID_HEADER_LENGTH,
    GUID_MAGIC_BYTE,
    HEADER_LENGTH,
    Part,
    SchemaKey,
    identifier,
    payload_of,
)

_MESSAGE = f"{OWN}message"


class ProtobufCodec(Codec):
    """The codec of Protobuf schemas.

    `reader` is the type of the rows, as `StructType.json()` has it; `writers` are descriptors, as JSON.
    """

    schema_type: ClassVar[str] = "PROTOBUF"

    @classmethod
    def of_messages(
        cls,
        names: tuple[str, ...],
        schemas: Mapping[SchemaKey, SchemaVersion],
        accepts: Callable[[str], str | None] = lambda reader: None,
        reader_text: str | None = None,
    ) -> ProtobufCodec:
        """Unite schemas, oldest first.

        Args:
            names: Full names of the messages that values may be; empty: the first one of each schema.
            schemas: Schemas of the registry.
            accepts: Says why a type of rows is not possible, or returns None.
            reader_text: Not used: columns have the names of their fields.
        """

        def extended(reader: Any, version: SchemaVersion) -> tuple[Any, Any]:  # noqa: ANN401
            try:
                files = protobuf_schema.compiled(version.schema, tuple(version.references))
                messages = protobuf_schema.messages(files, names)
                shapes = [protobuf_schema.shape(message) for message in messages]
                united = reduce(protobuf_schema.united, shapes, reader or shapes[0])
            except (TypeError, SubprocessError) as error:
                raise ImpossibleSchemaError(str(error)) from error
            if not united["fields"]:
                raise ImpossibleSchemaError("its message has no fields")
            return united, [base64.b64encode(files).decode("ascii"), [each.full_name for each in messages]]

        return cls.unite(schemas, extended, accepts)

    def decode(self, records: DataFrame, part: Part = "value") -> DataFrame:
        """Decode `part` of records that `identified` has seen, as `Codec.decode` says.

        A header holds the message indexes after the schema; here they are removed from `<part>_schema`.
        """
        header = F.col(f"{part}_named")
        guid = F.substring(header, 1, 1) == F.lit(bytes([GUID_MAGIC_BYTE]))
        length = F.when(guid, GUID_HEADER_LENGTH).otherwise(HEADER_LENGTH)
        schema = F.coalesce(F.substring(header, F.lit(1), length), F.col(f"{part}_schema"))
        records = records.withColumn(f"{part}_schema", schema)
        if self.reader is None:
            undecoded = once(null_decoded())
            return records.withColumn(decoded_name(part), undecoded)
        reader = event_type(records.sparkSession, self.reader)
        message = self._message(F.col(f"{part}_schema"), _payload(part), reader)
        fields = [F.col(f"{_MESSAGE}.row")[name].alias(name) for name in reader.names]
        is_valid = F.col(f"{_MESSAGE}.row").isNotNull()
        decoded = once(decoded_row(fields, is_valid, part))
        return records.withColumn(_MESSAGE, message).withColumn(decoded_name(part), decoded).drop(_MESSAGE)

    def reason(self, payload: Column, schema: Column, part: Part = "value") -> Column:
        """Say why a part is no message of its schema, if `payload` is not null; runs Python."""
        if self.reader is None:
            return F.lit(None).cast("string")
        row = StructType.fromJson(json.loads(self.reader))
        return self._message(schema, F.when(payload.isNotNull(), _payload(part)), row)["error"]

    def _message(self, schema: Column, payload: Column, row: StructType) -> Column:
        return protobuf_decoding.decoded(payload, schema, dict(self._described()), row)

    def _described(self) -> Iterator[tuple[bytes, Described]]:
        for key, text in self.writers.items():
            files, names = json.loads(text)
            yield identifier(key), (base64.b64decode(files), names)


def event_type(_: SparkSession, reader: str) -> StructType:
    """Return the type of values that are decoded with `reader`."""
    return StructType.fromJson(json.loads(reader))


def _payload(part: Part) -> Column:
    """Return message indexes and message: the indexes follow the schema in the value, or in its header."""
    value, header = F.col(part), F.col(f"{part}_named")
    guid = F.substring(header, 1, 1) == F.lit(bytes([GUID_MAGIC_BYTE]))
    payload_start = F.when(guid, GUID_HEADER_LENGTH + 1).otherwise(HEADER_LENGTH + 1)
    in_header = F.concat(F.substring(header, payload_start, F.lit(2**31 - 1)), value)
    return F.when(header.isNull(), payload_of(value)).otherwise(in_header)
