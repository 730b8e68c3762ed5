"""Rows of a quarantine that replays have claimed: a table beside it, `<quarantine_path>_replays`.

The quarantine itself is only ever appended to. So a replay conflicts with other replays alone, and ends
however busy the ingest is.
"""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from topiclake.config.pipeline import REPLAYS
from topiclake.delta import table as delta
from topiclake.errors import IngestError

#: What names a row of a quarantine: after `resume: restart` offsets come again, at another time.
KEY = ("topic", "partition", "offset", "quarantined_at")
_CLAIM = StructType([StructField("replay", StringType()), StructField("replayed_at", TimestampType())])
_COLUMNS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("quarantined_at", TimestampType()),
        *_CLAIM.fields,
    ]
)


def location(quarantine: str) -> str:
    """Return where the claims of the quarantine at `quarantine` are."""
    return f"{quarantine}{REPLAYS}"


def read(spark: SparkSession, quarantine: str, version: int | None = None) -> DataFrame:
    """Read the quarantine at a location, as it is or as it was at `version`, with the claims on its rows.

    Returns:
        Columns of `quarantine_rows.SCHEMA`, `replay STRING` (the id of the claim on the row) and `replayed_at
        TIMESTAMP` (when it was in the table).

    Raises:
        IngestError: Another version of Topiclake wrote the quarantine.
    """
    rows = delta.read(spark, quarantine, version)
    if "replay" in rows.columns:
        raise IngestError(
            f"the quarantine at {quarantine} keeps claims of replays in its own rows, as another version of "
            "Topiclake does",
            "replay it with that version, then another quarantine_path",
            quarantine=quarantine,
            reason="other_version",
        )
    if not delta.is_table(spark, location(quarantine)):
        return rows.select("*", *(F.lit(None).cast(column.dataType).alias(column.name) for column in _CLAIM))
    claims = delta.read(spark, location(quarantine))
    return rows.join(claims, list(KEY), "left").select(*rows.columns, *_CLAIM.names)


def claim(spark: SparkSession, quarantine: str, rows: DataFrame, replay: str) -> None:
    """Claim rows that nobody has claimed; another replay that claims at the same time is a conflict.

    Args:
        spark: The session.
        quarantine: Location of the quarantine.
        rows: Those that are wanted, with the columns of `KEY`.
        replay: Id of the claim.
    """
    delta.ensure_table(spark, location(quarantine), _COLUMNS, {})
    wanted = rows.select(*KEY).distinct()
    same = " AND ".join(f"claim.{name} = wanted.{name}" for name in KEY)
    values = {name: f"wanted.{name}" for name in KEY} | {"replay": F.lit(replay)}
    table = DeltaTable.forPath(spark, location(quarantine)).alias("claim")
    table.merge(wanted.alias("wanted"), same).whenNotMatchedInsert(values=values).execute()


def mark(spark: SparkSession, quarantine: str, replay: str) -> int:
    """Note that the rows of a claim are in the table; return how many were not marked yet."""
    mark_row = spark.createDataFrame([(replay,)], "replay STRING")
    unmarked = "claim.replay = ended.replay AND claim.replayed_at IS NULL"
    table = DeltaTable.forPath(spark, location(quarantine)).alias("claim")
    merge = table.merge(mark_row.alias("ended"), unmarked)
    done = merge.whenMatchedUpdate(set={"replayed_at": F.current_timestamp()}).execute()
    return int(done.collect()[0]["num_affected_rows"])
