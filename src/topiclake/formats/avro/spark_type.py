"""Spark's type for a reader schema, and whether a Delta table can hold it."""

from __future__ import annotations

import json

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructType

from topiclake.formats.avro.decoding import framed
from topiclake.formats.avro.reader_schema import is_record
from topiclake.formats.codec import ImpossibleSchemaError
from topiclake.local_frame import local_frame

#: More than a record of Kafka holds; a few bytes of a schema that claims 1 GiB would end the JVM.
FIXED_LIMIT = 16 * 1024 * 1024


def event_type(spark: SparkSession, reader: str) -> DataType:
    """Return the type of values that are decoded with the reader schema `reader`.

    Raises:
        ImpossibleSchemaError: No value can be decoded with it, or values cannot be stored.
    """
    if _has_huge_fixed(json.loads(reader)):
        raise ImpossibleSchemaError(
            f"a fixed of more than {FIXED_LIMIT} bytes, which Avro allocates before it reads it"
        )
    empty = local_frame(spark, [], "value BINARY")
    try:
        decoded = empty.select(from_avro("value", framed(reader)).alias("decoded")).select("decoded.event")
        event = decoded.schema[0].dataType
    except AnalysisException as error:
        raise ImpossibleSchemaError(" ".join(str(error).split())[:300]) from None
    if unwritable := _unwritable(event, is_row=is_record(reader)):
        raise ImpossibleSchemaError(unwritable)
    return event


def _has_huge_fixed(tree: object) -> bool:
    if isinstance(tree, dict) and tree.get("type") == "fixed" and tree["size"] > FIXED_LIMIT:
        return True
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return any(map(_has_huge_fixed, inner))


def _unwritable(kind: DataType, *, is_row: bool = False, is_item: bool = False) -> str | None:
    """Say which part Delta cannot store: a null in an array or map, a struct that holds no value."""
    if isinstance(kind, NullType):
        return "items or values that are always null, which Delta does not store" if is_item else None
    if isinstance(kind, StructType):
        if not is_row and all(isinstance(field.dataType, NullType) for field in kind):
            return "a record without a field that holds a value, which Delta does not store"
        inner, is_inner_item = [field.dataType for field in kind], is_item
    elif isinstance(kind, ArrayType):
        inner, is_inner_item = [kind.elementType], True
    else:
        inner, is_inner_item = [kind.valueType] if isinstance(kind, MapType) else [], True
    return next(filter(None, (_unwritable(each, is_item=is_inner_item) for each in inner)), None)
