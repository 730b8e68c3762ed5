"""Places of Nest's cameras: lines of an old system, `device_id;zip code;city` in Latin-1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import topiclake as tl
from topiclake.errors import StorageError


@tl.deserializer
def read_locations(values: Sequence[bytes]) -> Iterable[dict[str, str]]:
    """Read lines; a line without exactly three parts goes into the quarantine, with the error as detail."""
    for value in values:
        parts = value.decode("latin-1").split(";")
        if len(parts) != 3:
            raise ValueError(f"a line has {len(parts)} parts, no device_id;zip_code;city")
        yield dict(zip(("device_id", "zip_code", "city"), parts, strict=True))


def device_locations(spark: SparkSession, settings: tl.Settings) -> DataFrame:
    """Return the place of each device, by its newest line; a stream that joins this table sees new lines.

    Args:
        spark: The session.
        settings: The pipeline `nest_locations`.

    Returns:
        `device_id STRING, zip_code STRING, city STRING`, one row a device; also as the pipeline's view.

    Raises:
        StorageError: No location has come yet.
    """
    try:
        tl.create_view(spark, settings)
    except StorageError as error:
        if error.fields.get("reason") != "missing":
            raise
        table = error.fields["table"]
        raise StorageError(
            f"topic {settings.pipeline.topic} has delivered no location yet: there is no table {table}",
            "python -m workbench run notebooks/nest_publish.py",
            topic=settings.pipeline.topic,
            table=table,
        ) from None
    lines = spark.table(tl.table_identifier(settings))
    newest = F.max_by(F.struct("device_id", "zip_code", "city"), "_kafka.offset").alias("newest")
    locations = lines.groupBy(F.col("device_id").alias("of")).agg(newest).select("newest.*")
    locations.createOrReplaceTempView(settings.pipeline.view)
    return locations
