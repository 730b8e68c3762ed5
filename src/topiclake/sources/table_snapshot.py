"""A Delta table as it was moments ago: its columns, properties and constraints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from topiclake.delta import evolution
from topiclake.delta import table as delta
from topiclake.sources import constraints

#: Seconds for which a snapshot of a table's columns is used.
_FRESH = 30


@dataclass(frozen=True)
class TableSnapshot:
    """A table at a moment.

    Attributes:
        columns: Its columns; none if the table does not exist.
        properties: Its table properties.
        read_at: The moment, in seconds since 1970.
    """

    columns: StructType
    properties: Mapping[str, str] = field(default_factory=dict)
    read_at: float = field(default_factory=time.time)

    @cached_property
    def constraints(self) -> dict[str, str]:
        """The conditions that its rows must meet."""
        return constraints.of_table(self.columns, self.properties)

    def refusal(self, row_columns: StructType, *, may_widen: bool) -> str | None:
        """Return why it cannot take rows with columns `row_columns`, or None if it can.

        Its columns become wider only if `may_widen` is set, or if the table has Delta's type widening.
        """
        if problem := evolution.refusal(self.columns, row_columns):
            return problem
        changes = evolution.widened(self.columns, row_columns)
        if changes and not may_widen and not evolution.WIDENING.items() <= self.properties.items():
            change = next(iter(changes.values()))
            return f"{change}; type_widening: true allows it, where each reader of the table can read that"
        return constraints.refusal(self.constraints, changes)

    @property
    def is_fresh(self) -> bool:
        """Whether it is recent enough to be used: a query may wait for hours for its first batch."""
        return 0 <= time.time() - self.read_at < _FRESH


#: For a table that does not exist, or has no constraints.
NO_TABLE = TableSnapshot(StructType())


def read_snapshot(spark: SparkSession, table: str) -> TableSnapshot | None:
    """Return the columns and properties of a table, or None if the table does not exist.

    Raises:
        StorageError: The table forgets which batches it has.
    """
    columns = delta.columns(spark, table)
    if columns is None:
        return None
    properties = delta.properties(spark, table)
    delta.require_lasting_writers(table, properties)
    return TableSnapshot(columns, properties)
