"""Conversion of a row's values from Spark to a database, and to JSON for the quarantine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from topiclake.delta.table import quoted
from topiclake.sinks.jdbc.tables import TableSchema

#: A row whose JSON is longer goes into the quarantine with its values cut.
_LONGEST_JSON, _CUT = 500_000, 1_000
_EPOCH = datetime(1970, 1, 1)
_FIRST_DAY = date(1970, 1, 1)

Row = tuple[Any, ...]


class RefusedError(Exception):
    """A value that cannot be sent to the database."""


def read(rows: DataFrame, shape: TableSchema) -> Iterator[Row]:
    """Read rows, with equal keys adjacent, in an order that is the same for all writers.

    Times are read as numbers: Python's types have no year 10000, and one such row would end the batch.
    """
    read = rows.select(*(_number(kind, F.col(quoted(name))).alias(name) for name, kind in shape.columns))
    keys = [F.col(quoted(name)) for name in shape.keys]
    return iter(map(tuple, read.repartition(*keys).sortWithinPartitions(*keys).toLocalIterator()))


def _number(kind: T.DataType, column: Column) -> Column:
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, T.TimestampNTZType):
        # A conversion to a number would use the session's time zone, which lacks some hours.
        return column.cast("string")
    return F.unix_date(column) if isinstance(kind, T.DateType) else column


def converter(kind: T.DataType, database: str) -> Callable[[Any], Any]:
    """Return the function that converts a value of `read` to a database's value.

    This function raises RefusedError for a value that the database cannot store.
    """
    if isinstance(kind, T.TimestampType):
        zone = zone_of(database)
        return lambda value: None if value is None else _moment(value).replace(tzinfo=zone)
    if isinstance(kind, T.TimestampNTZType):
        return lambda value: None if value is None else _local(value)
    if isinstance(kind, T.DateType):
        return lambda value: None if value is None else _day(value)
    if isinstance(kind, T.FloatType | T.DoubleType) and database != "postgresql":
        return _finite
    return lambda value: value


def zone_of(database: str) -> timezone | None:
    """Return the zone of a UTC time: None for MariaDB and MySQL, whose times have no zone."""
    return timezone.utc if database == "postgresql" else None


def _moment(micros: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise RefusedError(f"a time {micros} µs from 1970 is outside of the years 1 to 9999") from None


def _local(text_of: str) -> datetime:
    seconds, _, fraction = text_of.partition(".")
    try:
        # Python 3.10 reads six digits, not fewer.
        return datetime.fromisoformat(f"{seconds}.{fraction:0<6}")
    except ValueError:
        raise RefusedError(f"{text_of} is outside of the years 1 to 9999") from None


def _day(days: int) -> date:
    try:
        return _FIRST_DAY + timedelta(days=days)
    except OverflowError:
        raise RefusedError(f"a day {days} days from 1970 is outside of the years 1 to 9999") from None


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise RefusedError(f"MariaDB and MySQL have no {value}")
    return value


def size(value: object) -> int:
    """Return the approximate number of bytes of a value in a statement."""
    if isinstance(value, str):
        # A character has up to four bytes; ASCII text is not encoded, which saves time.
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    return len(value) if isinstance(value, bytes | bytearray) else 24


def as_json(row: dict[str, Any]) -> str:
    """Return a row as JSON in ASCII, which every database accepts; values of a very long row are cut."""
    row_json = json.dumps(row, default=_plain)
    if len(row_json) <= _LONGEST_JSON:
        return row_json
    return json.dumps({name: _cut(value) for name, value in row.items()}, default=_plain)


def _plain(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    return value.isoformat() if isinstance(value, date) else str(value)


def _cut(value: object) -> object:
    if isinstance(value, str | bytes | bytearray) and len(value) > _CUT:
        shortened = value[:_CUT]
        return (
            f"{shortened if isinstance(shortened, str) else shortened.hex()}… (cut; there were {len(value)})"
        )
    return value
