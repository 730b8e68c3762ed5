"""Views of the quarantine, for people."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.errors import ConfigError
from topiclake.ingest.quarantine import replay_claims
from topiclake.ingest.quarantine_rows import SCHEMA
from topiclake.local_frame import local_frame
from topiclake.reasons import REASONS
from topiclake.schema_registry.wire_format import HEADER_LENGTH
from topiclake.storage import mount
from topiclake.storage.failures import storage_errors


def require_reasons(reasons: Iterable[str]) -> None:
    """Check that each of `reasons` exists."""
    for reason in reasons:
        if reason not in REASONS:
            raise ConfigError(
                f"there is no reason {reason!r}",
                f"use one of {', '.join(REASONS)}",
                reason=reason,
                allowed=tuple(REASONS),
            )


def _read(spark: SparkSession, settings: Settings, reason: str | None = None) -> DataFrame:
    """Return the quarantined rows of the topic, as `replay_claims.read`; no rows without a table."""
    settings = settings.only_topic()
    require_reasons([reason] if reason else [])
    path = mount.resolve_table(settings.storage, settings.pipeline.quarantine_path)
    with storage_errors(settings.storage, path):
        if delta.is_table(spark, path):
            rows = replay_claims.read(spark, path)
        else:
            rows = local_frame(spark, [], f"{SCHEMA}, replay STRING, replayed_at TIMESTAMP")
    rows = rows.where(F.col("topic") == settings.pipeline.topic)
    return rows.where(F.col("reason") == reason) if reason else rows


def quarantine_reasons(spark: SparkSession, settings: Settings) -> DataFrame:
    """Count the quarantined records of the pipeline's topic.

    Returns:
        `reason STRING, schema_id INT, waiting BIGINT, replayed BIGINT, first TIMESTAMP, last TIMESTAMP,
        example STRING`: the times at which the first and the last record were quarantined, and the detail of
        the first. The reason with the most waiting records is first.

    Example:
        >>> tl.quarantine_reasons(spark, settings).select("reason", "waiting").collect()
        [Row(reason='undecodable', waiting=1)]
    """
    counted = _read(spark, settings).groupBy("reason", "schema_id")
    return counted.agg(
        F.count_if(F.col("replayed_at").isNull()).alias("waiting"),
        F.count_if(F.col("replayed_at").isNotNull()).alias("replayed"),
        F.min("quarantined_at").alias("first"),
        F.max("quarantined_at").alias("last"),
        F.min_by("detail", "quarantined_at").alias("example"),
    ).orderBy(F.desc("waiting"), "reason", "schema_id")


def quarantine_rows(
    spark: SparkSession,
    settings: Settings,
    reason: str | None = None,
) -> DataFrame:
    """Return the quarantined records of the pipeline's topic for people to read, waiting ones first.

    Returns:
        `partition INT, offset BIGINT, timestamp TIMESTAMP, reason STRING, schema_id INT, detail STRING,
        length INT, first_bytes STRING, key STRING, quarantined_at TIMESTAMP, replay STRING, replayed_at
        TIMESTAMP`. The value is shown by its length, and its header and 32 more bytes as hex. The key is
        text, or 0x… if its bytes are not text.

    Example:
        >>> tl.quarantine_rows(spark, settings, reason="undecodable").count()
        1
    """
    text = F.col("key").cast("string")
    is_text = F.is_valid_utf8(text) & ~text.rlike(r"\p{Cntrl}")
    return (
        _read(spark, settings, reason)
        .orderBy(F.col("replayed_at").asc_nulls_first(), "partition", "offset")
        .select(
            "partition",
            "offset",
            "timestamp",
            "reason",
            "schema_id",
            "detail",
            F.length("value").alias("length"),
            F.hex(F.substring("value", 1, HEADER_LENGTH + 32)).alias("first_bytes"),
            F.when(is_text, text).otherwise(F.concat(F.lit("0x"), F.hex("key"))).alias("key"),
            "quarantined_at",
            "replay",
            "replayed_at",
        )
    )
