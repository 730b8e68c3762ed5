"""New York's yellow taxis, published as Avro: Confluent's form or plain, 17 columns or 18."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

import topiclake as tl
from topiclake.errors import KafkaError, StorageError
from topiclake_examples.exit_value import ExitValue
from topiclake_examples.parameters import whole_number
from topiclake_examples.taxi.trips import SAMPLE, TRIP_SCHEMAS, generate_trips, read_trips

#: Errors of Spark when it cannot read its input.
_READING = re.compile(r"FAILED_READ_FILE|org\.apache\.hadoop\.fs\.")


@dataclass(frozen=True)
class PublishedTrips(ExitValue):
    """The result of a publishing run.

    Attributes:
        topic: The topic.
        partitions: Number of the topic's partitions.
        records: Number of trips, acknowledged by the broker.
        columns: Number of columns of each trip.
        schema_id: Id of the schema that they were written with.
        avro_form: `confluent`: the schema's id is in front of each value. `plain`: it is not.
    """

    topic: str
    partitions: int
    records: int
    columns: int
    schema_id: int
    avro_form: str


def publish_trips(
    spark: SparkSession,
    settings: tl.Settings,
    source: str,
    *,
    columns: int | str = 17,
    trips: int | str = "",
    seed: int | str = 1,
    partitions: int = 10,
) -> PublishedTrips:
    """Register the schema of trips, create the topic if it does not exist, and send the trips, keyed by zone.

    Args:
        spark: The session.
        settings: Broker, registry, topic and `avro_form`.
        source: CSV files: a path from the working directory, below a mount, or a URI such as `s3a://…`.
        columns: 17, as in the article, or 18, with `congestion_surcharge`. May be text, as widgets hold it.
        trips: Number of trips to generate from the files' (`generate_trips`); empty: only those in the files.
        seed: Seed for the generated trips.
        partitions: Number of the topic's partitions, if it is created.

    Raises:
        ConfigError: A number is not valid, or a line of the files is not a trip. Nothing was sent.
        KafkaError, SchemaRegistryError, StorageError: A service cannot be used.
    """
    width, amount = whole_number("columns", columns, [17, 18]), whole_number("trips", trips or 0)
    address = _address(settings, source)
    with tl.storage_errors(settings.storage, address):
        rows = read_trips(spark, address, _elsewhere(settings, address))
        if amount:
            rows = generate_trips(rows, amount, whole_number("seed", seed))
        # Spark's Kafka sink does not report the counts of an Observation.
        amount = amount or rows.count()
    topic, form = settings.pipeline.topic, settings.pipeline.avro_form
    partition_count = tl.ensure_topic(settings.kafka, topic, partitions)
    schema = json.dumps(TRIP_SCHEMAS[width])
    registry = tl.SchemaRegistry.from_settings(settings.schema_registry)
    schema_id = registry.register(f"{topic}-value", schema)
    header = struct.pack(">xI", schema_id & 0xFFFFFFFF) if form == "confluent" else b""
    records = rows.select(_key(), _value(schema, header))
    _send(settings, records, address)
    return PublishedTrips(topic, partition_count, amount, width, schema_id, form)


def _key() -> Column:
    return F.col("PULocationID").cast("string").alias("key")


def _value(schema: str, header: bytes) -> Column:
    fields = [field["name"] for field in json.loads(schema)["fields"]]
    encoded = to_avro(F.struct(*fields), schema)
    return F.concat(F.lit(header), encoded).alias("value") if header else encoded.alias("value")


def _send(settings: tl.Settings, records: DataFrame, address: str) -> None:
    stays = "what was sent before stays in the topic"
    topic = settings.pipeline.topic
    try:
        tl.write_topic(records, settings, write_id=settings.run_id, topic=topic)
    except KafkaError as error:
        # The trips are read again while they are sent.
        cause = error.__context__
        is_kafkas = "kafka.common.errors" in str(cause) or not _READING.search(str(cause))
        if is_kafkas or cause is None:
            raise KafkaError(
                error.cause, f"run python -m workbench status; {stays}", **error.fields
            ) from None
        try:
            with tl.storage_errors(settings.storage, address):
                raise cause
        except StorageError as refused:
            raise StorageError(refused.cause, f"{refused.remedy}; {stays}", **refused.fields) from None


def _address(settings: tl.Settings, source: str) -> str:
    """Return the address that Spark reads: its working directory is not the notebook's."""
    if re.match(r"[a-zA-Z][\w+.-]*:|/mnt/|/Volumes/", source):
        return tl.resolve(settings.storage, source)
    return Path(source).resolve().as_uri()


def _elsewhere(settings: tl.Settings, address: str) -> str:
    """Return the remedy for an address without trips."""
    lake = settings.storage
    if not lake.credentials or address.startswith("file:"):
        return f"use {SAMPLE}"
    # Some stores show an empty folder to a key that they do not know.
    return f"use a path that exists; or renew the secret of {lake.source}, to which the store shows nothing"
