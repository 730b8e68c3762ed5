"""Truncates: the table keeps the newest one as a row without keys, so that older changes do not return."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.changes.order import CDC_COLUMN, Order
from topiclake.changes.rows import DELETED, DELETED_AT, OPERATION_FIELD, REASON_FIELD, named
from topiclake.delta.table import struct
from topiclake.formats.envelope import TRUNCATE


@dataclass(frozen=True)
class Truncate:
    """The newest truncate: rows that are older do not exist.

    Attributes:
        texts: Its order, for `Order.literal`.
        is_new: Whether the table does not have it yet.
        order: The order of changes.
    """

    texts: list[str]
    is_new: bool
    order: Order

    @classmethod
    def newest(
        cls, prepared: DataFrame | None, table: DataFrame, keys: tuple[str, ...], order: Order
    ) -> Truncate | None:
        """Return the newest truncate of a batch, if it has one, and of the table."""
        has_no_key = reduce(Column.__and__, (named(key).isNull() for key in keys))
        key = order.key().alias("key")
        # A user's row may have no key, either.
        found = table.where(has_no_key & F.col(f"{CDC_COLUMN}.{DELETED}")).select(
            key, F.lit(True).alias("is_stored")
        )
        if prepared is not None:
            is_truncate = F.col(REASON_FIELD).isNull() & (F.col(OPERATION_FIELD) == TRUNCATE)
            found = found.union(prepared.where(is_truncate).select(key, F.lit(False).alias("is_stored")))
        last = found.agg(F.max(F.struct("key", "is_stored")).alias("last"))
        texts = order.texts(F.col("last.key"))
        ((is_stored, newest),) = last.select("last.is_stored", F.array(*texts)).collect()
        return None if is_stored is None else cls(newest, not is_stored, order)

    @property
    def literal(self) -> str:
        """Its order in SQL."""
        return self.order.literal(self.texts)

    def precedes(self, cdc: str = CDC_COLUMN) -> Column:
        """Return whether the truncate is older than a row."""
        return F.expr(f"{self.order.sql(cdc)} > {self.literal}")

    def cdc(self) -> str:
        """Return `_cdc` of the rows that it deletes, in SQL."""
        return struct(self.order.literals(self.texts) | {DELETED: "true", DELETED_AT: "current_timestamp()"})

    def row(self, merged: DataFrame, keys: tuple[str, ...]) -> DataFrame:
        """Return its row for the table; it has no keys, so it matches no row."""
        columns: StructType = merged.schema
        nulls = [F.lit(None).cast(columns[key].dataType).alias(key) for key in keys]
        return merged.sparkSession.range(1).select(*nulls, F.expr(self.cdc()).alias(CDC_COLUMN))
