"""New York's yellow taxis: trips from the city's CSV files, and more generated ones for load tests."""

from __future__ import annotations

import re
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from topiclake.errors import ConfigError
from topiclake_examples.sample_rows import hash_random

_TIME = {"type": "long", "logicalType": "local-timestamp-micros"}
#: The columns of the S3 article, with the city's names, in its order. Nullable columns are empty if no meter
#: recorded the trip. Times are New York's own, without a zone.
_FIELDS: list[dict[str, Any]] = [
    {"name": "VendorID", "type": ["null", "int"]},
    {"name": "tpep_pickup_datetime", "type": _TIME},
    {"name": "tpep_dropoff_datetime", "type": _TIME},
    {"name": "passenger_count", "type": ["null", "int"]},
    {"name": "trip_distance", "type": "double", "doc": "miles"},
    {"name": "RatecodeID", "type": ["null", "int"]},
    {"name": "store_and_fwd_flag", "type": ["null", "string"]},
    {"name": "PULocationID", "type": "int"},
    {"name": "DOLocationID", "type": "int"},
    {"name": "payment_type", "type": ["null", "int"]},
    {"name": "fare_amount", "type": "double", "doc": "dollars, as all amounts"},
    {"name": "extra", "type": "double"},
    {"name": "mta_tax", "type": "double"},
    {"name": "tip_amount", "type": "double"},
    {"name": "tolls_amount", "type": "double"},
    {"name": "improvement_surcharge", "type": "double"},
    {"name": "total_amount", "type": "double"},
]
#: The city added it in 2019, and left it empty at first.
_SURCHARGE = {"name": "congestion_surcharge", "type": ["null", "double"], "default": None}

#: The article's schema has 17 columns, the next version 18.
TRIP_SCHEMAS: dict[int, dict[str, Any]] = {
    columns: {"type": "record", "name": "TaxiTrip", "namespace": "io.topiclake.taxi", "fields": fields}
    for columns, fields in ((17, _FIELDS), (18, [*_FIELDS, _SURCHARGE]))
}
_COLUMNS = [field["name"] for field in TRIP_SCHEMAS[18]["fields"]]
_REQUIRED = [field["name"] for field in _FIELDS if not isinstance(field["type"], list)]
_TYPES = {"int": "INT", "double": "DOUBLE", "string": "STRING"}

#: The project's sample file.
SAMPLE = "data/yellow_tripdata_2019-01_sample.csv"
_BAD = "_bad_line"
_SECONDS_A_WEEK = 7 * 24 * 3600


def read_trips(spark: SparkSession, source: str, remedy: str = f"use {SAMPLE}") -> DataFrame:
    """Read trips from CSV files, and check each line.

    Args:
        spark: The session.
        source: A file or folder as Spark reads it, such as `file:/…` or `s3a://…`; its first line names the
            article's 17 columns, or 18.
        remedy: The remedy if there is no such file.

    Returns:
        The 18 columns; `congestion_surcharge` is null if the file does not have it.

    Raises:
        ConfigError: There is no such file, its header differs, or a line is not a trip; names file and line.
    """
    names = _header(spark, source, remedy)
    lines = (
        spark.read.schema(", ".join([*map(_ddl, names), f"{_BAD} STRING"]))
        .options(header="true", enforceSchema="false", mode="PERMISSIVE")
        .options(columnNameOfCorruptRecord=_BAD, timestampNTZFormat="yyyy-MM-dd HH:mm:ss")
        .csv(source)
    )
    _require_trips(lines, source)
    trips = lines.drop(_BAD)
    if len(names) < len(_COLUMNS):
        return trips.withColumn(_COLUMNS[-1], F.lit(None).cast("double"))
    return trips


def _header(spark: SparkSession, source: str, remedy: str) -> list[str]:
    try:
        names = spark.read.option("header", "true").csv(source).columns
    except AnalysisException as error:
        if not re.search("PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA", str(error)):
            raise
        raise ConfigError(
            f"there are no trips at {source}", remedy, source=source, reason="missing"
        ) from None
    if names not in (_COLUMNS, _COLUMNS[:-1]):
        raise ConfigError(
            f"{source} is no file of yellow taxi trips: its columns are {', '.join(names)}",
            f"use a file with the columns {', '.join(_COLUMNS)} (the last one may be missing)",
            source=source,
            columns=tuple(names),
            reason="columns",
        )
    return names


def _ddl(name: str) -> str:
    kind = next(field["type"] for field in TRIP_SCHEMAS[18]["fields"] if field["name"] == name)
    if isinstance(kind, dict):
        return f"{name} TIMESTAMP_NTZ"
    return f"{name} {_TYPES[kind[-1] if isinstance(kind, list) else kind]}"


def _require_trips(lines: DataFrame, source: str) -> None:
    """Check each line before any is sent: half a file cannot be removed from a topic."""
    is_bad = F.col(_BAD).isNotNull()
    for name in _REQUIRED:
        is_bad = is_bad | F.col(name).isNull()
    # All columns: Spark does not parse columns that the query does not use.
    text = F.coalesce(_BAD, F.to_csv(F.struct(*(name for name in lines.columns if name in _COLUMNS))))
    try:
        bad_lines = lines.where(is_bad).select("_metadata.file_path", text).take(1)
    except (PySparkException, Py4JError) as error:
        if "CSV header" not in str(error):
            raise
        match = re.search(r"CSV file: (\S+)", str(error))
        raise ConfigError(
            f"{match[1] if match else source} has other columns than the first file of {source}",
            "publish files of one form at a time",
            file=match[1] if match else source,
            source=source,
            reason="header",
        ) from None
    if bad_lines:
        file, line = bad_lines[0]
        raise ConfigError(
            f"{file} holds a line that is no trip: {line[:300]}",
            "fix or remove that line",
            file=file,
            line=line[:300],
            reason="line",
        )


def generate_trips(trips: DataFrame, count: int, seed: int) -> DataFrame:
    """Generate `count` trips from real ones, within Spark: the same trips for the same seed.

    A generated trip is a real one some weeks and up to an hour later. It is up to a tenth shorter or longer,
    and its fare, tip and total change accordingly.

    Args:
        trips: Columns of `read_trips`; few enough for one task to sort, such as the sample.
        count: Number of trips.
        seed: Another seed generates other trips.

    Returns:
        The columns of `trips`.
    """
    # Ordered by all columns: rows that tie are equal, so it does not matter how Spark reads the file.
    row_number = F.row_number().over(Window.orderBy(*trips.columns)) - 1
    numbered = trips.withColumn("_place", row_number.cast("bigint"))
    trip_count = trips.count()
    generated = trips.sparkSession.range(count).select(
        hash_random("trip", seed, trip_count).alias("_place"),
        (hash_random("week", seed, 52) * _SECONDS_A_WEEK + hash_random("second", seed, 3600)).alias("_later"),
        (0.9 + hash_random("factor", seed, 201) / 1000).alias("_factor"),
    )
    return generated.join(F.broadcast(numbered), "_place").select(*map(_shifted, trips.columns))


def _shifted(name: str) -> Column:
    factor, shift = F.col("_factor"), F.col("_later")
    pickup, dropoff = F.col("tpep_pickup_datetime"), F.col("tpep_dropoff_datetime")
    fare, tip = (_scaled(amount, factor) for amount in ("fare_amount", "tip_amount"))
    total = F.col("total_amount") - F.col("fare_amount") - F.col("tip_amount") + fare + tip
    duration = F.timestamp_diff("SECOND", pickup, dropoff)
    start = F.timestamp_add("SECOND", shift, pickup)
    shifted = {
        "tpep_pickup_datetime": start,
        "tpep_dropoff_datetime": F.timestamp_add("SECOND", (duration * factor).cast("bigint"), start),
        "trip_distance": _scaled("trip_distance", factor),
        "fare_amount": fare,
        "tip_amount": tip,
        "total_amount": F.round(total, 2),
    }
    return shifted.get(name, F.col(name)).alias(name)


def _scaled(name: str, factor: Column) -> Column:
    return F.round(F.col(name) * factor, 2)
