"""Micro-batches into real Delta tables, and what is told of them; only the registry is a stand-in."""

import json
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import SparkRuntimeException
from pyspark.testing import assertDataFrameEqual

from topiclake import delta, ingest, progress, tables
from topiclake.config import load_settings
from topiclake.errors import DecodeError, StorageError
from topiclake.ingest import Target
from topiclake.schema_registry import SubjectVersion
from topiclake.wire_format import frame

V1 = json.dumps({"type": "record", "name": "E", "fields": [{"name": "id", "type": "int"}]})
V2 = json.dumps(
    {
        "type": "record",
        "name": "E",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "-"}],
    }
)


@dataclass
class Registry:
    """A subject with the versions that the test gives it."""

    schemas: dict[int, str]

    def versions(self, subject):
        assert subject == "gps-value"
        return [
            SubjectVersion(subject, number, schema_id, "AVRO", schema)
            for number, (schema_id, schema) in enumerate(self.schemas.items(), start=1)
        ]


@pytest.fixture
def target(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    new_checkpoint(checkpoint, "11111111-aaaa")
    return Target(
        pipeline="gps",
        run="run-1",
        subject="gps-value",
        mode="PERMISSIVE",
        registry=Registry({1: V1}),
        table=str(tmp_path / "gps"),
        quarantine=str(tmp_path / "gps_quarantine"),
        checkpoint=str(checkpoint),
        kafka_column=True,
    )


def new_checkpoint(folder, name):
    folder.mkdir(exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": name}))


@pytest.fixture
def whole(avro_bytes):
    return lambda number: frame(1, avro_bytes(V1, {"id": number}))


@pytest.fixture
def mixed(whole):
    """Six records: two that decode, four that do not."""
    return [whole(0), None, whole(1), b"{json}", frame(9, b"\0"), whole(2) + b"\0"]


def offsets(spark, target):
    """Where each record is: offsets in the table, offsets in quarantine."""
    table = delta.read(spark, target.table).select("_kafka.offset").collect()
    bad = []
    if delta.is_table(spark, target.quarantine):
        bad = delta.read(spark, target.quarantine).select("offset").collect()
    return sorted(row["offset"] for row in table), sorted(row["offset"] for row in bad)


def versions(spark, target):
    return delta.latest_version(spark, target.table), delta.latest_version(spark, target.quarantine)


def test_each_record_is_in_the_table_or_in_quarantine(spark, target, kafka_records, mixed):
    ingest.write_batch(target, kafka_records(mixed), 0)
    expected = spark.createDataFrame(
        [(0, (3, 0)), (1, (3, 2))], "id INT, _kafka STRUCT<partition INT, offset BIGINT>"
    )
    assertDataFrameEqual(delta.read(spark, target.table), expected, rtol=0, atol=0)
    assert offsets(spark, target) == ([0, 2], [1, 3, 4, 5])
    reasons = delta.read(spark, target.quarantine).orderBy("offset").select("reason", "batch_id").collect()
    assert [tuple(row) for row in reasons] == [
        ("tombstone", 0),
        ("bad_magic", 0),
        ("unknown_schema_id", 0),
        ("undecodable", 0),
    ]


def restarted(target):
    """The same pipeline after a crash: only the first batch after a start can be a repeated one."""
    return replace(target, start=f"{target.start}, again")


def test_a_batch_that_is_repeated_changes_nothing(spark, target, kafka_records, mixed):
    ingest.write_batch(target, kafka_records(mixed), 0)
    before = versions(spark, target)
    ingest.write_batch(restarted(target), kafka_records(mixed), 0)
    assert versions(spark, target) == before
    assert offsets(spark, target) == ([0, 2], [1, 3, 4, 5])


def test_a_batch_that_ended_between_table_and_quarantine_is_completed(spark, target, kafka_records, mixed):
    """The crash: the table has batch 0, the quarantine does not; Spark repeats the batch."""
    ingest.write_batch(target, kafka_records(mixed[:1]), 0)
    records = kafka_records(mixed)
    judged = ingest.judge(records, target.registry.versions(target.subject))
    writer = f"gps/{ingest.checkpoint_id(spark, target.checkpoint)}"
    rows = ingest.table_rows(judged, target.registry.versions(target.subject)[-1], kafka_column=True)
    delta.append_once(rows, target.table, writer=writer, batch_id=1, commit={})

    ingest.write_batch(restarted(target), records, 1)

    assert offsets(spark, target) == ([0, 0, 2], [1, 3, 4, 5])


def test_a_batch_without_bad_records_writes_no_quarantine(spark, target, kafka_records, whole):
    ingest.write_batch(target, kafka_records([whole(1), whole(2)]), 0)
    assert not delta.is_table(spark, target.quarantine)


def test_a_batch_with_bad_records_only_is_in_quarantine(spark, target, kafka_records):
    ingest.write_batch(target, kafka_records([None, b"", b"x"]), 0)
    assert offsets(spark, target) == ([], [0, 1, 2])


def test_an_empty_batch_writes_no_rows(spark, target, kafka_records):
    ingest.write_batch(target, kafka_records([]), 0)
    assert offsets(spark, target) == ([], [])


def test_the_next_batch_is_appended(spark, target, kafka_records, mixed):
    ingest.write_batch(target, kafka_records(mixed), 0)
    ingest.write_batch(target, kafka_records(mixed), 1)
    assert offsets(spark, target) == ([0, 0, 2, 2], [1, 1, 3, 3, 4, 4, 5, 5])


def test_a_new_checkpoint_never_looks_like_the_old_one(spark, target, kafka_records, mixed, tmp_path):
    ingest.write_batch(target, kafka_records(mixed), 0)
    new_checkpoint(tmp_path / "second", "22222222-bbbb")
    target = replace(restarted(target), checkpoint=str(tmp_path / "second"))
    ingest.write_batch(target, kafka_records(mixed), 0)
    assert offsets(spark, target) == ([0, 0, 2, 2], [1, 1, 3, 3, 4, 4, 5, 5])


def test_the_history_says_which_batch_and_which_schemas(spark, target, kafka_records, mixed):
    target = replace(target, registry=Registry({1: V1, 5: V2}))
    ingest.write_batch(target, kafka_records(mixed), 42)
    for path in (target.table, target.quarantine):
        (commit,) = delta.history(spark, path).collect()
        note = json.loads(commit["batch"])
        assert note.pop("attempt")
        assert note == {
            "pipeline": "gps",
            "run": "run-1",
            "batch_id": 42,
            "schema_ids": [1, 5],
        }


def test_a_field_of_a_newer_version_becomes_a_column(spark, target, kafka_records, avro_bytes, whole):
    note = {"type": ["null", "string"], "name": "note", "default": None}
    newer = json.dumps(json.loads(V1) | {"fields": [{"name": "id", "type": "int"}, note]})
    ingest.write_batch(target, kafka_records([whole(1)]), 0)
    target = replace(target, registry=Registry({1: V1, 2: newer}))
    values = [whole(2), frame(2, avro_bytes(newer, {"id": 3, "note": "n"}))]
    ingest.write_batch(target, kafka_records(values), 1)
    rows = delta.read(spark, target.table).orderBy("id").select("id", "note").collect()
    assert [tuple(row) for row in rows] == [(1, None), (2, None), (3, "n")]


def test_failfast_writes_nothing_of_the_batch(spark, target, kafka_records, mixed, whole):
    target = replace(target, mode="FAILFAST")
    ingest.write_batch(target, kafka_records([whole(9)]), 0)
    # Which of the two it is depends on the task that fails first.
    with pytest.raises((SparkRuntimeException, Py4JJavaError)) as raised:
        ingest.write_batch(target, kafka_records(mixed), 1)
    assert isinstance(progress.failure("gps", str(raised.value)), DecodeError)
    assert offsets(spark, target) == ([0], [])
    assert delta.latest_version(spark, target.table) == 0


def test_without_the_kafka_column_the_table_has_the_event_only(spark, target, kafka_records, mixed):
    ingest.write_batch(replace(target, kafka_column=False), kafka_records(mixed), 0)
    expected = spark.createDataFrame([(0,), (1,)], "id INT")
    assertDataFrameEqual(delta.read(spark, target.table), expected, rtol=0, atol=0)


def test_a_topic_without_records_has_an_empty_table_and_no_quarantine(spark, target, kafka_records):
    (reader,) = target.registry.versions("gps-value")
    ingest.create_table(spark, target, reader, {"delta.appendOnly": "true"})
    assert delta.read(spark, target.table).schema.simpleString() == (
        "struct<id:int,_kafka:struct<partition:int,offset:bigint>>"
    )
    assert offsets(spark, target) == ([], [])
    ingest.create_table(spark, target, reader, {"delta.appendOnly": "true"})
    assert delta.latest_version(spark, target.table) == 0
    assert not delta.is_table(spark, target.quarantine)


def test_tables_that_were_created_take_batches(spark, target, kafka_records, mixed):
    (reader,) = target.registry.versions("gps-value")
    ingest.create_table(spark, target, reader, {})
    ingest.write_batch(target, kafka_records(mixed), 0)
    assert offsets(spark, target) == ([0, 2], [1, 3, 4, 5])


# A whole query, from a static source: what it raises, and what it leaves


def run_query(spark, target, records, tmp_path, write):
    records.write.format("delta").mode("append").save(str(tmp_path / "source"))
    stream = spark.readStream.format("delta").load(str(tmp_path / "source"))
    query = (
        stream.writeStream.queryName("gps")
        .option("checkpointLocation", target.checkpoint)
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
    )
    progress.await_caught_up(query, "availableNow")


def test_a_query_in_failfast_ends_with_the_record(spark, target, kafka_records, mixed, tmp_path):
    target = replace(target, mode="FAILFAST", checkpoint=str(tmp_path / "of_query"))
    with pytest.raises(
        DecodeError, match="topic gps, partition 3, offset 1, schema id none, reason tombstone"
    ):
        run_query(
            spark,
            target,
            kafka_records(mixed[:2]),
            tmp_path,
            lambda records, batch_id: ingest.write_batch(target, records, batch_id),
        )


def test_an_error_of_ours_inside_a_micro_batch_stays_itself(spark, target, kafka_records, tmp_path):
    def refuse(_records, _batch_id):
        raise StorageError("the folder /x cannot be written", "chmod u+w /x")

    target = replace(target, checkpoint=str(tmp_path / "of_query"))
    with pytest.raises(StorageError) as raised:
        run_query(spark, target, kafka_records([None]), tmp_path, refuse)
    assert raised.value.cause == "query gps stopped: the folder /x cannot be written"
    assert raised.value.remedy == "chmod u+w /x"


# What is told of the tables


@pytest.fixture
def settings(target, tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "base.yaml").write_text(
        f"""
        kafka: {{bootstrap_servers: "localhost:1"}}
        schema_registry: {{url: "http://localhost:1"}}
        storage: {{source: "file://{tmp_path}", mount_point: /mnt/lake}}
        pipelines:
          gps: {{topic: gps, view: gps_view, table_path: /mnt/lake/gps, checkpoint_path: /mnt/lake/c}}
        """
    )
    (tmp_path / "conf" / "local.yaml").write_text("")
    return load_settings("gps", {}, conf=tmp_path / "conf")


@pytest.fixture
def dbutils(tmp_path):
    mounts = [SimpleNamespace(mountPoint="/mnt/lake", source=f"file://{tmp_path}")]
    return SimpleNamespace(fs=SimpleNamespace(mounts=lambda: mounts))


def test_a_view_of_a_table_that_is_not_there_names_the_notebook_to_run(spark, settings, dbutils):
    with pytest.raises(StorageError, match=r"there is no Delta table at /mnt/lake/gps .*gps_ingest"):
        tables.create_view(spark, settings, dbutils)


def test_the_view_and_the_history_are_those_of_the_pipelines_table(
    spark, target, settings, dbutils, kafka_records, mixed
):
    ingest.write_batch(target, kafka_records(mixed), 0)
    tables.create_view(spark, settings, dbutils)
    assert [tuple(row) for row in spark.table("gps_view").orderBy("id").collect()] == [(0,), (1,)]
    history = tables.table_history(spark, settings, dbutils).select("version", "rows").collect()
    assert [tuple(row) for row in history] == [(0, 2)]


def test_the_summary_counts_this_run_and_the_whole_table(
    spark, target, settings, dbutils, kafka_records, mixed
):
    ingest.write_batch(target, kafka_records(mixed), 0)
    later = settings.model_copy(update={"run_id": "run-2", "loaded_at": datetime.now(timezone.utc)})
    this_run = replace(target, run="run-2")
    ingest.write_batch(this_run, kafka_records(mixed[:2]), 1)
    ingest.write_batch(this_run, kafka_records(mixed[2:4]), 2)

    summary = tables.summarize(spark, later, dbutils, SimpleNamespace(id="query-id"))

    assert summary.rows_written == 2
    assert summary.quarantined == {"bad_magic": 1, "tombstone": 1}
    assert (summary.table.rows, summary.table.version) == (4, 2)
    assert (summary.quarantine.rows, summary.quarantine.version) == (6, 2)
    assert all(set(row) == {"id"} for row in summary.preview)
    assert json.loads(summary.to_json())["query_id"] == "query-id"


def test_the_summary_of_a_run_that_wrote_nothing_is_zero(spark, target, settings, dbutils, kafka_records):
    ingest.create_table(spark, target, target.registry.versions("gps-value")[0], {})
    summary = tables.summarize(spark, settings, dbutils, SimpleNamespace(id="q"))
    assert (summary.rows_written, summary.quarantined, summary.preview) == (0, {}, [])
