"""Tables of changed rows: create and check them, hide their deletions, and purge old ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, BooleanType, DataType, StructType

from topiclake.changes.order import CDC_COLUMN
from topiclake.changes.rows import DELETED, DELETED_AT, END, HIDDEN, ChangeRows
from topiclake.changes.rules import PROPERTY
from topiclake.delta import catalog
from topiclake.delta import table as delta
from topiclake.errors import ConfigError
from topiclake.sources.constraints import NOT_NULL
from topiclake.sources.table_snapshot import TableSnapshot

#: Delta clusters a table by four columns at most, of types that have statistics. OPTIMIZE then writes all
#: files of a table below 100 GB again, and REORG keeps clustered files with their deletion vectors. So a
#: table has either clusters or deletion vectors.
_MOST_CLUSTERED = 4
_NOT_CLUSTERED = (BinaryType, BooleanType, StructType)
#: A purge writes the files with old deletions again, so not every batch makes one.
PURGE_BATCHES = 100
_APPEND_ONLY = "delta.appendOnly"
_CLUSTERED = "clusteringColumns"
_VECTORS = "delta.enableDeletionVectors"
#: Files keep their deletion vectors after `delta.enableDeletionVectors` is false. The feature remains, too.
_VECTOR_FEATURE = "delta.feature.deletionVectors"
#: A batch marks the rows that it replaces, and adds a file of new rows. Auto compaction combines those files.
_WITH_VECTORS = {_VECTORS: "true", "delta.autoOptimize.autoCompact": "true"}


def ensure(
    spark: SparkSession,
    path: str,
    schema: StructType,
    rows: ChangeRows,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Create the table of changes, or check that the existing one fits their rules.

    Args:
        spark: The session.
        path: Location of the table.
        schema: The table's columns.
        rows: The rules and the order of the changes.
        properties: Table properties of a new table. By default it has deletion vectors and auto compaction.
            Without deletion vectors it is clustered by its keys.

    Raises:
        ConfigError: The table has other keys, another order or another SCD type, columns of other types, or
            columns that a truncate cannot null. Or it only accepts appends.
        StorageError: The table forgets its writers, or its folder has other files.
    """
    identity = rows.rules.identity(rows.order.columns)
    given = {name.lower(): value.lower() for name, value in properties.items()}
    has_vectors = given.get(_VECTORS.lower(), "true") == "true"
    defaults = {name: value for name, value in _WITH_VECTORS.items() if name.lower() not in given}
    own = {**(defaults if has_vectors else {}), **properties, PROPERTY: identity}
    clustered = [key for key in rows.rules.keys if not isinstance(schema[key].dataType, _NOT_CLUSTERED)]
    delta.ensure_table(
        spark, path, schema, own, cluster_by=() if has_vectors else clustered[:_MOST_CLUSTERED]
    )
    table = TableSnapshot(delta.read(spark, path).schema, delta.properties(spark, path))
    found = table.properties
    delta.require_lasting_writers(path, found)
    if found.get(_APPEND_ONLY) == "true":
        raise ConfigError(
            f"the table at {path} has {_APPEND_ONLY} = true, and changes update its rows",
            f"ALTER TABLE {catalog.identifier(path)} UNSET TBLPROPERTIES ('{_APPEND_ONLY}'), or use another "
            "table",
            table=path,
            property=_APPEND_ONLY,
            reason="append_only",
        )
    if found.get(PROPERTY, identity) != identity:
        raise ConfigError(
            f"the table at {path} has rows by the rules {found[PROPERTY]}, and the rules are now {identity}",
            "use the earlier rules, or another table",
            table=path,
            found=found[PROPERTY],
            expected=identity,
            reason="rules",
        )
    if rows.rules.apply_as_truncates:
        _require_nullable(path, table)
    _adopt(spark, path, schema, rows, table)
    if PROPERTY not in found:
        delta.set_properties(spark, path, {PROPERTY: identity})


def _require_nullable(path: str, table: TableSnapshot) -> None:
    """Check that a truncate can null all columns: it is a row without keys, and clears the others.

    Raises:
        ConfigError: A column is NOT NULL.
    """
    for constraint in table.constraints:
        if constraint.startswith(NOT_NULL):
            raise ConfigError(
                f"the table at {path} demands {constraint}, and the row of a truncate has only nulls",
                "drop the constraint (ALTER COLUMN … DROP NOT NULL), use another table, or omit truncates",
                table=path,
                constraint=constraint,
                reason="truncates",
            )


def _adopt(
    spark: SparkSession, path: str, schema: StructType, rows: ChangeRows, table: TableSnapshot
) -> None:
    """Add the technical columns to a table that a user has created.

    Raises:
        ConfigError: It lacks a key, its `_cdc` has other fields, or a column has another type.
    """
    # Delta's names of columns are the same in any case.
    kinds = {field.name.lower(): field.dataType for field in table.columns}
    for key in rows.rules.keys:
        if key.lower() not in kinds:
            raise ConfigError(
                f"the table at {path} has no column {key}, a key",
                "name other keys, or use another table",
                table=path,
                column=key,
                reason="no_key_column",
            )
    expected = schema[CDC_COLUMN].dataType
    found = kinds.get(CDC_COLUMN, expected)
    if _fields(found) != _fields(expected):
        raise ConfigError(
            f"the table at {path} has another column {CDC_COLUMN}",
            "use another table",
            table=path,
            found=found.simpleString(),
            expected=expected.simpleString(),
            reason="order",
        )
    problem = table.refusal(schema, may_widen=False)
    if problem is not None:
        # MERGE would cast the values: it would cut fractions, or each batch would fail.
        raise ConfigError(
            f"the table at {path} cannot accept the columns of the changes: {problem}",
            "set the types that the table has, or use another table",
            table=path,
            reason="columns",
        )
    missing = [field for field in schema if field.name.lower() not in kinds]
    if missing:
        delta.add_columns(spark, path, StructType(missing))


def _fields(kind: DataType) -> dict[str, object] | None:
    """Return the names of the fields of a struct, without their types, which may become wider."""
    if not isinstance(kind, StructType):
        return None
    return {field.name: _fields(field.dataType) for field in kind}


def current_rows(table: DataFrame) -> DataFrame:
    """Return the rows of a table of changes without deletions and without `_cdc`; of SCD type 2, versions."""
    for name in {DELETED, HIDDEN} & set(table.select(f"{CDC_COLUMN}.*").columns):
        table = table.where(~F.coalesce(F.col(f"{CDC_COLUMN}.{name}"), F.lit(False)))
    return table.drop(CDC_COLUMN)


def purge_at(spark: SparkSession, path: str, retention_days: float | None, batch_id: int) -> None:
    """Remove old deletions after each hundredth batch, if they are kept for a time only.

    The newest files still have them if the table has deletion vectors: a query does not wait until all files
    are written again.
    """
    if retention_days is not None and batch_id % PURGE_BATCHES == 0:
        _remove_deletions(spark, path, retention_days)


def purge(spark: SparkSession, path: str, retention_days: float) -> int:
    """Remove deletions from the table that are older than some days; return their number.

    Files with removed and replaced rows are written again, so that `VACUUM` removes these rows for good.

    Raises:
        ConfigError: The time is negative, or the table has no changes, or SCD type 2. Or it has deletion
            vectors and clusters.
    """
    properties = delta.properties(spark, path)
    has_vectors = _VECTOR_FEATURE in properties
    if has_vectors and json.loads(properties.get(_CLUSTERED, "[]")):
        # REORG would change nothing, without an error.
        raise ConfigError(
            f"the table at {path} has deletion vectors and clusters, and Delta keeps the removed rows in the "
            "files of clusters",
            f"ALTER TABLE {catalog.identifier(path)} CLUSTER BY NONE",
            table=path,
            reason="clustered",
        )
    removed = _remove_deletions(spark, path, retention_days)
    if has_vectors:
        statement = f"REORG TABLE {catalog.identifier(path)} APPLY (PURGE)"
        delta.retry_conflicts(lambda: spark.sql(statement))
    return removed


def _remove_deletions(spark: SparkSession, path: str, retention_days: float) -> int:
    """Remove deletions from the table that are older than some days; return their number.

    Raises:
        ConfigError: The time is negative, or the table has no changes, or SCD type 2.
    """
    table = delta.read(spark, path)
    require_purgeable(path, retention_days, has_versions=END in table.columns)
    if CDC_COLUMN not in table.columns:
        raise ConfigError(
            f"the table at {path} has no rows of changes, so it has no deletions",
            "set the table of a pipeline with apply: upsert",
            table=path,
            reason="no_changes",
        )
    condition = (
        f"{CDC_COLUMN}.{DELETED} AND {CDC_COLUMN}.{DELETED_AT} < "
        f"current_timestamp() - make_dt_interval(0, 0, 0, {round(retention_days * 86_400)})"
    )
    statement = f"DELETE FROM {catalog.identifier(path)} WHERE {condition}"  # noqa: S608 (quoted)
    removed = delta.retry_conflicts(lambda: spark.sql(statement).collect())
    return sum(row["num_affected_rows"] for row in removed)


def require_purgeable(path: str, retention_days: float, *, has_versions: bool) -> None:
    """Check that old deletions of a table can be removed.

    Raises:
        ConfigError: The time is negative, or the table has SCD type 2.
    """
    if retention_days < 0:
        raise ConfigError(
            f"retention_days is {retention_days}", "retention_days=30", parameter="retention_days"
        )
    if has_versions:
        raise ConfigError(
            f"the table at {path} has SCD type 2, and its deletions are the ends of versions",
            "keep them, or delete the rows of a key",
            table=path,
            reason="scd_type",
        )
