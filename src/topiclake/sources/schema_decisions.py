"""The schemas that records of `read_values` may have, decided once for all queries of the pipeline.

A query with a fixed plan stops at a record whose schema its plan does not know. Then `start_quarantine` asks
the registry, and writes the answer into the Delta table `<checkpoint_path>_schemas`. The table has one row
for each schema: `part STRING, schema STRING, is_known BOOLEAN, decided_at TIMESTAMP`. Each start reads the
table. So a record is a row or in quarantine, never both, whenever its schema is registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from pyspark.sql import SparkSession
from pyspark.sql.types import BooleanType, StringType, StructField, StructType, TimestampType

from topiclake.delta import catalog
from topiclake.delta import table as delta
from topiclake.local_frame import local_frame
from topiclake.schema_registry.wire_format import Part, SchemaKey

COLUMNS = StructType(
    [
        StructField("part", StringType()),
        StructField("schema", StringType()),
        StructField("is_known", BooleanType()),
        StructField("decided_at", TimestampType()),
    ]
)


@dataclass(frozen=True)
class Decisions:
    """Decided schemas, by part.

    Attributes:
        known: Those whose records are decoded.
        unknown: Those whose records go to quarantine.
    """

    known: Mapping[Part, frozenset[SchemaKey]] = field(default_factory=dict)
    unknown: Mapping[Part, frozenset[SchemaKey]] = field(default_factory=dict)


def read(spark: SparkSession, table: str) -> Decisions:
    """Return the decisions; empty if the table does not exist."""
    if not delta.is_table(spark, table):
        return Decisions()
    rows = delta.read(spark, table).collect()

    def decided(*, is_known: bool) -> dict[Part, frozenset[SchemaKey]]:
        parts: tuple[Part, ...] = ("value", "key")
        return {
            part: frozenset(
                _key(row["schema"]) for row in rows if (row["part"], row["is_known"]) == (part, is_known)
            )
            for part in parts
        }

    return Decisions(decided(is_known=True), decided(is_known=False))


def decide(spark: SparkSession, table: str, part: Part, decisions: Mapping[SchemaKey, bool]) -> None:
    """Write the decisions on schemas that the table does not have yet.

    Args:
        spark: The session.
        table: Location of the table; created if it does not exist.
        part: The part of the records.
        decisions: Whether the registry knows a schema.
    """
    delta.ensure_table(spark, table, COLUMNS, {})
    rows = [(part, str(key), is_known, datetime.now(timezone.utc)) for key, is_known in decisions.items()]
    new = local_frame(spark, rows, COLUMNS)
    is_same = "old.part = new.part AND old.schema = new.schema"

    def insert() -> None:
        catalog.merge(table, new, is_same, "WHEN NOT MATCHED THEN INSERT *")

    # If two queries decide at once, Delta accepts one commit. The other query then finds the decision.
    delta.write_with_retries(insert, lambda: None)


def _key(text: str) -> SchemaKey:
    return int(text) if text.lstrip("-").isdigit() else text
