"""Rows from Spark into a table, in chunks, and rejected rows into the quarantine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import DataFrame
from sqlalchemy import Connection, Executable, column, func, insert, text
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.exc import DBAPIError

from topiclake.errors import ConfigError
from topiclake.sinks.jdbc import errors as jdbc_errors
from topiclake.sinks.jdbc import tables as jdbc_tables
from topiclake.sinks.jdbc import values as jdbc_values
from topiclake.sinks.jdbc.tables import TableSchema
from topiclake.sinks.jdbc.values import RefusedError, Row

#: Most rows, values, and bytes of values of one statement; PostgreSQL accepts 65,535 values.
CHUNK_ROWS, _CHUNK_VALUES, _CHUNK_BYTES = 500, 30_000, 1_000_000
#: PostgreSQL's limit of a message is 1 GB; MariaDB and MySQL report theirs.
_LARGEST_ROW = 100_000_000
_LONGEST_REASON = 2_000


@dataclass
class UpsertTransaction:
    """The writing of one micro-batch within a transaction.

    Attributes:
        connection: The transaction's.
        shape: The table and its columns.
        writer: The batch's writer.
        batch_id: Spark's number.
        refused: How many rows went into the quarantine.
    """

    connection: Connection
    shape: TableSchema
    writer: str
    batch_id: int
    refused: int = 0
    _rejected: list[dict[str, Any]] = field(default_factory=list)

    def write(self, rows: DataFrame) -> None:
        """Upsert the rows; a row that the database rejects goes into the quarantine.

        Raises:
            ConfigError: Two rows have the same keys.
            DBAPIError: The database refuses the statement, not only a row.
        """
        chunk: list[Row] = []
        size, most = 0, min(CHUNK_ROWS, _CHUNK_VALUES // len(self.shape.columns))
        largest = self._largest_row()
        for values in self._accepted(jdbc_values.read(rows, self.shape)):
            bytes_of = sum(map(jdbc_values.size, values))
            if bytes_of > largest:
                self._refuse(values, f"it has {bytes_of} bytes; the database accepts {largest} at once")
                continue
            if chunk and (len(chunk) == most or size + bytes_of > _CHUNK_BYTES):
                self._upsert(chunk)
                chunk, size = [], 0
            chunk.append(values)
            size += bytes_of
        if chunk:
            self._upsert(chunk)
        self._flush()

    def _largest_row(self) -> int:
        if self.shape.kind == "postgresql":
            return _LARGEST_ROW
        # Escaping may double it.
        packet = int(self.connection.execute(text("SELECT @@max_allowed_packet")).scalar_one())
        return packet // 2 - 65_536

    def _accepted(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield the rows whose values can be sent; rows with equal keys have to be adjacent."""
        names = [name for name, _ in self.shape.columns]
        key_positions = [names.index(key) for key in self.shape.keys]
        converters = [jdbc_values.converter(kind, self.shape.kind) for _, kind in self.shape.columns]
        previous_keys: Row | None = None
        for row in rows:
            keys = tuple(row[position] for position in key_positions)
            if keys == previous_keys:
                raise ConfigError(
                    f"two rows of batch {self.batch_id} have the same {', '.join(self.shape.keys)}",
                    "use keys that identify each row, such as all columns of the groupBy",
                    batch_id=self.batch_id,
                    keys=tuple(self.shape.keys),
                )
            previous_keys = keys
            try:
                values = tuple(convert(value) for convert, value in zip(converters, row, strict=True))
            except RefusedError as error:
                self._refuse(row, str(error))
                continue
            # A unique index of the user's table would accept any number of nulls.
            if None in keys:
                self._refuse(values, f"key {self.shape.keys[keys.index(None)]} is null")
                continue
            yield values

    def _upsert(self, chunk: list[Row]) -> None:
        """Upsert a chunk; if the database rejects it, upsert its halves, down to single rows."""
        savepoint = self.connection.begin_nested()
        try:
            self.connection.execute(upsert(self.shape, chunk))
        except DBAPIError as error:
            # After a deadlock no savepoint exists: the database has rolled the transaction back.
            if not jdbc_errors.is_of_a_row(error):
                raise
            savepoint.rollback()
            if len(chunk) == 1:
                self._refuse(chunk[0], jdbc_errors.text(error))
                return
            self._upsert(chunk[: len(chunk) // 2])
            self._upsert(chunk[len(chunk) // 2 :])
        else:
            savepoint.commit()

    def _refuse(self, values: Row, reason: str) -> None:
        row = dict(zip((name for name, _ in self.shape.columns), values, strict=True))
        self._rejected.append(
            {
                "writer": self.writer,
                "batch_id": self.batch_id,
                "number": self.refused,
                "reason": reason.replace("\0", "\\0")[:_LONGEST_REASON],
                "row_json": jdbc_values.as_json(row),
                # MariaDB's and MySQL's times have no zone; these are UTC.
                "at": datetime.now(timezone.utc).replace(tzinfo=jdbc_values.zone_of(self.shape.kind)),
            }
        )
        self.refused += 1
        if (
            len(self._rejected) == CHUNK_ROWS
            or sum(len(refused["row_json"]) for refused in self._rejected) > _CHUNK_BYTES
        ):
            self._flush()

    def _flush(self) -> None:
        if self._rejected:
            table = jdbc_tables.quarantine(self.shape.kind, self.shape.table)
            self.connection.execute(insert(table).values(self._rejected))
            self._rejected = []


def upsert(shape: TableSchema, chunk: list[Row]) -> Executable:
    """Return the statement that inserts rows, or updates those whose keys exist."""
    table = shape.plain()
    rows = [{f"c{at}": value for at, value in enumerate(values)} for values in chunk]
    keys = [each for each in table.columns if each.name in shape.keys]
    value_columns = [each for each in table.columns if each.name not in shape.keys]
    if shape.kind == "postgresql":
        statement = postgresql.insert(table).values(rows)
        if not value_columns:
            return statement.on_conflict_do_nothing(index_elements=keys)
        excluded = {each: statement.excluded[each.key] for each in value_columns}
        return statement.on_conflict_do_update(index_elements=keys, set_=excluded)
    inserted = mysql.insert(table).values(rows)
    # A table of keys only: one of them is set to its own value.
    changed = value_columns or keys[:1]
    if shape.kind == "mysql":
        return inserted.on_duplicate_key_update({each.key: inserted.inserted[each.key] for each in changed})
    # SQLAlchemy's own form of it quotes a % twice.
    return inserted.on_duplicate_key_update({each.key: func.values(column(each.name)) for each in changed})
