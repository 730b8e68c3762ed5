"""Envelopes of change data: from decoded columns to the fields of a row, and the operation on it.

Source: https://debezium.io/documentation/reference/3.3/connectors/postgresql.html and real records of
Debezium 3.3.1 (PostgreSQL).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from uuid import UUID

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from topiclake.errors import ConfigError

NONE, DEBEZIUM, DEBEZIUM_FLAT = ENVELOPES = ("none", "debezium", "debezium_flat")

UPSERT, DELETE, TRUNCATE, SKIP = "upsert", "delete", "truncate", "skip"
#: A tombstone: a record without a value, after the delete of its key. It deletes the key once more.
WITHOUT_VALUE = "without_value"

#: By Debezium's `op`. A message (`m`) is no change of a row.
_OPERATIONS = {"r": UPSERT, "c": UPSERT, "u": UPSERT, "d": DELETE, "t": TRUNCATE, "m": SKIP}
_BEFORE, _AFTER, _OP = "before", "after", "op"
_DELETED_FLAG, _OP_FLAG = "__deleted", "__op"
#: Fields that Debezium adds to a flattened row begin so.
_ADDED = "__"
#: The header of a record whose key is new, with the earlier key.
_OLD_KEY = "__debezium.oldkey"
#: The struct around a record of Kafka Connect's JSON converter with schemas.
_PAYLOAD = "payload"

_PLACEHOLDER = "__debezium_unavailable_value"
_PLACEHOLDER_BASE64 = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
#: Java's UUID.nameUUIDFromBytes: Debezium's placeholder in arrays of UUIDs.
_DIGEST = hashlib.md5(_PLACEHOLDER.encode(), usedforsecurity=False).digest()
_PLACEHOLDER_UUID = str(UUID(bytes=_DIGEST, version=3))


@dataclass(frozen=True)
class Envelope:
    """The meaning of decoded rows as changes.

    Attributes:
        fields: The columns of the changed row, by name. Columns of a deleted row are unknown, except keys.
        keys: By name, further columns that may have a key's value, if `fields` has none.
        operation: One of `upsert`, `delete`, `truncate`, `skip`, `tombstone`; null if it is unknown.
        has_unavailable: Whether a column may have Debezium's placeholder of an unavailable value.
        old_key: The key before a change of the primary key, as JSON; None if the rows don't have it.
    """

    fields: Mapping[str, Column]
    keys: Mapping[str, list[Column]]
    operation: Column
    has_unavailable: bool
    old_key: Column | None = None


def opened(rows: DataFrame, envelope: str) -> DataFrame:
    """Return rows with the fields of `payload` as columns, if Kafka Connect has wrapped Debezium's so."""
    if envelope == NONE:
        return rows
    kinds = {field.name: field.dataType for field in rows.schema}
    if not isinstance(kinds.get(_PAYLOAD), StructType):
        return rows
    others = [F.col(_quoted(name)) for name in kinds if name not in (_PAYLOAD, "schema")]
    return rows.select(f"{_PAYLOAD}.*", *others)


def read(
    envelope: str,
    schema: StructType,
    key_column: str,
    tombstone_column: str,
    headers_column: str,
    technical: tuple[str, ...],
) -> Envelope:
    """Return the meaning of rows in an envelope.

    Args:
        envelope: `none`, `debezium`, or `debezium_flat` for rows of Debezium's ExtractNewRecordState.
        schema: Columns of `opened` rows.
        key_column: The column with the decoded key of the record, a struct; it may be missing.
        tombstone_column: The column that is true for a record without a value. If it is missing, a row of
            nulls is a tombstone in Debezium's envelopes.
        headers_column: The column with the record's headers; it may be missing.
        technical: Columns that are no part of a value.

    Raises:
        ConfigError: In Debezium's envelope, there is no `op`, or no struct `after`. Each record would look
            like a heartbeat.
    """
    kinds = {field.name: field.dataType for field in schema}
    names = [name for name in kinds if name not in technical]
    keys = _fields_of(kinds, key_column)
    old_key = _old_key(headers_column) if headers_column in kinds else None
    is_known = tombstone_column in kinds
    is_tombstone = F.col(tombstone_column) if is_known else _are_null(names)
    if envelope == DEBEZIUM:
        return replace(_debezium(kinds, names, keys, is_tombstone), old_key=old_key)
    fields = {name: F.col(_quoted(name)) for name in names}
    if envelope == NONE:
        operation = F.when(is_tombstone, DELETE).otherwise(UPSERT) if is_known else F.lit(UPSERT)
        return Envelope(fields, keys, operation, has_unavailable=False)
    return replace(_flat(fields, keys, is_tombstone), old_key=old_key)


def key_names(schema: StructType, key_column: str) -> tuple[str, ...]:
    """Return the names of the fields of a decoded key."""
    kind, _ = _struct_of({field.name: field.dataType for field in schema}, key_column)
    return () if kind is None else tuple(kind.fieldNames())


def _debezium(
    kinds: Mapping[str, DataType],
    names: list[str],
    keys: Mapping[str, list[Column]],
    is_tombstone: Column,
) -> Envelope:
    if _OP not in kinds or not isinstance(kinds.get(_AFTER), StructType):
        raise ConfigError(
            f"records have no columns op and after, which envelope={DEBEZIUM} needs; their columns: "
            + ", ".join(kinds),
            f"set envelope={DEBEZIUM_FLAT} for flattened rows, else envelope={NONE}",
            parameter="envelope",
            value=DEBEZIUM,
            found=tuple(kinds),
            expected=(_OP, _AFTER),
            reason="no_envelope",
        )
    before, after = (_fields_of(kinds, name) for name in (_BEFORE, _AFTER))
    fields = {name: columns[0] for name, columns in after.items()}
    # The row before a delete has its keys, and invented values for other columns that are NOT NULL.
    all_keys = {
        name: [*before.get(name, ()), *keys.get(name, ())] for name in dict.fromkeys([*before, *keys])
    }
    # Heartbeats and records of transactions have neither an operation nor a row.
    is_empty = F.col(_OP).isNull() & _are_null([name for name in (_BEFORE, _AFTER) if name in names])
    without_row = F.when(is_tombstone, WITHOUT_VALUE).when(is_empty, SKIP)
    return Envelope(fields, all_keys, F.coalesce(_mapped(_OP), without_row), has_unavailable=True)


def _flat(columns: Mapping[str, Column], keys: Mapping[str, list[Column]], is_tombstone: Column) -> Envelope:
    # With `__deleted`, each delete has a row, and a tombstone may follow it. Without it, a delete is a null.
    null_value = WITHOUT_VALUE if _DELETED_FLAG in columns else DELETE
    operation = F.when(is_tombstone, null_value)
    if _DELETED_FLAG in columns:
        operation = operation.when(columns[_DELETED_FLAG].cast("string") == "true", DELETE)
    if _OP_FLAG in columns:
        without_op = F.when(columns[_OP_FLAG].isNull(), UPSERT)
        operation = F.coalesce(operation, _mapped(_OP_FLAG), without_op)
    else:
        operation = operation.otherwise(UPSERT)
    fields = {name: column for name, column in columns.items() if not name.startswith(_ADDED)}
    return Envelope(fields, keys, operation, has_unavailable=True)


def _old_key(headers_column: str) -> Column:
    headers = F.filter(headers_column, lambda header: header["key"] == _OLD_KEY)
    return F.get(headers, F.lit(0))["value"].cast("string")


def is_unavailable(column: Column, kind: DataType) -> Column | None:
    """Return whether a value is Debezium's placeholder; None for a type that has no placeholder."""
    if isinstance(kind, MapType):
        # Maps cannot be compared.
        column, kind = F.map_keys(column), ArrayType(kind.keyType)
    placeholders = list(_placeholders(kind))
    if not placeholders:
        return None
    return F.coalesce(reduce(Column.__or__, (column == each for each in placeholders)), F.lit(False))


def _placeholders(kind: DataType) -> Iterator[Column]:
    """Yield the placeholders in values of a type."""
    text = F.lit(_PLACEHOLDER)
    if isinstance(kind, StringType):
        yield from (text, F.lit(_PLACEHOLDER_BASE64), F.lit(f'{{"{_PLACEHOLDER}":"{_PLACEHOLDER}"}}'))
    elif isinstance(kind, BinaryType):
        yield text.cast("binary")
    elif isinstance(kind, ArrayType):
        element = kind.elementType
        if isinstance(element, (StringType, BinaryType)):
            yield F.array(text.cast(element))
        if isinstance(element, StringType):
            yield from (F.array(F.lit(each)) for each in (_PLACEHOLDER_BASE64, _PLACEHOLDER_UUID))
        if isinstance(element, (IntegerType, LongType)):
            yield F.array(*(F.lit(byte).cast(element) for byte in _PLACEHOLDER.encode()))


def _mapped(op: str) -> Column:
    """Return the operation that Debezium's letter in a column means; null for another one."""
    cases = " ".join(f"WHEN '{letter}' THEN '{operation}'" for letter, operation in _OPERATIONS.items())
    return F.expr(f"CASE {op} {cases} END")


def _are_null(names: list[str]) -> Column:
    return reduce(Column.__and__, (F.col(_quoted(name)).isNull() for name in names), F.lit(True))


def _fields_of(kinds: Mapping[str, DataType], name: str) -> dict[str, list[Column]]:
    """Return the fields of a struct by name, also of the struct `payload` in it."""
    kind, path = _struct_of(kinds, name)
    return {} if kind is None else {each: [F.col(f"{path}.{_quoted(each)}")] for each in kind.fieldNames()}


def _struct_of(kinds: Mapping[str, DataType], name: str) -> tuple[StructType | None, str]:
    """Return the type and the path of a struct, or of the struct `payload` in it; None for no struct."""
    kind, path = kinds.get(name), _quoted(name)
    if isinstance(kind, StructType) and _PAYLOAD in kind.fieldNames():
        payload = kind[_PAYLOAD].dataType
        if isinstance(payload, StructType):
            kind, path = payload, f"{path}.{_PAYLOAD}"
    return (kind if isinstance(kind, StructType) else None), path


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
