"""What Spark tests share: records as Kafka's source gives them."""

import io
import json
from datetime import datetime

import fastavro
import pytest
from pyspark.sql import DataFrame

from tests.support.local_rows import local_rows
from topiclake.kafka.source import RECORD_SCHEMA

TIMESTAMP = datetime(2026, 1, 2, 3, 4, 5, 678901)


@pytest.fixture(scope="module", autouse=True)
def same_session(spark):
    """See that a file leaves the session as it was: 200 shuffle partitions slow down all that follows."""
    before = _settings(spark)
    yield
    changed = _settings(spark) ^ before
    assert not changed, "a test left settings of the session changed"
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty(), "a test left rows cached"


def _settings(spark):
    # Delta keeps what it did last among them, and what it needs for columns that were renamed.
    of_delta = ("spark.databricks.delta.last", "spark.sql.parquet.fieldId.")
    return {(key, value) for key, value in spark.conf.getAll.items() if not key.startswith(of_delta)}


@pytest.fixture(scope="session")
def kafka_records(spark):
    """Make a DataFrame with Kafka's columns from values; offsets count from 0 in one partition."""

    def made(values: list[bytes | None], topic: str = "gps", partition: int = 3) -> DataFrame:
        rows = [
            (topic, partition, offset, TIMESTAMP, b"key", value, [("source", b"test")])
            for offset, value in enumerate(values)
        ]
        return local_rows(spark, rows, RECORD_SCHEMA)

    return made


@pytest.fixture(scope="session")
def avro_bytes():
    """Encode a value with fastavro, which shares no code with Spark's decoder."""

    def encoded(schema: str, value: object) -> bytes:
        payload = io.BytesIO()
        fastavro.schemaless_writer(payload, fastavro.parse_schema(json.loads(schema)), value)
        return payload.getvalue()

    return encoded
