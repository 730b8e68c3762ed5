"""Claims of replays on rows of a quarantine, in a separate table `<quarantine_path>_replays`.

The ingest only appends to the quarantine, and replays never change it. So a replay conflicts only with other
replays, however busy the ingest is.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from topiclake.config import table_name
from topiclake.config.pipeline import REPLAYS
from topiclake.delta import catalog
from topiclake.delta import table as delta
from topiclake.errors import IngestError
from topiclake.session import is_databricks

#: Columns that identify a row of a quarantine. After `resume: restart` an offset may appear again later.
KEY = ("topic", "partition", "offset", "quarantined_at")
_IS_SAME = " AND ".join(f"old.{name} = new.{name}" for name in KEY)
_CLAIM = StructType([StructField("replay", StringType()), StructField("replayed_at", TimestampType())])
COLUMNS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("quarantined_at", TimestampType()),
        *_CLAIM.fields,
    ]
)


def location(quarantine: str) -> str:
    """Return the location of the claims of the quarantine at `quarantine`."""
    return table_name.suffixed(quarantine, REPLAYS)


def read(spark: SparkSession, quarantine: str, version: int | None = None) -> DataFrame:
    """Read the newest version of the quarantine at a location, or `version`, with the claims on its rows.

    Returns:
        Columns of `quarantine_rows.SCHEMA`, `replay STRING` (the id of the claim on the row) and `replayed_at
        TIMESTAMP` (the time at which the claim was marked as written).

    Raises:
        IngestError: Another version of Topiclake wrote the quarantine.
    """
    rows = delta.read(spark, quarantine, version)
    if "replay" in rows.columns:
        raise IngestError(
            f"the quarantine at {quarantine} keeps claims of replays in its own rows, as another version of "
            "Topiclake does",
            "replay it with that version, then move its folder to another place",
            quarantine=quarantine,
            reason="other_version",
        )
    if not delta.is_table(spark, location(quarantine)):
        _require_no_unregistered_claims(spark, quarantine)
        return rows.select("*", *(F.lit(None).cast(column.dataType).alias(column.name) for column in _CLAIM))
    claims = delta.read(spark, location(quarantine))
    return rows.join(claims, list(KEY), "left").select(*rows.columns, *_CLAIM.names)


def _require_no_unregistered_claims(spark: SparkSession, quarantine: str) -> None:
    """Check that no claims without a name exist; without them, rows would be replayed again."""
    # Databricks refuses the path of a managed table.
    if not table_name.is_name(quarantine) or is_databricks():
        return
    folder = location(catalog.folder(spark, quarantine))
    if delta.is_table(spark, folder):
        raise IngestError(
            f"the claims of replays on {quarantine} are at {folder}, and have no name",
            f"CREATE TABLE {table_name.quoted(location(quarantine))} USING delta LOCATION '{folder}'",
            quarantine=quarantine,
            folder=folder,
            reason="claims_without_name",
        )


def claim(spark: SparkSession, quarantine: str, rows: DataFrame, replay: str) -> None:
    """Claim rows that no replay has claimed; a concurrent claim of another replay is a conflict.

    Args:
        spark: The session.
        quarantine: Location of the quarantine.
        rows: The rows to claim, with the columns of `KEY`.
        replay: Id of the claim.
    """
    delta.ensure_table(spark, location(quarantine), COLUMNS, {})
    claims = rows.select(*KEY).distinct().withColumn("replay", F.lit(replay))
    new = claims.withColumn("replayed_at", F.lit(None).cast("timestamp"))
    catalog.merge(location(quarantine), new, _IS_SAME, "WHEN NOT MATCHED THEN INSERT *")


def release(quarantine: str, rows: DataFrame, replay: str) -> None:
    """Let rows of a claim wait again, unless they are marked.

    Args:
        quarantine: Location of the quarantine.
        rows: The rows, with the columns of `KEY`.
        replay: Id of the claim.
    """
    is_open = f"old.replay = {delta.literal(replay)} AND old.replayed_at IS NULL"
    released = rows.select(*KEY).distinct()
    catalog.merge(location(quarantine), released, f"{_IS_SAME} AND {is_open}", "WHEN MATCHED THEN DELETE")


def mark(spark: SparkSession, quarantine: str, replay: str) -> int:
    """Mark the rows of a claim as written; return the number of rows that were not marked yet."""
    unmarked = f"replay = {delta.literal(replay)} AND replayed_at IS NULL"
    return catalog.update(spark, location(quarantine), "replayed_at = current_timestamp()", unmarked)
