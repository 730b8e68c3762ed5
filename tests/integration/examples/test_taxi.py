"""Taxi trips from CSV to Kafka to Parquet files and Delta tables, on the embedded broker and registry."""

import json
import re
import time
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

import topiclake as tl
from tests.support.waiting import wait_until
from topiclake.config.load import load_settings
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, DecodeError, StorageError, SubjectNotFoundError, TopiclakeError
from topiclake.ingest.quarantine import replay_claims
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.storage.access import renewed_key
from topiclake_examples.taxi import publish as taxi_publish
from topiclake_examples.taxi import publish_trips
from topiclake_examples.taxi.trips import TRIP_SCHEMAS, read_trips

PROJECT = Path(__file__).parents[3]
SAMPLE = PROJECT / "data" / "yellow_tripdata_2019-01_sample.csv"
LINES = SAMPLE.read_text("utf-8").splitlines()
HEADER = LINES[0].split(",")


@pytest.fixture
def taxi(connected, tmp_path):
    """A topic of its own, and what a test does with it."""
    return Taxi(connected, tmp_path, f"taxi-{uuid4().hex[:8]}")


class Taxi:
    def __init__(self, spark, folder, topic):
        self.spark, self.folder, self.topic = spark, folder, topic

    def settings(self, pipeline="taxi", **given):
        parameters = {
            "topic": self.topic,
            "table_path": f"{self.folder}/{pipeline}",
            "checkpoint_path": f"{self.folder}/checkpoint_{pipeline}",
            "storage": self.folder.as_uri(),
        }
        return load_settings(pipeline, parameters | given, conf=PROJECT / "conf")

    def source(self, first, after):
        """Some of the sample's trips, as a file of their own."""
        file = self.folder / f"{first}.csv"
        file.write_text("\n".join([LINES[0], *LINES[1 + first : 1 + after], ""]), encoding="utf-8")
        return str(file)

    def publish(self, first, after, columns=17, avro_form="confluent", **more):
        settings = self.settings(avro_form=avro_form)
        source = self.source(first, after)
        return publish_trips(self.spark, settings, source, columns=columns, **more)

    def expected(self, first, after, columns=HEADER):
        return trips(read_trips(self.spark, Path(self.source(first, after)).as_uri()), columns)

    def archive(self, **given):
        """Archive what is there into Parquet files."""
        archive = tl.start_archive(self.spark, self.settings(**given))
        archive.await_caught_up()
        return archive

    def ingest(self, **given):
        """Ingest what is there into the Delta table; return it."""
        settings = self.settings("taxi_delta", **given)
        query = tl.start_ingest(self.spark, settings)
        tl.await_caught_up(query, settings.pipeline.trigger)
        return self.table()

    def table(self):
        return delta.read(self.spark, f"{self.folder}/taxi_delta")

    def quarantined(self):
        path = f"{self.folder}/taxi_delta_quarantine"
        if not delta.is_table(self.spark, path):
            return []
        waiting = (
            replay_claims.read(self.spark, path).where("replayed_at IS NULL").orderBy("partition", "offset")
        )
        return [(row["reason"], row["detail"]) for row in waiting.collect()]


def trips(rows, columns=HEADER):
    return sorted((tuple(row) for row in rows.select(*columns).collect()), key=repr)


@pytest.mark.thorough("new versions while a query runs are tested in test_micro_batch")
@pytest.mark.slow("two streams run while a version is registered")
def test_the_18th_column_arrives_while_both_streams_run(taxi):
    avro_form = "plain"
    taxi.publish(0, 300, avro_form=avro_form)
    given = {"avro_form": avro_form, "trigger": "1 second"}
    archive = taxi.archive(**given)
    settings = taxi.settings("taxi_delta", **given)
    query = tl.start_ingest(taxi.spark, settings)
    tl.await_caught_up(query, "1 second")
    assert archive.rows().columns == [*HEADER[:17], "_kafka"]

    taxi.publish(300, 600, columns=18, avro_form=avro_form)
    taxi.publish(600, 700, columns=17, avro_form=avro_form)
    archive.await_caught_up()
    tl.await_caught_up(query, "1 second")
    query.stop()
    taxi.publish(700, 800, columns=18, avro_form=avro_form)
    archive.keep_running(1)
    archive.await_caught_up()
    archive.stop()
    taxi.ingest(avro_form=avro_form)

    assert archive.restarts == 1
    without = [(*row, None) for part in ((0, 300), (600, 700)) for row in taxi.expected(*part, HEADER[:17])]
    whole = [row for part in ((300, 600), (700, 800)) for row in taxi.expected(*part)]
    expected = sorted([*without, *whole], key=repr)
    assert archive.rows().columns == [*HEADER, "_kafka"]
    assert trips(archive.rows()) == expected
    assert trips(taxi.table()) == expected
    assert taxi.quarantined() == []
    assert taxi.archive(avro_form=avro_form).summary().rows == 800


@pytest.mark.thorough("an archive, and a store that refuses its credential")
def test_an_archive_whose_store_refused_it_goes_on_once_the_credential_was_renewed(taxi):
    """As executors are refused at a token's end; here by a file where the folder was."""
    taxi.publish(0, 30, partitions=2)
    archive = taxi.archive(trigger="1 second")
    folder = Path(archive.path.removeprefix("file:"))
    away = folder.rename(folder.with_name("away"))
    folder.write_text("no folder")
    taxi.publish(30, 60)
    wait_until(lambda: not archive.query.isActive)
    folder.unlink()
    away.rename(folder)
    with pytest.raises(TopiclakeError):
        archive.await_caught_up()
    renewed = renewed_key(archive.settings.storage.source)
    taxi.spark.conf.set(renewed, str(time.time_ns()))
    try:
        archive.await_caught_up()
    finally:
        taxi.spark.conf.unset(renewed)
    archive.stop()
    assert archive.restarts == 0
    assert trips(archive.rows(), HEADER[:17]) == taxi.expected(0, 60, HEADER[:17])


WRONG = {"confluent": ("plain", "plain Avro of schema"), "plain": ("confluent", "Confluent's header")}


@pytest.mark.thorough("a refusal of an archive")
@pytest.mark.parametrize(
    "read_as", ["confluent", pytest.param("plain", marks=pytest.mark.thorough("the other form of Avro"))]
)
def test_the_other_form_is_named_and_nothing_of_it_is_archived(taxi, read_as):
    written_as, message = WRONG[read_as]
    taxi.publish(0, 50, avro_form=written_as, partitions=2)
    with pytest.raises(
        DecodeError, match=f"topic {taxi.topic}, partition \\d+, offset 0.*{message}"
    ) as failed:
        taxi.archive(avro_form=read_as)
    assert f"set avro_form={written_as}" in failed.value.cause
    right = taxi.archive(avro_form=written_as)
    assert trips(right.rows(), HEADER[:17]) == taxi.expected(0, 50, HEADER[:17])


@pytest.mark.thorough("an archive is made in test_databricks")
def test_an_archive_of_an_empty_topic_is_empty_and_ends_at_a_record_that_does_not_decode(taxi):
    kafka_admin.ensure_topic(taxi.settings().kafka, taxi.topic, 4)
    with pytest.raises(SubjectNotFoundError) as raised:
        taxi.archive()
    assert raised.value.fields["subject"] == f"{taxi.topic}-value"
    taxi.publish(0, 0)
    archive = taxi.archive()
    summary = archive.summary()
    assert (summary.rows, summary.columns) == (0, [*HEADER[:17], "_kafka"])
    assert archive.create_view().columns == HEADER[:17]

    taxi.publish(0, 10)
    producer = Producer(kafka_client.client_settings(taxi.settings().kafka))
    producer.produce(taxi.topic, value=b"\0\xff\xff\xff\xffabc", partition=3)
    producer.flush()
    # Its batch is not written, and nothing moves on.
    for _ in range(2):
        with pytest.raises(DecodeError) as failed:
            taxi.archive()
        found = re.search(r"topic (\S+), partition (\d+), offset \d+, schema id -1", failed.value.cause)
        assert (found[1], found[2]) == (taxi.topic, "3")
        assert "reason unknown_schema_id" in failed.value.cause
    assert archive.rows().count() == 0


@pytest.mark.thorough("a further refusal of an archive")
def test_a_new_checkpoint_does_not_write_into_an_old_folder(taxi):
    taxi.publish(0, 10)
    taxi.archive()
    with pytest.raises(StorageError, match="holds files of another checkpoint"):
        taxi.archive(checkpoint_path=f"{taxi.folder}/another")
    taxi.ingest()
    with pytest.raises(StorageError, match="is a Delta table"):
        taxi.archive(table_path=f"{taxi.folder}/taxi_delta")


def test_what_cannot_be_done_is_named_before_anything_is_written(taxi):
    for given, allowed in (({"columns": "19"}, (17, 18)), ({"trips": "many"}, ())):
        with pytest.raises(ConfigError) as raised:
            taxi.publish(0, 1, **given)
        ((name, value),) = given.items()
        assert raised.value.fields == {"parameter": name, "found": value, "allowed": allowed}
    kafka_admin.ensure_topic(taxi.settings().kafka, taxi.topic, 1)
    registry = SchemaRegistry.from_settings(taxi.settings().schema_registry)
    registry.register(f"{taxi.topic}-value", json.dumps(TRIP_SCHEMAS[17]))
    with pytest.raises(ConfigError, match="no quarantine"):
        taxi.archive(mode="PERMISSIVE")
    for start in (taxi.archive, taxi.ingest):
        with pytest.raises(SubjectNotFoundError) as raised:
            start(avro_form="plain", plain_versions="1,9")
        assert raised.value.fields["subjects"] == (f"{taxi.topic}-value",)
        assert (raised.value.fields["missing"], raised.value.fields["allowed"]) == ((9,), (1,))


def test_trips_that_vanish_while_they_are_sent_are_no_fault_of_the_topic(taxi):
    source = Path(taxi.source(0, 10))
    found = read_trips(taxi.spark, source.as_uri())
    source.unlink()
    kafka_admin.ensure_topic(taxi.settings().kafka, taxi.topic, 1)
    with pytest.raises(
        StorageError, match=r"/0\.csv cannot be used: .*; what was sent before stays"
    ) as failed:
        taxi_publish._send(taxi.settings(), found.selectExpr("store_and_fwd_flag AS value"), source.as_uri())
    assert "\n" not in str(failed.value)
