"""Delta tables in SQL: identifiers of names and paths, commands, and a catalog's errors.

The API `DeltaTable` needs a plug-in of Delta on a Spark Connect server. SQL does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.config import table_name
from topiclake.errors import StorageError

#: Spark's own catalog, and the names that it allows.
_SPARK_CATALOG = "spark_catalog"
_ALLOWED = re.compile(r"\w+", re.ASCII)
#: Error classes for an unknown catalog. Spark then looks for the schema in `spark_catalog`.
_NO_CATALOG = ("CATALOG_NOT_FOUND", "NO_SUCH_CATALOG_EXCEPTION", "REQUIRES_SINGLE_PART_NAMESPACE")


def identifier(location: str) -> str:
    """Return the table at a location for SQL."""
    if table_name.is_name(location):
        return table_name.quoted(location)
    return f"delta.`{location.replace('`', '``')}`"


def history(spark: SparkSession, location: str, limit: int | None = None) -> DataFrame:
    """Return the newest `limit` commits of the table at a location, or all, newest first, as Delta does.

    An OPTIMIZE has no `userMetadata`. Delta's auto compaction after a MERGE copies that of the MERGE.
    """
    limited = "" if limit is None else f" LIMIT {limit}"
    own_metadata = F.when(F.col("operation") != "OPTIMIZE", F.col("userMetadata"))
    return spark.sql(f"DESCRIBE HISTORY {identifier(location)}{limited}").withColumn(
        "userMetadata", own_metadata
    )


def update(spark: SparkSession, location: str, assignments: str, condition: str) -> int:
    """Update rows of the table at a location; returns their number."""
    done = spark.sql(f"UPDATE {identifier(location)} SET {assignments} WHERE {condition}")  # noqa: S608
    return int(done.collect()[0]["num_affected_rows"])


def merge(location: str, rows: DataFrame, condition: str, *actions: str, evolves: bool = False) -> int:
    """Merge rows into the table at a location.

    Args:
        location: Location of the table, which is `old` in the conditions.
        rows: The rows, which are `new` in the conditions.
        condition: The condition in SQL that makes an old and a new row one.
        actions: The clauses `WHEN …` in SQL.
        evolves: Whether new columns are added to the table.

    Returns:
        The number of rows that it has changed; 0 if Delta has skipped it.
    """
    evolution = "WITH SCHEMA EVOLUTION " if evolves else ""
    before, after = (
        text.replace("{", "{{").replace("}", "}}")
        for text in (
            f"MERGE {evolution}INTO {identifier(location)} AS old USING ",
            f" AS new ON {condition} {' '.join(actions)}",
        )
    )
    metrics = rows.sparkSession.sql(f"{before}{{rows}}{after}", rows=rows).collect()
    return sum(row["num_affected_rows"] for row in metrics)


def folder(spark: SparkSession, location: str) -> str:
    """Return the path of the table at a location: of a name, the path that the catalog has.

    A table that does not exist would be a managed table, so its path is below the path of its schema.

    Raises:
        StorageError: The schema of the name does not exist.
    """
    if not table_name.is_name(location):
        return location
    with catalog_errors(location):
        if exists(spark, location):
            return str(spark.sql(f"DESCRIBE DETAIL {identifier(location)}").collect()[0]["location"])
        schema = spark.catalog.getDatabase(table_name.schema_of(location))
    return f"{schema.locationUri.rstrip('/')}/{table_name.table_of(location).lower()}"


def exists(spark: SparkSession, name: str) -> bool:
    """Return whether the catalog has a table of this name; raises as `catalog_errors`."""
    with catalog_errors(name):
        return bool(spark.catalog.tableExists(table_name.quoted(name)))


def require_allowed(spark: SparkSession, name: str) -> None:
    """Check that Spark's own catalog allows a name; Delta would notice it only after its first commit.

    Raises:
        StorageError: It does not.
    """
    named = [spark.catalog.currentCatalog(), *table_name.parts(name)][-3:]
    if named[0] == _SPARK_CATALOG and not all(map(_ALLOWED.fullmatch, named)):
        raise StorageError(
            f"Spark's own catalog does not allow the name of table {name}",
            "use letters, digits and underscores, or set table_path in place of table",
            table=name,
            reason="table_name",
        )


@contextmanager
def catalog_errors(location: str) -> Iterator[None]:
    """Run an access to a table, and raise a catalog's refusal of its name as one sentence.

    Raises:
        StorageError: The schema or the catalog does not exist.
    """
    try:
        yield
    except PySparkException as error:
        if not table_name.is_name(location):
            raise
        condition, schema = error.getCondition(), table_name.schema_of(location)
        if condition == "SCHEMA_NOT_FOUND":
            raise StorageError(
                f"the schema of table {location} does not exist",
                f"CREATE SCHEMA {schema}",
                table=location,
                schema=schema,
                reason="no_schema",
            ) from None
        if condition in _NO_CATALOG:
            raise StorageError(
                f"the catalog of table {location} does not exist",
                "run SHOW CATALOGS, or use <schema>.<table> for a table in Spark's own catalog",
                table=location,
                reason="no_catalog",
            ) from None
        raise
