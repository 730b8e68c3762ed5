"""What Spark tests share: one session with the project's jars, and records as Kafka's source gives them."""

import io
import json
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession

from topiclake.quarantine import RECORD_SCHEMA
from topiclake.session import local_session

PROJECT = Path(__file__).parents[2]
TIMESTAMP = datetime(2026, 1, 2, 3, 4, 5, 678901)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session, with the settings that the library asks for; its files are in a temporary folder."""
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = local_session(
        "tests",
        PROJECT / "jars",
        {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(folder / "tmp"),
            "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        },
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def kafka_records(spark):
    """Make a DataFrame with Kafka's columns from values; offsets count from 0 in one partition."""

    def made(values: list[bytes | None], topic: str = "gps", partition: int = 3) -> DataFrame:
        rows = [
            (topic, partition, offset, TIMESTAMP, b"key", value, [("source", b"test")])
            for offset, value in enumerate(values)
        ]
        return spark.createDataFrame(rows, RECORD_SCHEMA)

    return made


@pytest.fixture(scope="session")
def avro_bytes():
    """Encode a value with fastavro, which shares no code with Spark's decoder."""

    def encoded(schema: str, value: object) -> bytes:
        payload = io.BytesIO()
        fastavro.schemaless_writer(payload, fastavro.parse_schema(json.loads(schema)), value)
        return payload.getvalue()

    return encoded
