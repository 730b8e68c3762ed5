"""Micro-batches into real Delta tables, and their reports; each test has a subject of its own."""

import json
from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

import pytest
from pyspark.testing import assertDataFrameEqual

from tests.support.lake_settings import lake_settings
from tests.support.local_rows import local_rows
from tests.support.target_schemas import with_schemas
from topiclake.delta import table as delta
from topiclake.errors import DecodeError, StorageError
from topiclake.ingest import registered_batch, tables
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.ingest.targets import Target
from topiclake.kafka.source import RECORD_SCHEMA
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame
from topiclake.sources.layout import Layout
from topiclake.sources.topic_schemas import TopicSchemas
from topiclake.streaming import progress

V1 = json.dumps({"type": "record", "name": "E", "fields": [{"name": "id", "type": "int"}]})
V2 = json.dumps(
    {
        "type": "record",
        "name": "E",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "-"}],
    }
)
UNKNOWN = 2**30


@pytest.fixture
def registry(embedded):
    return SchemaRegistry(embedded[1].schema_registry_url)


@pytest.fixture
def subject():
    return f"gps-{uuid4().hex}-value"


@pytest.fixture
def v1(registry, subject):
    """The id of the subject's first version."""
    return registry.register(subject, V1)


@pytest.fixture
def target(tmp_path, registry, subject, v1):
    checkpoint = tmp_path / "checkpoint"
    new_checkpoint(checkpoint, "11111111-aaaa")
    return Target(
        pipeline="gps",
        run="run-1",
        mode="PERMISSIVE",
        schemas=TopicSchemas(registry, {"value": (subject,)}, Layout()),
        table=str(tmp_path / "gps"),
        quarantine=str(tmp_path / "gps_quarantine"),
        checkpoint=str(checkpoint),
    )


def new_checkpoint(folder, name):
    folder.mkdir(exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": name}))


@pytest.fixture
def whole(avro_bytes, v1):
    return lambda number: frame(v1, avro_bytes(V1, {"id": number}))


@pytest.fixture
def mixed(whole):
    """Six records: two that decode, four that do not."""
    return [whole(0), None, whole(1), b"{json}", frame(UNKNOWN, b"\0"), whole(2) + b"\0"]


@pytest.fixture
def settings(target, tmp_path, monkeypatch):
    return lake_settings(tmp_path, "gps", view="gps_view", table_path="/mnt/lake/gps")


def offsets(spark, target):
    """Where each record is: offsets in the table, offsets in quarantine."""
    table = delta.read(spark, target.table).select("_kafka.offset").collect()
    bad = []
    if delta.is_table(spark, target.quarantine):
        bad = delta.read(spark, target.quarantine).select("offset").collect()
    return sorted(row["offset"] for row in table), sorted(row["offset"] for row in bad)


# One pipeline from its table's creation to its second run: what its tables hold, and their reports


@pytest.fixture
def plain(avro_bytes):
    """A value without the header of a schema."""
    return avro_bytes(V1, {"id": 2**30})


@pytest.fixture
def first_batch(spark, target, registry, subject, v1, kafka_records, mixed, plain):
    """Write it by a subject of two versions; return the id of the second one."""
    v2 = registry.register(subject, V2)
    BatchSchemas(target).current(spark)
    registered_batch.write(replace(target, is_new=True), kafka_records([*mixed, plain]), 42)
    return v2


def test_each_record_is_in_the_table_or_in_quarantine_and_history_and_view_tell_of_it(
    spark, target, settings, v1, first_batch
):
    check_records(spark, target, plain_of=v1)
    check_batch_in_history(spark, target, [v1, first_batch])
    check_view_and_history(spark, settings)


def check_records(spark, target, plain_of):
    expected = local_rows(
        spark,
        [(0, "-", (3, 0)), (1, "-", (3, 2))],
        "id LONG, note STRING, _kafka STRUCT<partition INT, offset BIGINT>",
    )
    assertDataFrameEqual(delta.read(spark, target.table), expected, rtol=0, atol=0)
    bad = delta.read(spark, target.quarantine).orderBy("offset").collect()
    assert [(row["offset"], row["reason"], row["batch_id"]) for row in bad] == [
        (1, "tombstone", 42),
        (3, "bad_magic", 42),
        (4, "unknown_schema_id", 42),
        (5, "undecodable", 42),
        (6, "bad_magic", 42),
    ]
    assert bad[-1]["detail"].endswith(f"the value is plain Avro of schema {plain_of}: set avro_form=plain")


def check_batch_in_history(spark, target, schemas):
    known = {"writer": "11111111-aaaa", "batch_id": 42, "pipeline": "gps", "run": "run-1"}
    (of_late, of_table), (of_quarantine,) = (
        [json.loads(commit["batch"]) for commit in delta.history(spark, path).collect() if commit["batch"]]
        for path in (target.table, target.quarantine)
    )
    assert of_table.pop("attempt") != of_late.pop("attempt")
    decoded = {
        "schemas": {"value": schemas},
        "plain": [],
        "constraints": {},
        "judged": target.decoding_settings,
    }
    # A checkpoint without a query says nothing of offsets.
    assert (of_table, of_quarantine) == (known | decoded | {"offsets": {}}, known)
    # One record's schema is unknown: whether it is a row is decided, though it is none.
    assert of_late == known | decoded | {"writer": "11111111-aaaa/late"}


def check_view_and_history(spark, settings):
    tables.create_view(spark, settings)
    assert [tuple(row) for row in spark.table("gps_view").orderBy("id").collect()] == [(0, "-"), (1, "-")]
    history = tables.table_history(spark, settings).select("version", "rows").collect()
    assert [tuple(row) for row in history] == [(2, 0), (1, 2), (0, None)]


def test_a_topic_without_records_has_an_empty_table_and_no_quarantine(spark, target, settings, kafka_records):
    target = replace(target, properties={"delta.appendOnly": "true"})
    BatchSchemas(target).current(spark)
    assert delta.read(spark, target.table).schema.simpleString() == (
        "struct<id:int,_kafka:struct<partition:int,offset:bigint>>"
    )
    properties = spark.sql(f"DESCRIBE DETAIL delta.`{target.table}`").collect()[0]["properties"]
    assert properties["delta.appendOnly"] == "true"
    BatchSchemas(target).current(spark)
    assert delta.latest_version(spark, target.table) == 0
    summary = tables.summarize(spark, settings, SimpleNamespace(id="q"))
    assert (summary.rows_written, summary.quarantined, summary.preview) == (0, {}, [])

    registered_batch.write(target, kafka_records([]), 0)
    assert offsets(spark, target) == ([], [])
    assert not delta.is_table(spark, target.quarantine)


def test_without_the_kafka_column_the_table_has_the_event_only(spark, target, kafka_records, whole):
    registered_batch.write(
        with_schemas(target, layout=Layout(kafka=())), kafka_records([whole(0), whole(1)]), 0
    )
    table = delta.read(spark, target.table)
    assert table.schema.simpleString() == "struct<id:int>"
    assert sorted(table.collect()) == [(0,), (1,)]
    # Nor is there a quarantine, where no record is bad.
    assert not delta.is_table(spark, target.quarantine)


def test_a_view_of_a_table_that_does_not_exist_names_the_command_to_run(spark, settings):
    with pytest.raises(StorageError, match="workbench ingest gps") as raised:
        tables.create_view(spark, settings)
    assert (raised.value.fields["path"], raised.value.fields["reason"]) == ("/mnt/lake/gps", "missing")


# What else a batch may meet


# A whole query, from a static source: what it raises, and what it leaves


def run_query(spark, target, batches, tmp_path, write):
    source = str(tmp_path / "source")
    for records in batches:
        records.coalesce(1).write.mode("append").parquet(source)
    stream = spark.readStream.schema(RECORD_SCHEMA).option("maxFilesPerTrigger", 1).parquet(source)
    query = (
        stream.writeStream.queryName("gps")
        .option("checkpointLocation", target.checkpoint)
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
    )
    progress.await_caught_up(query, "availableNow")


@pytest.mark.thorough("FAILFAST is tested in test_gps")
def test_a_query_in_failfast_ends_with_the_record_and_writes_nothing_of_its_batch(
    spark, target, kafka_records, mixed, whole, tmp_path
):
    target = replace(target, mode="FAILFAST", checkpoint=str(tmp_path / "of_query"))
    with pytest.raises(
        DecodeError, match="topic gps, partition 3, offset 1, schema id none, reason tombstone"
    ) as raised:
        run_query(
            spark,
            target,
            [kafka_records([whole(9)]), kafka_records(mixed[:2])],
            tmp_path,
            lambda records, batch_id: registered_batch.write(target, records, batch_id),
        )
    fields = {"topic": "gps", "partition": 3, "offset": 1, "schema_id": None, "reason": "tombstone"}
    assert raised.value.fields.items() >= fields.items()
    assert offsets(spark, target) == ([0], [])
    # The creation of the table, and batch 0.
    assert delta.latest_version(spark, target.table) == 1


def test_an_error_of_ours_inside_a_micro_batch_stays_itself(spark, target, kafka_records, tmp_path):
    def refuse(_records, _batch_id):
        raise StorageError("the folder /x cannot be written", "chmod u+w /x")

    target = replace(target, checkpoint=str(tmp_path / "of_query"))
    with pytest.raises(StorageError) as raised:
        run_query(spark, target, [kafka_records([None])], tmp_path, refuse)
    assert raised.value.cause == "query gps stopped: the folder /x cannot be written"
    assert raised.value.remedy == "chmod u+w /x"
    assert str(raised.value).endswith("; try: chmod u+w /x [TL-STORAGE-001]")
