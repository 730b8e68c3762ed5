"""Tables in a database, created from the rows' schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    String,
    Table,
    Text,
    inspect,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import NullType, TypeEngine

from topiclake.errors import ConfigError, require_known_columns
from topiclake.sinks.jdbc.connection import Database, transaction

BATCHES, QUARANTINE = "topiclake_batches", "_quarantine"
#: PostgreSQL cuts a longer name silently: bytes of UTF-8.
LONGEST_NAME = 63
#: MariaDB's and MySQL's indexes hold 3072 bytes, PostgreSQL's 2704, four a character.
_KEY_CHARACTERS, _INDEX_CHARACTERS = 255, 660
#: Types whose values are equal in Spark if and only if they are equal in the database.
_KEY_TYPES = (
    *(T.StringType, T.BooleanType, T.IntegralType, T.DecimalType),
    *(T.DateType, T.TimestampType, T.TimestampNTZType),
)
#: Collations that compare each character, with case, accents and spaces at the end.
_EXACT = {"mariadb": "utf8mb4_nopad_bin", "mysql": "utf8mb4_0900_bin"}


@dataclass(frozen=True)
class TableSchema:
    """A table and the columns that rows have; can be pickled, for Spark Connect.

    Attributes:
        kind: The database's, one of `DRIVERS`.
        table: Its name.
        columns: Names and types of the rows' columns.
        keys: Names of the columns that identify a row.
    """

    kind: str
    table: str
    columns: tuple[tuple[str, T.DataType], ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, kind: str, table: str, schema: T.StructType, keys: Sequence[str]) -> TableSchema:
        """Return the schema of rows if the database can store them.

        Raises:
            ConfigError: A name, a type or a key cannot be used.
        """
        columns = tuple((field.name, field.dataType) for field in schema.fields)
        names = [name for name, _ in columns]
        for name in (f"{table}{QUARANTINE}", *names):
            _check_name(name)
        if duplicates := {
            name for name in names if [field.lower() for field in names].count(name.lower()) > 1
        }:
            raise ConfigError(
                f"the rows have {min(duplicates)} twice",
                "use select('<each name once>')",
                column=min(duplicates),
                reason="twice",
            )
        require_known_columns("keys", keys, names)
        if not keys or len(set(keys)) < len(keys):
            raise ConfigError(
                "keys is empty or twice",
                f"use {', '.join(names)}",
                parameter="keys",
                keys=tuple(keys),
                allowed=tuple(names),
            )
        for name, kind_of in columns:
            _type(kind, kind_of, name)
            if name in keys and not isinstance(kind_of, _KEY_TYPES):
                allowed = "text, whole numbers, decimals, booleans, dates and times"
                raise ConfigError(
                    f"key {name} is {kind_of.simpleString()}; keys are {allowed}",
                    "cast the column",
                    column=name,
                    found=kind_of.simpleString(),
                    reason="key_type",
                )
        return cls(kind, table, columns, tuple(keys))

    def plain(self) -> Table:
        """Return the table for statements: column i has the key `c<i>`, and values have no types.

        With types, SQLAlchemy would add casts for PostgreSQL, and a cast cuts text silently.
        """
        columns = [Column(name, NullType(), key=f"c{at}") for at, (name, _) in enumerate(self.columns)]
        return Table(self.table, MetaData(), *columns)

    def typed(self) -> Table:
        """Return the table for its creation."""
        strings = sum(isinstance(kind, T.StringType) and name in self.keys for name, kind in self.columns)
        length = min(_KEY_CHARACTERS, _INDEX_CHARACTERS // max(strings, 1))
        columns: list[Column[Any]] = []
        for name, kind in self.columns:
            is_key = name in self.keys
            column_type = _type(self.kind, kind, name, length if is_key else None)
            columns.append(Column(name, column_type, primary_key=is_key, autoincrement=False))
        return _table(self.table, *columns)


def _check_name(name: str) -> None:
    if name == name.strip() and name.isprintable() and 0 < len(name.encode()) <= LONGEST_NAME:
        return
    raise ConfigError(
        f"{name!r} is no name for a database: 1 to {LONGEST_NAME} bytes, without control characters and "
        "spaces at its ends",
        f"choose another name; a table's name is extended by {QUARANTINE}",
        name=name,
        reason="name",
    )


def _type(kind: str, spark_type: T.DataType, name: str, length: int | None = None) -> TypeEngine[Any]:
    """Return a column's type; docs/sinks.md lists them."""
    if isinstance(spark_type, T.DecimalType):
        return Numeric(spark_type.precision, spark_type.scale)
    if isinstance(spark_type, T.StringType):
        return _key_text(kind, length) if length else _text(kind)
    if isinstance(spark_type, T.TimestampType):
        return _moment(kind)
    plain: dict[type[T.DataType], TypeEngine[Any]] = {
        T.BooleanType: Boolean(),
        T.ByteType: SmallInteger(),
        T.ShortType: SmallInteger(),
        T.IntegerType: Integer(),
        T.LongType: BigInteger(),
        T.FloatType: Double(),
        T.DoubleType: Double(),
        T.DateType: Date(),
        T.TimestampNTZType: _moment(kind, with_zone=False),
        T.BinaryType: LargeBinary() if kind == "postgresql" else mysql.LONGBLOB(),
    }
    if type(spark_type) in plain:
        return plain[type(spark_type)]
    raise ConfigError(
        f"column {name} is {spark_type.simpleString()}, for which databases have no type",
        f"select a field of it such as F.col('{name}.<field>'), or use F.to_json('{name}')",
        column=name,
        found=spark_type.simpleString(),
        reason="type",
    )


def _key_text(kind: str, length: int) -> String:
    return String(length, collation=_EXACT.get(kind))


def _text(kind: str) -> String:
    return Text() if kind == "postgresql" else mysql.LONGTEXT()


def _moment(kind: str, *, with_zone: bool = True) -> TypeEngine[Any]:
    return DateTime(timezone=with_zone) if kind == "postgresql" else mysql.DATETIME(fsp=6)


def _table(name: str, *columns: Column[Any]) -> Table:
    # Only InnoDB has transactions. Each of the two dialects reads its own options only.
    return Table(
        name,
        MetaData(),
        *columns,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
    )


def batches(kind: str) -> Table:
    """Return the table with the newest batch of each writer."""
    writer = Column("writer", _key_text(kind, _KEY_CHARACTERS), primary_key=True)
    return _table(BATCHES, writer, Column("batch_id", BigInteger, nullable=False))


def quarantine(kind: str, table: str) -> Table:
    """Return the quarantine table, for the rows that the database rejects."""
    return _table(
        f"{table}{QUARANTINE}",
        Column("writer", _key_text(kind, _KEY_CHARACTERS), primary_key=True),
        Column("batch_id", BigInteger, primary_key=True, autoincrement=False),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("reason", _text(kind), nullable=False),
        Column("row_json", _text(kind), nullable=False),
        Column("at", _moment(kind), nullable=False),
    )


def create(database: Database, table: Table) -> bool:
    """Create a table if it does not exist, and return whether it was created.

    Raises:
        DBAPIError: The database refuses.
    """
    if _exists(database, table):
        return False
    try:
        with transaction(database) as connection:
            table.create(connection)
    except DBAPIError:
        # Another driver may have been faster.
        if _exists(database, table):
            return False
        raise
    return True


def _exists(database: Database, table: Table) -> bool:
    with transaction(database) as connection:
        return inspect(connection).has_table(table.name)
