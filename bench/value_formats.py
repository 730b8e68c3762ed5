"""Decoding by the format of values: the same records as Avro, JSON with DDL, JSON Schema and Protobuf.

Makes N GPS records of six fields in each format (51 bytes as Avro), and keeps them as Parquet files of
Kafka's columns. Then it decodes each format in turn, in one session, by the plan that `read_values` uses. The
sink is `noop`, which reads all columns and writes nothing. Before, a hash of each decoded row is compared
with that of the record. Prints rows/s and each format's ratio to Avro with its spread.

The side `avro_checked` is Avro on Spark Connect without Avro's limits: fastavro reads each record first. The
side `from_json` is Spark's function alone, which shows how much of JSON is its parser.

    python -m bench.value_formats --records 1000000 --rounds 3
    python -m bench.value_formats --sides avro,avro_checked
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import patch

import click
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.types import StructType
from rich.table import Table

from bench.rounds import PROJECT, Run, console, in_rounds, spread
from topiclake.formats.avro import decoding as avro_decoding
from topiclake.formats.codec import Codecs
from topiclake.formats.declared import DeclaredFormat
from topiclake.formats.protobuf.schema import compiled
from topiclake.formats.registered import AVRO, JSON_SCHEMA, Format, protobuf
from topiclake.schema_registry.answers import RegisteredSchema
from topiclake.schema_registry.wire_format import header
from topiclake.session import local_session
from topiclake.sources import declared_rows, fixed_schemas
from topiclake.sources.fixed_schemas import FixedSchemas
from topiclake.sources.layout import Layout

AVRO_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "GpsEvent",
        "fields": [
            {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "deviceId", "type": "string"},
            *({"name": name, "type": "double"} for name in ("latitude", "longitude", "altitude", "speed")),
        ],
    }
)
NUMBERS = ("latitude", "longitude", "altitude", "speed")
DDL = ", ".join(["timestamp TIMESTAMP", "deviceId STRING", *(f"{name} DOUBLE" for name in NUMBERS)])
#: As Confluent's serializers write a time: a string in JSON, and a message in Protobuf.
JSON_SCHEMA_TEXT = json.dumps(
    {
        "type": "object",
        "properties": {
            "timestamp": {"type": "string", "format": "date-time"},
            "deviceId": {"type": "string"},
            **{name: {"type": "number"} for name in NUMBERS},
        },
        "required": ["timestamp", "deviceId", *NUMBERS],
    }
)
PROTO = (
    'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message GpsEvent { '
    "google.protobuf.Timestamp timestamp = 1; string deviceId = 2; "
    + " ".join(f"double {name} = {number};" for number, name in enumerate(NUMBERS, 3))
    + " }"
)
#: By side, another format whose files it reads.
FILES = {"avro_checked": "avro", "from_json": "json"}
SCHEMAS = {"avro": AVRO_SCHEMA, "json": DDL, "json_schema": JSON_SCHEMA_TEXT, "protobuf": PROTO}
SIDES = ("avro", "avro_checked", "from_json", "json", "json_schema", "protobuf")
#: The columns of the records alone, which are compared.
LAYOUT = Layout(kafka=())


def gps_events(spark: SparkSession, records: int) -> DataFrame:
    """Make the rows."""
    number = F.col("id")
    return spark.range(records).select(
        F.timestamp_millis(F.lit(1_700_000_000_000) + number * 37).alias("timestamp"),
        F.concat(F.lit("device-"), F.lpad((number % 1000).cast("string"), 5, "0")).alias("deviceId"),
        (number * 7919 % 180_000 / 1000 - 90).alias("latitude"),
        (number * 104_729 % 360_000 / 1000 - 180).alias("longitude"),
        (number % 8000 / 7).alias("altitude"),
        (number % 1000 / 9).alias("speed"),
    )


def write_records(spark: SparkSession, folder: str, records: int) -> None:
    """Write the records of each format."""
    rows = gps_events(spark, records)
    row, framed = F.struct(*rows.columns), F.lit(header(1))
    as_json = F.to_json(row, {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"}).cast("binary")
    values: dict[str, Column] = {
        "avro": F.concat(framed, to_avro(row, AVRO_SCHEMA)),
        "json": as_json,
        "json_schema": F.concat(framed, as_json),
        # The index of the message, as Confluent writes the first one.
        "protobuf": F.concat(framed, F.lit(b"\0"), _protobuf_writer(compiled(PROTO, ()))(row)),
    }
    for kind, value in values.items():
        kafka = rows.select(
            F.lit("gps").alias("topic"),
            F.lit(0).alias("partition"),
            F.monotonically_increasing_id().alias("offset"),
            F.current_timestamp().alias("timestamp"),
            F.lit(None).cast("binary").alias("key"),
            value.alias("value"),
            F.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
        )
        kafka.write.parquet(f"{folder}/{kind}")


def _protobuf_writer(described: bytes) -> Callable[[Column], Column]:
    """Return what writes rows as Protobuf, with Google's own library for Python; slow, and not timed."""

    def written(row: Row) -> bytes:
        from google.protobuf import descriptor_pb2, message_factory
        from google.protobuf.descriptor_pool import DescriptorPool

        if not _kinds:
            pool = DescriptorPool()
            for file in descriptor_pb2.FileDescriptorSet.FromString(described).file:
                pool.Add(file)
            _kinds.append(message_factory.GetMessageClass(pool.FindMessageTypeByName("GpsEvent")))
        fields = row.asDict()
        time = fields.pop("timestamp")
        message = _kinds[0](**fields)
        message.timestamp.FromDatetime(time)
        return bytes(message.SerializeToString())

    _kinds: list[Any] = []
    return F.udf(written, "binary")


def decoders() -> dict[str, Callable[[DataFrame], DataFrame]]:
    """Return what decodes each format."""
    formats: dict[str, tuple[str, Format]] = {
        "avro": ("AVRO", AVRO),
        "json_schema": ("JSON", JSON_SCHEMA),
        "protobuf": ("PROTOBUF", protobuf(())),
    }

    def registered(kind: str) -> Callable[[DataFrame], DataFrame]:
        schema_type, of = formats[kind]
        codec = of.codec({1: RegisteredSchema(1, schema_type, SCHEMAS[kind])}, lambda _: None, None)
        return lambda records: fixed_schemas.valid_rows(
            records, FixedSchemas(Codecs(codec)), LAYOUT, "PERMISSIVE"
        )

    values = DeclaredFormat("json", cast("StructType", StructType.fromDDL(DDL)))
    of_registry = {kind: registered(kind) for kind in formats}

    def checked(records: DataFrame) -> DataFrame:
        with patch.object(avro_decoding, "needs_guard", return_value=True):
            return of_registry["avro"](records)

    return of_registry | {
        "avro_checked": checked,
        "from_json": lambda records: records.select(
            F.from_json(F.col("value").cast("string"), DDL).alias("row")
        ).select("row.*"),
        "json": lambda records: declared_rows.read(records, values, LAYOUT, mode="PERMISSIVE"),
    }


def fingerprint(rows: DataFrame) -> tuple[int, int]:
    """Return the number of rows, and a hash of their values that does not depend on their order."""
    row = rows.agg(F.count("*"), F.sum(F.xxhash64(*sorted(rows.columns)).cast("decimal(38,0)"))).first()
    assert row
    return int(row[0]), int(row[1])


@click.command()
@click.option("--records", default=1_000_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--sides", "listed", default=",".join(SIDES), show_default=True)
def main(records: int, rounds: int, listed: str) -> None:
    """Run it."""
    with tempfile.TemporaryDirectory(prefix="topiclake-formats-") as folder:
        quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        spark = local_session("formats", PROJECT / "jars", quiet | {"spark.local.dir": f"{folder}/tmp"})
        write_records(spark, folder, records)
        decode = decoders()
        wanted = fingerprint(gps_events(spark, records))

        def decoded(kind: str) -> DataFrame:
            return decode[kind](spark.read.parquet(f"{folder}/{FILES.get(kind, kind)}"))

        def run(kind: str) -> Run:
            began = time.monotonic()
            decoded(kind).write.format("noop").mode("overwrite").save()
            return {"rows_per_second": records / (time.monotonic() - began)}

        sides = tuple(listed.split(","))
        for kind in sides:
            if (found := fingerprint(decoded(kind))) != wanted:
                raise SystemExit(f"{kind}: rows and their hash are {found} instead of {wanted}")
            run(kind)
        results = in_rounds(sides, rounds, run, lambda result: f"{result['rows_per_second']:11,.0f} rows/s")
        spark.stop()
    table = Table("", "rows/s (median)", "ratio to Avro (min – max)", title=f"{records:,} GPS records")
    for kind in sides:
        rates = [result["rows_per_second"] for result in results[kind]]
        avro = [result["rows_per_second"] for result in results["avro"]]
        table.add_row(
            kind, f"{statistics.median(rates):,.0f}", spread(a / b for a, b in zip(rates, avro, strict=True))
        )
    console.print(table, f"{os.cpu_count()} cores; all values agree", sep="\n")


if __name__ == "__main__":
    main()
