"""Avro as a format of the registry: versions united to one reader schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import ClassVar

from pyspark.sql import Column, DataFrame

from topiclake.formats.avro import diagnosis as avro_diagnosis
from topiclake.formats.avro import plain as avro_plain
from topiclake.formats.avro import reader_schema
from topiclake.formats.avro.decoding import decoded, framed_payload
from topiclake.formats.codec import Codec, SchemaVersion, decoded_name
from topiclake.reasons import INCOMPATIBLE_SCHEMA
from topiclake.schema_registry.wire_format import Part, SchemaKey, identifier


class AvroCodec(Codec):
    """The codec of Avro schemas: `writers` are Avro JSON."""

    schema_type: ClassVar[str] = "AVRO"

    @classmethod
    def of(
        cls,
        schemas: Mapping[SchemaKey, SchemaVersion],
        accepts: Callable[[str], str | None] = lambda reader: None,
        reader_text: str | None = None,
    ) -> AvroCodec:
        """Unite schemas, oldest first, with the stored reader of earlier ones.

        `accepts` says why a reader schema is not possible, or None.
        """
        usable = {key: each for key, each in schemas.items() if each.schema_type == "AVRO"}
        texts = {key: each.schema for key, each in usable.items()}
        references = {key: [text for _, text in each.references] for key, each in usable.items()}
        united = reader_schema.unite(texts, accepts, reader_text, references)
        incompatible = {key: (INCOMPATIBLE_SCHEMA, detail) for key, detail in united.incompatible.items()}
        refused = cls.of_other_types(schemas) | incompatible
        newest = texts[next(reversed(united.writers))] if united.writers else "{}"
        return cls(united.reader, united.writers, refused, united.reader_text, *_comments(newest))

    @property
    def is_row(self) -> bool:
        """Whether it decodes records, whose fields are columns."""
        return self.reader is not None and reader_schema.is_record(self.reader)

    def decode(self, records: DataFrame, part: Part = "value") -> DataFrame:
        """Decode `part` of records, as `Codec.decode` says; adds `<part>_framed BINARY`, too."""
        framed = records.withColumn(f"{part}_framed", framed_payload(self, records, part))
        return framed.withColumn(decoded_name(part), decoded(self, part))

    def reason(self, payload: Column, schema: Column, part: Part = "value") -> Column:
        """Say why `payload BINARY` of a part, of the schema named `schema BINARY`, is wrong; runs Python."""
        writers = {identifier(key): text for key, text in self.writers.items()}
        return avro_diagnosis.reason(payload, schema, writers)

    def mismatch(self, records: DataFrame, *, tries: bool = True) -> Column:
        """Say which form of Avro a value has, if it was read as the other form; see `Codec.mismatch`."""
        return avro_plain.mismatch(self, records, tries=tries)


def _comments(schema: str) -> tuple[str, dict[str, str]]:
    """Return the `doc` of a record, and those of its fields by name."""
    tree = json.loads(schema)
    if not isinstance(tree, dict):
        return "", {}
    fields = tree.get("fields", ())
    return str(tree.get("doc", "")), {each["name"]: str(each["doc"]) for each in fields if each.get("doc")}
