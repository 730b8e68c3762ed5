"""Decoding by the format of values: the same records as Avro, JSON with DDL, JSON Schema and Protobuf.

Makes N records of eight fields (a hit's) in each format, keeps them as Parquet files of Kafka's columns, and
decodes each format in turn, in one session: what `read_values` puts between Kafka and a sink. Avro is decoded
once more as on Spark Connect without Avro's limits, where fastavro reads each record first. Checks the
sum of a column of all. Prints rows/s and each format's ratio to Avro with its spread.

    python -m bench.value_formats --records 2000000 --rounds 3
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
import fastavro
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.types import StructType
from rich.table import Table

from bench.rounds import PROJECT, Run, console, in_rounds, spread
from topiclake.formats.avro import decoding as avro_decoding
from topiclake.formats.avro.schema_of_columns import derived_schema
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

DDL = (
    "id BIGINT NOT NULL, ip STRING NOT NULL, zip STRING NOT NULL, url STRING NOT NULL, status INT NOT NULL, "
    "bytes BIGINT NOT NULL, took DOUBLE NOT NULL, cached BOOLEAN NOT NULL"
)
JSON_TYPES = {
    "bigint": "integer",
    "int": "integer",
    "double": "number",
    "boolean": "boolean",
    "string": "string",
}
PROTO_TYPES = {"bigint": "int64", "int": "int32", "double": "double", "boolean": "bool", "string": "string"}
LAYOUT = Layout()


def hits(spark: SparkSession, records: int) -> DataFrame:
    """Make the rows."""
    return spark.range(records).select(
        "id",
        F.concat(F.lit("192.0.2."), F.col("id") % 256).alias("ip"),
        F.lpad((F.col("id") * 7919 % 100_000).cast("string"), 5, "0").alias("zip"),
        F.concat(F.lit("/page/"), F.col("id") % 200).alias("url"),
        F.when(F.col("id") % 50 == 0, 503).otherwise(200).alias("status"),
        (F.col("id") * 31 % 100_000).alias("bytes"),
        (F.col("id") % 1000 / 7).alias("took"),
        (F.col("id") % 3 == 0).alias("cached"),
    )


def schema_of(kind: str, fields: dict[str, str]) -> str:
    """Return the schema of the rows as the registry would hold it."""
    if kind == "json_schema":
        properties = {name: {"type": JSON_TYPES[type_]} for name, type_ in fields.items()}
        return json.dumps({"type": "object", "properties": properties, "required": list(fields)})
    lines = (
        f"{PROTO_TYPES[type_]} {name} = {number};" for number, (name, type_) in enumerate(fields.items(), 1)
    )
    return 'syntax = "proto3"; message Hit { ' + " ".join(lines) + " }"


def write_records(spark: SparkSession, folder: str, records: int) -> dict[str, str]:
    """Write the records of each format, and return its schema."""
    rows, row = hits(spark, records), F.struct(*(name.split()[0] for name in DDL.split(", ")))
    fields = dict(rows.dtypes)
    avro = json.dumps(derived_schema(spark.createDataFrame([], DDL).schema, "Hit"))
    fastavro.parse_schema(json.loads(avro))
    schemas = {"avro": avro, "json": DDL} | {
        kind: schema_of(kind, fields) for kind in ("json_schema", "protobuf")
    }
    as_protobuf = _protobuf_writer(compiled(schemas["protobuf"], ()))
    framed = F.lit(header(1))
    values: dict[str, Column] = {
        "avro": F.concat(framed, to_avro(row, avro)),
        "json": F.to_json(row).cast("binary"),
        "json_schema": F.concat(framed, F.to_json(row).cast("binary")),
        # The index of the message, as Confluent writes the first one.
        "protobuf": F.concat(framed, F.lit(b"\0"), as_protobuf(row)),
    }
    for kind, value in values.items():
        kafka = rows.select(
            F.lit("hits").alias("topic"),
            F.lit(0).alias("partition"),
            F.col("id").alias("offset"),
            F.current_timestamp().alias("timestamp"),
            F.lit(None).cast("binary").alias("key"),
            value.alias("value"),
            F.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
        )
        kafka.write.parquet(f"{folder}/{kind}")
    return schemas


def _protobuf_writer(described: bytes) -> Callable[[Column], Column]:
    """Return what writes rows as Protobuf, with Google's own library for Python; slow, and not timed."""

    def written(row: Row) -> bytes:
        from google.protobuf import descriptor_pb2, message_factory
        from google.protobuf.descriptor_pool import DescriptorPool

        if not _kinds:
            pool = DescriptorPool()
            for file in descriptor_pb2.FileDescriptorSet.FromString(described).file:
                pool.Add(file)
            _kinds.append(message_factory.GetMessageClass(pool.FindMessageTypeByName("Hit")))
        return bytes(_kinds[0](**row.asDict()).SerializeToString())

    _kinds: list[Any] = []
    return F.udf(written, "binary")


def decoders(schemas: dict[str, str]) -> dict[str, Callable[[DataFrame], DataFrame]]:
    """Return what decodes each format."""
    formats: dict[str, tuple[str, Format]] = {
        "avro": ("AVRO", AVRO),
        "json_schema": ("JSON", JSON_SCHEMA),
        "protobuf": ("PROTOBUF", protobuf(())),
    }

    def registered(kind: str) -> Callable[[DataFrame], DataFrame]:
        schema_type, of = formats[kind]
        codec = of.codec({1: RegisteredSchema(1, schema_type, schemas[kind])}, lambda _: None, None)
        return lambda records: fixed_schemas.valid_rows(
            records, FixedSchemas(Codecs(codec)), LAYOUT, "PERMISSIVE"
        )

    values = DeclaredFormat("json", cast("StructType", StructType.fromDDL(schemas["json"])))
    of_registry = {kind: registered(kind) for kind in formats}

    def checked(records: DataFrame) -> DataFrame:
        with patch.object(avro_decoding, "needs_guard", return_value=True):
            return of_registry["avro"](records)

    return of_registry | {
        "avro_checked": checked,
        "json": lambda records: declared_rows.read(records, values, LAYOUT, mode="PERMISSIVE"),
    }


@click.command()
@click.option("--records", default=2_000_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--sides", "listed", default="avro,avro_checked,json,json_schema,protobuf", show_default=True)
def main(records: int, rounds: int, listed: str) -> None:
    """Run it."""
    with tempfile.TemporaryDirectory(prefix="topiclake-formats-") as folder:
        quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        spark = local_session("formats", PROJECT / "jars", quiet | {"spark.local.dir": f"{folder}/tmp"})
        decode = decoders(write_records(spark, folder, records))
        total = hits(spark, records).agg(F.sum("bytes")).first()

        def run(kind: str) -> Run:
            rows = decode[kind](spark.read.parquet(f"{folder}/{kind.removesuffix('_checked')}"))
            # All columns are wanted, as a sink wants them.
            wanted = rows.select(
                F.sum("bytes").alias("bytes"), F.sum(F.hash(*rows.columns)), F.count("*").alias("n")
            )
            began = time.monotonic()
            row = wanted.first()
            seconds = time.monotonic() - began
            assert row
            assert total
            if (row["bytes"], row["n"]) != (total[0], records):
                raise SystemExit(f"{kind}: {row} instead of {total[0]}, {records}")
            return {"rows_per_second": records / seconds}

        sides = tuple(listed.split(","))
        for kind in sides:
            run(kind)
        results = in_rounds(sides, rounds, run, lambda result: f"{result['rows_per_second']:11,.0f} rows/s")
        spark.stop()
    table = Table(
        "", "rows/s (median)", "ratio to Avro (min – max)", title=f"{records:,} records of eight fields"
    )
    for kind in sides:
        rates = [result["rows_per_second"] for result in results[kind]]
        avro = [result["rows_per_second"] for result in results["avro"]]
        table.add_row(
            kind, f"{statistics.median(rates):,.0f}", spread(a / b for a, b in zip(rates, avro, strict=True))
        )
    console.print(table, f"{os.cpu_count()} cores; all sums agree", sep="\n")


if __name__ == "__main__":
    main()
