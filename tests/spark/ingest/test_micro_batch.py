"""Micro-batches into real Delta tables, with the real registry: each record in one place, and once."""

import itertools
import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import requests
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tests.services.fault_proxy import FaultProxy
from tests.support.crash import CrashError
from tests.support.local_rows import local_rows
from tests.support.target_schemas import with_schemas
from topiclake.delta import table as delta
from topiclake.errors import DecodeError, IngestError, StorageError
from topiclake.ingest import batch_schemas, registered_batch
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.ingest.targets import Target
from topiclake.kafka.source import RECORD_SCHEMA
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.retries import Clock
from topiclake.schema_registry.wire_format import frame, identifier
from topiclake.sources import registered_rows
from topiclake.sources.layout import Layout
from topiclake.sources.topic_schemas import TopicSchemas
from topiclake.streaming import observation

#: Schemas that are not Avro, by their type; `%s` is a name that makes them new.
OTHER_TYPES = {
    "JSON": '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "title": "%s"}',
    "PROTOBUF": 'syntax = "proto3"; message %s { int32 id = 1; }',
}
OWN_NAMES = ("_kafka", "_Topiclake_Prefix")
SENT = datetime(2026, 1, 2, 3, 4, 5, 678000)
GONE = "own 404 without schema"


@pytest.fixture
def registry(embedded):
    """The embedded registry behind a proxy, which counts requests and can make it forget a schema."""
    with FaultProxy(embedded[1].schema_registry_url) as proxy:
        yield proxy


@pytest.fixture
def topic():
    return f"t{uuid4().hex}"


@pytest.fixture
def event(topic):
    """Make a schema that the registry has not seen before this test."""

    def made(*fields, name=f"E{topic}"):
        fields = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
        return json.dumps({"type": "record", "name": name, "namespace": "n", "fields": fields})

    return made


@pytest.fixture
def register(registry):
    """Register a schema as a producer does, and return its id."""

    def registered(subject, schema, kind="AVRO"):
        body = {"schema": schema, "schemaType": kind}
        answer = requests.post(f"{registry.url}/subjects/{subject}/versions", json=body, timeout=120)
        answer.raise_for_status()
        return int(answer.json()["id"])

    return registered


@pytest.fixture
def target(tmp_path, registry, topic):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text(json.dumps({"id": "11111111-aaaa"}))
    return Target(
        pipeline="gps",
        run="run-1",
        mode="PERMISSIVE",
        schemas=TopicSchemas(SchemaRegistry(registry.url), {"value": (f"{topic}-value",)}, Layout()),
        table=str(tmp_path / "gps"),
        quarantine=str(tmp_path / "gps_quarantine"),
        checkpoint=str(tmp_path / "checkpoint"),
        type_widening=True,
    )


def restarted(target):
    """The same pipeline in a new process: what the old one had learnt is gone."""
    return replace(
        with_schemas(target, registry=SchemaRegistry(target.schemas.registry.url)), start=uuid4().hex
    )


def another(target, name, **changes):
    """Another query into the same table, with a checkpoint of its own."""
    checkpoint = Path(target.checkpoint).with_name(name)
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": uuid4().hex}))
    return replace(target, checkpoint=str(checkpoint), start=uuid4().hex, **changes)


def quarantined(spark, target):
    """Offset, reason and detail of each quarantined record, by offset."""
    if not delta.is_table(spark, target.quarantine):
        return []
    rows = delta.read(spark, target.quarantine).select("offset", "reason", "detail")
    return sorted(tuple(row) for row in rows.collect())


def places(spark, target):
    """Where each record is, by offset: `table`, or the reason of its quarantine."""
    rows = delta.read(spark, target.table).select("_kafka.offset", F.lit("table"))
    if delta.is_table(spark, target.quarantine):
        rows = rows.unionAll(delta.read(spark, target.quarantine).select("offset", "reason"))
    return sorted(tuple(row) for row in rows.collect())


def table(spark, target, *columns):
    rows = delta.read(spark, target.table).select(*columns).collect()
    return sorted((tuple(row) for row in rows), key=repr)


def log(path):
    """The commits of a table, oldest first; a query of its history would cost a second."""
    return sorted(Path(path, "_delta_log").glob("*.json"))


def commits(target):
    return sum('"operation":"WRITE"' in commit.read_text() for commit in log(target.table))


def asked(registry, part):
    """How often the registry was asked for a path that holds `part`."""
    return len([each for each in registry.requests if each.method == "GET" and part in each.path])


def kafka_rows(spark, rows):
    """Records from `(key, value, headers)`; offsets count from 0."""
    whole = [("t", 0, offset, SENT, key, value, headers) for offset, (key, value, headers) in enumerate(rows)]
    return local_rows(spark, whole, RECORD_SCHEMA)


# Versions


@pytest.mark.thorough("test_decode has each reason, and another test two versions in one batch")
def test_mixed_versions_land_in_one_commit_and_other_schemas_are_quarantined(
    spark, target, event, register, kafka_records, avro_bytes, topic
):
    old, new = event(("id", "int")), event(("id", "long"), ("note", "string", "-"))
    others = [event(("id", "boolean")), *(event(("id", "int"), (name, "string", "")) for name in OWN_NAMES)]
    ids = [register(f"{topic}-value", each) for each in (old, new, *others)]
    # One schema of another type is known at the start, and one is looked up by its id.
    kinds = [
        (register(f"{moment}{kind}{topic}", schema % f"{moment}{topic}", kind), kind)
        for moment, (kind, schema) in zip(("Known", "Late"), OTHER_TYPES.items(), strict=True)
    ]
    subjects = (f"{topic}-value", f"KnownJSON{topic}")
    target = with_schemas(target, subjects={"value": subjects})
    values = [
        frame(ids[0], avro_bytes(old, {"id": 1})),
        frame(ids[1], avro_bytes(new, {"id": 2**40, "note": "n"})),
        frame(ids[0], avro_bytes(old, {"id": -3})),
        frame(ids[2], avro_bytes(others[0], {"id": True})),
        *(
            frame(number, avro_bytes(schema, {"id": 1, name: "x"}))
            for number, schema, name in zip(ids[3:], others[1:], OWN_NAMES, strict=True)
        ),
        *(frame(number, b"\0") for number, _ in kinds),
    ]
    registered_batch.write(target, kafka_records(values), 0)
    assert table(spark, target, "id", "note") == [(-3, "-"), (1, "-"), (2**40, "n")]
    assert commits(target) == 1
    commit = delta.commit_of(spark, target.table, writer="11111111-aaaa", batch_id=0)
    assert (commit["schemas"], commit["pipeline"], commit["run"]) == ({"value": ids[:2]}, "gps", "run-1")
    assert quarantined(spark, target) == [
        (3, "incompatible_schema", "field id: boolean cannot be read as long"),
        *(
            (offset, "incompatible_schema", f"a field is called {name}, which is a name of Topiclake's own")
            for offset, name in enumerate(OWN_NAMES, 4)
        ),
        *(
            (offset, "wrong_schema_type", f"schema {number} is {kind}, not AVRO")
            for offset, (number, kind) in enumerate(kinds, 4 + len(OWN_NAMES))
        ),
    ]


def test_a_batch_of_other_offsets_is_not_taken_for_the_one_that_the_table_has(
    spark, target, event, register, kafka_records, avro_bytes, topic
):
    """A checkpoint was put back or edited: Delta skips the batch, and nothing else would name its records."""
    schema = event(("id", "int"))
    number = register(f"{topic}-value", schema)
    values = [frame(number, avro_bytes(schema, {"id": id})) for id in range(3)]
    registered_batch.write(target, kafka_records(values[:2]), 0, resumed_offsets={topic: {3: (0, 2)}})
    with pytest.raises(IngestError) as raised:
        registered_batch.write(
            restarted(target), kafka_records(values), 0, resumed_offsets={topic: {3: (0, 3)}}
        )
    fields = raised.value.fields
    assert (fields["reason"], fields["offsets"]) == ("offsets_changed", {topic: {"3": [0, 3]}})
    assert table(spark, target, "id") == [(0,), (1,)]


@pytest.fixture
def clock():
    """A clock that a test sets forward, so that the registry's lists get old; minutes, as a list of one."""
    return [0.0]


def test_a_new_version_between_batches_adds_its_column_and_widens_the_others(
    spark, target, registry, event, register, kafka_records, avro_bytes, topic, clock
):
    patient = SchemaRegistry(registry.url, clock=Clock(now=lambda: clock[0] * 60))
    target = with_schemas(target, registry=patient)
    inner = [
        {"type": "record", "name": "I", "fields": [{"name": "x", "type": each}]} for each in ("int", "double")
    ]
    old = event(("id", "int"), ("gone", "string"), ("inner", inner[0]))
    new = event(("id", "long"), ("note", ["null", "string"], None), ("inner", inner[1]))
    first = register(f"{topic}-value", old)
    one = frame(first, avro_bytes(old, {"id": 1, "gone": "g", "inner": {"x": 1}}))
    registered_batch.write(target, kafka_records([one]), 0)

    second = register(f"{topic}-value", new)
    clock[0] += 2
    values = [
        frame(second, avro_bytes(new, {"id": 2**40, "note": "n", "inner": {"x": 0.5}})),
        frame(first, avro_bytes(old, {"id": 3, "gone": "h", "inner": {"x": 3}})),
    ]
    registered_batch.write(target, kafka_records(values), 1)

    assert table(spark, target, "id", "gone", "note", "inner.x") == [
        (1, "g", None, 1.0),
        (2**40, None, "n", 0.5),
        (3, "h", None, 3.0),
    ]
    assert delta.columns(spark, target.table)["id"].dataType.simpleString() == "bigint"
    assert quarantined(spark, target) == []
    assert (commits(target), asked(registry, "/schemas/ids/")) == (2, 0)


# Schemas that are known by their ids only


@pytest.fixture
def known(event, register, topic):
    """The id and the schema of the subject's one version."""
    schema = event(("id", "int"))
    return register(f"{topic}-value", schema), schema


@pytest.fixture
def late(event, register, topic):
    """The id and the schema of a version under another subject."""
    schema = event(("id", "long"), ("late", "string", "-"))
    return register(f"{topic}-late", schema), schema


@pytest.fixture
def whole(avro_bytes):
    """Frame an event of `known` or `late`."""

    def framed(version, number):
        return frame(version[0], avro_bytes(version[1], {"id": number, "late": "l"}))

    return framed


def test_many_unknown_ids_cost_five_requests(spark, target, registry, known, whole, kafka_records):
    unknown = [frame(2**30 + number, b"\0") for number in range(500)]
    registered_batch.write(target, kafka_records([*unknown, whole(known, 1)]), 0)
    assert asked(registry, "/schemas/ids/") == 5
    bad = quarantined(spark, target)
    assert [(offset, reason) for offset, reason, _ in bad] == [
        (offset, "unknown_schema_id") for offset in range(500)
    ]
    assert Counter("was not looked up" in detail for _, _, detail in bad) == {True: 495, False: 5}
    assert table(spark, target, "id") == [(1,)]


def test_a_table_without_any_column_is_refused_with_what_to_set(spark, target, kafka_records):
    target = with_schemas(target, subjects={"value": ()}, layout=Layout(kafka=()))
    with pytest.raises(IngestError) as raised:
        registered_batch.write(target, kafka_records([None]), 0)
    assert raised.value.fields == {"subjects": (), "reason": "no_schema"}
    assert "record_names" in raised.value.remedy
    assert not delta.is_table(spark, target.table)


def test_records_of_several_types_share_a_topic_by_their_names(
    spark, target, registry, event, register, kafka_records, avro_bytes, topic
):
    """Strategies record_name and topic_record_name differ in the subjects' names only."""
    one, two = event(("a", "int"), name=f"One{topic}"), event(("b", "string"), name=f"Two{topic}")
    subjects = (f"n.One{topic}", f"{topic}-n.Two{topic}")
    ids = [register(subject, schema) for subject, schema in zip(subjects, (one, two), strict=True)]
    target = with_schemas(target, subjects={"value": subjects})
    values = [frame(ids[0], avro_bytes(one, {"a": 1})), frame(ids[1], avro_bytes(two, {"b": "x"}))]
    registered_batch.write(target, kafka_records(values), 0)
    assert table(spark, target, "a", "b") == [(1, None), (None, "x")]
    assert (commits(target), asked(registry, "/schemas/ids/")) == (1, 0)


# Keys, headers, tombstones


@pytest.mark.thorough("keys are tested in test_keys, headers in tests/spark/formats")
def test_keys_are_decoded_headers_kept_and_a_bad_key_is_quarantined(
    spark, target, event, register, known, whole, avro_bytes, topic
):
    of_key = event(("device", "string"), name=f"K{topic}")
    late_key = event(("device", "string"), ("fleet", "string", "-"), name=f"K{topic}")
    key, later = register(f"{topic}-key", of_key), register(f"{topic}-other", late_key)
    layout = Layout(key="avro", headers=True, kafka=("partition", "offset", "topic", "timestamp"))
    target = with_schemas(
        target, subjects=target.schemas.subjects | {"key": (f"{topic}-key",)}, layout=layout
    )
    good = frame(key, avro_bytes(of_key, {"device": "d"}))
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    rows = [
        (good, whole(known, 0), headers),
        (None, whole(known, 1), None),
        (b"text", whole(known, 2), None),
        (good + b"\0", whole(known, 3), None),
        (frame(2**30, b"\0"), whole(known, 4), None),
        (frame(later, avro_bytes(late_key, {"device": "e", "fleet": "f"})), whole(known, 5), None),
        (b"text", None, headers),
    ]
    registered_batch.write(target, kafka_rows(spark, rows), 0)
    assert table(spark, target, "id", "_key.device", "_key.fleet", "_headers", "_kafka") == [
        (0, "d", None, headers, (0, 0, "t", SENT)),
        (1, None, None, None, (0, 1, "t", SENT)),
        (5, "e", "f", None, (0, 5, "t", SENT)),
    ]
    assert quarantined(spark, target) == [
        (2, "too_short", "key: 4 bytes, fewer than the header's 5"),
        (
            3,
            "undecodable",
            f"key: the 3 bytes are not one record of schema id {key}: "
            "1 bytes remain after the record, which has 2",
        ),
        (4, "unknown_schema_id", f"key: the registry does not know schema id {2**30}"),
        (6, "tombstone", "the value is null"),
    ]
    bad = delta.read(spark, target.quarantine).where("offset = 6").select("headers").collect()
    assert [tuple(row) for row in bad] == [(headers,)]


@pytest.mark.thorough("headers are tested in tests/spark/formats")
def test_schemas_may_be_named_in_headers_by_id_and_by_guid(
    spark, target, registry, known, late, whole, avro_bytes
):
    guid, unknown = str(uuid4()), str(uuid4())
    registry.guids = {guid: late[0]}
    header = "__value_schema_id"
    rows = [
        (None, avro_bytes(late[1], {"id": 0, "late": "g"}), [(header, identifier(guid))]),
        (None, avro_bytes(known[1], {"id": 1}), [(header, identifier(known[0]))]),
        (None, whole(known, 2), [("other", b"x")]),
        (None, b"\0", [(header, b"\1" + UUID(unknown).bytes)]),
        (None, b"\0", [(header, b"\2")]),
        (None, b"", [(header, identifier(known[0]))]),
        (None, None, [(header, identifier(known[0]))]),
    ]
    registered_batch.write(target, kafka_rows(spark, rows), 0)
    assert table(spark, target, "id", "late") == [(0, "g"), (1, None), (2, None)]
    assert quarantined(spark, target) == [
        (3, "unknown_schema_id", f"the registry does not know schema GUID {UUID(unknown).hex.upper()}"),
        (4, "bad_magic", "the header __value_schema_id is 0x02, neither id nor GUID"),
        (
            5,
            "undecodable",
            f"the 0 bytes are not one record of schema id {known[0]}: "
            "the record is cut off or claims more than there is: end of input",
        ),
        (6, "tombstone", "the value is null"),
    ]
    assert asked(registry, "/schemas/guids/") == 2


# FAILFAST


@pytest.mark.thorough("FAILFAST is tested in test_gps, with other reasons")
def test_failfast_stops_when_the_registry_does_not_know_a_schema(
    spark, target, known, late, whole, kafka_records
):
    failing = replace(target, mode="FAILFAST")
    registered_batch.write(failing, kafka_records([whole(known, 1), whole(late, 2)]), 0)
    assert places(spark, target) == [(0, "table"), (1, "table")]
    values = [whole(known, 1), frame(2**30, b"\0")]
    with pytest.raises(DecodeError) as raised:
        registered_batch.write(replace(restarted(target), mode="FAILFAST"), kafka_records(values), 1)
    place = {name: raised.value.fields[name] for name in ("partition", "offset", "reason")}
    assert place == {"partition": 3, "offset": 1, "reason": "unknown_schema_id"}
    assert raised.value.fields["detail"].startswith("the registry")
    assert quarantined(spark, target) == []
    registered_batch.write(restarted(target), kafka_records(values), 1)
    assert Counter(places(spark, target)) == Counter(
        [(0, "table"), (0, "table"), (1, "table"), (1, "unknown_schema_id")]
    )


# Exactly once


@pytest.fixture
def crashed(monkeypatch):
    """Write a batch by a process that dies before or after its commit `number`."""

    def write(target, records, batch_id, number, moment="after"):
        calls, append = itertools.count(1), delta.append_once

        def dying(*args, **kwargs):
            call = next(calls)
            if (call, moment) == (number, "before"):
                raise CrashError
            append(*args, **kwargs)
            if call == number:
                raise CrashError

        with monkeypatch.context() as patch:
            patch.setattr(delta, "append_once", dying)
            with pytest.raises(CrashError):
                registered_batch.write(target, records, batch_id)

    return write


@pytest.fixture
def mixed(spark, known, late, whole, kafka_records):
    """One record of each way: known, looked up, unknown, and four that are bad in themselves."""
    bad = [frame(2**30, b"\0"), b"{json}", None, whole(known, 5) + b"\0"]
    return kafka_records([whole(known, 0), whole(late, 1), *bad, whole(known, 6)])


#: The places of `mixed`.
EXPECTED = [
    (0, "table"),
    (1, "table"),
    (2, "unknown_schema_id"),
    (3, "bad_magic"),
    (4, "tombstone"),
    (5, "undecodable"),
    (6, "table"),
]


@pytest.fixture
def batch(known, whole, kafka_records):
    """Records, and their places."""
    return kafka_records([whole(known, 0), None]), [(0, "table"), (1, "tombstone")]


@pytest.mark.thorough("lost counts are tested in test_json")
def test_counts_that_spark_loses_stop_nothing(spark, target, batch, monkeypatch, caplog):
    """They come from a listener: of a bus that drops what it cannot hold, and that anybody may clear."""
    session = spark.newSession()
    records, expected = batch
    records = local_rows(session, records.collect(), records.schema)
    registered_batch.write(target, records, 0)
    session._jsparkSession.listenerManager().clear()
    monkeypatch.setattr(observation, "WAIT_SECONDS", 0.5)
    registered_batch.write(target, records, 1)
    assert Counter(places(spark, target)) == Counter(expected * 2)
    assert f"batch 1 is in {target.table}, but Spark did not deliver its metrics" in caplog.text
    before = versions(target)
    registered_batch.write(restarted(target), records, 1)
    assert versions(target) == before


def versions(target):
    return log(target.table), log(target.quarantine)


def test_a_batch_is_written_once_for_each_checkpoint_and_topic(spark, target, batch):
    records, expected = batch
    registered_batch.write(target, records, 0)
    before = versions(target)
    registered_batch.write(restarted(target), records, 0)
    assert versions(target) == before
    for other in (another(target, "second"), replace(restarted(target), topic="one")):
        registered_batch.write(other, records, 0)
    assert places(spark, target) == sorted(expected * 3)


@pytest.mark.thorough("single crashes between the same commits are tested next to it")
def test_a_crash_at_any_commit_loses_and_doubles_nothing(spark, target, mixed, crashed):
    """A repeated attempt tries commit 1 again, which Delta knows."""
    crashed(target, mixed, 0, 1)
    crashed(restarted(target), mixed, 0, 2)
    # The table has commit 2, so the second call of this attempt is commit 3.
    crashed(restarted(target), mixed, 0, 2)
    before = versions(target)
    registered_batch.write(restarted(target), mixed, 0)
    assert places(spark, target) == EXPECTED
    assert versions(target) == before


@pytest.mark.thorough("a further crash between the same commits")
def test_a_commit_that_the_history_no_longer_tells_is_told_by_the_table(
    spark, target, known, mixed, whole, kafka_records
):
    """Delta forgets a commit after `delta.logRetentionDuration`, the transaction's number never."""
    BatchSchemas(target).current(spark)
    rows = spark.sql("SELECT 0 AS id, struct(3 AS partition, 0L AS offset) AS _kafka")
    rows = rows.union(spark.sql("SELECT 6, struct(3, 6L)"))
    writer = {"txnAppId": "11111111-aaaa", "txnVersion": "0"}
    rows.write.format("delta").mode("append").options(**writer).save(target.table)
    registered_batch.write(restarted(target), mixed, 0)
    assert places(spark, target) == EXPECTED


@pytest.fixture
def many(event, register, topic, avro_bytes, monkeypatch):
    """Frame an event of one of six versions. The plan of a new start has the two newest ones."""
    monkeypatch.setattr(batch_schemas, "PLANNED_WRITERS", 2)
    schemas = [event(("id", "long"), (f"of_{number}", "int", 0)) for number in range(6)]
    ids = [register(f"{topic}-value", schema) for schema in schemas]

    def framed(version, number):
        return frame(ids[version], avro_bytes(schemas[version], {"id": number, f"of_{version}": number}))

    return framed


def test_records_of_older_versions_are_late_once_for_each_start(spark, target, registry, many, kafka_records):
    batches = [
        kafka_records([many(version, version) for version in versions])
        for versions in ((5, 4), (5, 0), (0, 4), (1, 2))
    ]
    expected = [1, 3, 4, 6]
    found = []
    for number, records in enumerate(batches):
        registered_batch.write(target, records, number)
        found.append(commits(target))
    assert found == expected
    registered_batch.write(restarted(target), batches[2], 4)
    assert commits(target) == 8
    ids = [5, 4, 5, 0, 0, 4, 1, 2, 0, 4]
    # The newest version's default would be in the last column.
    columns = ("id", *(f"of_{number}" for number in range(5)))
    rows = [tuple(row) for row in delta.read(spark, target.table).select(*columns).collect()]
    assert Counter(rows) == Counter((id, *(id if id == place else None for place in range(5))) for id in ids)
    assert quarantined(spark, target) == []
    assert asked(registry, "/schemas/ids/") == 0


@pytest.mark.parametrize(
    "commit",
    [1, pytest.param(2, marks=pytest.mark.thorough("both commits are there, as in a repeated batch"))],
)
def test_a_crash_between_the_commits_of_older_versions_doubles_nothing(
    spark, target, many, kafka_records, crashed, commit
):
    records = kafka_records([many(5, 0), many(0, 1), None, many(1, 2)])
    crashed(target, records, 0, commit)
    registered_batch.write(restarted(target), records, 0)
    assert places(spark, target) == [(0, "table"), (1, "table"), (2, "tombstone"), (3, "table")]
    assert commits(target) == 2


def test_more_versions_than_a_batch_lists_are_all_decoded(spark, target, many, kafka_records, monkeypatch):
    monkeypatch.setattr(registered_rows, "KEYS_OF_A_BATCH", 2)
    registered_batch.write(target, kafka_records([many(version, version) for version in range(6)]), 0)
    assert sorted(table(spark, target, "id")) == [(number,) for number in range(6)]
    assert quarantined(spark, target) == []


def test_a_schema_that_becomes_known_after_a_crash_doubles_nothing(
    spark, target, registry, event, register, mixed, avro_bytes, crashed, topic
):
    schema = event(("id", "int"), ("flips", "int", 0))
    number = register(f"{topic}-flips", schema)
    value = frame(number, avro_bytes(schema, {"id": 7, "flips": 1}))
    records = mixed.union(mixed.where("offset = 0").withColumns({"value": F.lit(value), "offset": F.lit(7)}))
    registry.fault(GONE, path=f"/schemas/ids/{number}")
    crashed(target, records, 0, 2)
    registry.heal()
    registered_batch.write(restarted(target), records, 0)
    assert places(spark, target) == [*EXPECTED, (7, "unknown_schema_id")]
    assert commits(target) == 2


def test_a_second_driver_that_knows_another_schema_puts_no_record_into_both_places(
    spark, target, registry, known, late, whole, kafka_records, monkeypatch
):
    """The first one was taken for dead behind its commit 1, and goes on when the second one is done."""
    registry.fault(GONE, path=f"/schemas/ids/{late[0]}")
    records, calls, append = (
        kafka_records([whole(known, 0), whole(late, 1)]),
        itertools.count(1),
        delta.append_once,
    )

    def overtaken(*args, **kwargs):
        if next(calls) == 2:
            registry.heal()
            monkeypatch.setattr(delta, "append_once", append)
            registered_batch.write(restarted(target), records, 0)
        append(*args, **kwargs)

    monkeypatch.setattr(delta, "append_once", overtaken)
    registered_batch.write(target, records, 0)
    assert delta.append_once is append
    assert places(spark, target) == [(0, "table"), (1, "table")]


@pytest.mark.thorough("the same after Delta has cleaned up")
def test_what_is_in_quarantine_stays_there_also_when_the_histories_were_cleaned_up(
    spark, target, registry, known, late, whole, kafka_records, crashed
):
    """Delta forgets a commit after `delta.logRetentionDuration`, the transaction's number never."""
    records = kafka_records([whole(known, 0), whole(late, 1)])
    registry.fault(GONE, path=f"/schemas/ids/{late[0]}")
    crashed(target, records, 0, 3)
    registry.heal()
    for path in (target.table, target.quarantine):
        forget_history(spark, path)
    registered_batch.write(restarted(target), records, 0)
    assert places(spark, target) == [(0, "table"), (1, "unknown_schema_id")]


def forget_history(spark, path):
    """Delete what Delta deletes of a log when it is old: all before a checkpoint."""
    for change in ("'delta.checkpointInterval' = '1'", "'a' = 'b'"):
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({change})")
    log = Path(path) / "_delta_log"
    newest = max(file.name.partition(".")[0] for file in log.glob("*.checkpoint*"))
    for commit in log.glob("*.json"):
        if commit.name < newest:
            commit.unlink()


def test_what_is_in_quarantine_stays_there_when_its_version_fits_by_then(
    spark, target, event, register, topic, known, whole, kafka_records, crashed
):
    """There was no commit 2, and by the configuration of now the record is a row."""
    narrow = replace(target, type_widening=False)
    BatchSchemas(narrow).current(spark)
    schema = event(("id", "long"))
    records = kafka_records([whole((register(f"{topic}-value", schema), schema), 2)])
    crashed(restarted(narrow), records, 0, 2)
    registered_batch.write(restarted(target), records, 0)
    assert places(spark, target) == [(0, "incompatible_schema")]


@pytest.mark.thorough("a further way for a schema to change after a crash")
@pytest.mark.parametrize(
    ("commit", "expected"),
    [
        (1, "unknown_schema_id"),
        (2, "table"),
    ],
)
def test_a_looked_up_schema_that_is_gone_after_a_crash_loses_and_doubles_nothing(
    spark, target, registry, mixed, late, crashed, commit, expected
):
    crashed(target, mixed, 0, commit)
    registry.fault(GONE, path=f"/schemas/ids/{late[0]}")
    registered_batch.write(restarted(target), mixed, 0)
    assert places(spark, target) == [EXPECTED[0], (1, expected), *EXPECTED[2:]]


def test_failfast_accepts_a_record_of_commit_2_whose_schema_is_gone_after_a_crash(
    spark, target, registry, known, late, whole, kafka_records, crashed
):
    failing, records = replace(target, mode="FAILFAST"), kafka_records([whole(known, 0), whole(late, 1)])
    crashed(failing, records, 0, 2)
    registry.fault(GONE, path=f"/schemas/ids/{late[0]}")
    registered_batch.write(restarted(failing), records, 0)
    assert places(spark, target) == [(0, "table"), (1, "table")]


def forget(registry, subject, version, schema_id):
    """Delete a version; the registry keeps a deleted schema by its id, so the proxy forgets that."""
    requests.delete(f"{registry.url}/subjects/{subject}/versions/{version}", timeout=120).raise_for_status()
    registry.fault(GONE, path=f"/schemas/ids/{schema_id}")
    assert requests.get(f"{registry.url}/subjects/{subject}/versions", timeout=120).json() == [1]


@pytest.fixture
def second(event, register, known, topic):
    """The id and the schema of the subject's second version."""
    schema = event(("id", "int"), ("late", "string", "-"))
    return register(f"{topic}-value", schema), schema


def test_a_version_that_is_gone_after_a_crash_is_told_by_the_table(
    spark, target, registry, known, second, late, whole, kafka_records, crashed, topic
):
    records = kafka_records([whole(known, 0), whole(second, 1), whole(late, 2), None])
    crashed(target, records, 0, 1)
    forget(registry, f"{topic}-value", 2, second[0])
    registered_batch.write(restarted(target), records, 0)
    assert places(spark, target) == [(0, "table"), (1, "table"), (2, "table"), (3, "tombstone")]


@pytest.mark.thorough("the same without the column")
def test_without_the_kafka_column_a_version_that_is_gone_stops_the_query(
    spark, target, registry, known, second, late, whole, kafka_records, crashed, topic
):
    target = with_schemas(target, layout=Layout(kafka=()))
    records = kafka_records([whole(known, 0), whole(second, 1), whole(late, 2), None])
    crashed(target, records, 0, 1)
    forget(registry, f"{topic}-value", 2, second[0])
    with pytest.raises(IngestError) as raised:
        registered_batch.write(restarted(target), records, 0)
    assert raised.value.fields["reason"] == "schemas_unknown"
    assert raised.value.remedy.startswith("register the schemas again under their ids")
    assert (table(spark, target, "id"), quarantined(spark, target)) == ([(0,), (1,)], [])
    registry.heal()
    registered_batch.write(restarted(target), records, 0)
    assert table(spark, target, "id") == [(0,), (1,), (2,)]
    assert [offset for offset, _, _ in quarantined(spark, target)] == [3]


@pytest.mark.thorough("a further crash between the same commits")
def test_pinned_schemas_tell_what_was_written_without_the_kafka_column(
    spark, target, known, late, whole, kafka_records, crashed, topic
):
    """The subject has fewer versions at the next attempt; what the first one knew decides."""
    target = with_schemas(target, layout=Layout(kafka=()))
    records = kafka_records([whole(known, 0), whole(late, 1), None])
    crashed(with_schemas(target, subjects={"value": (f"{topic}-value", f"{topic}-late")}), records, 0, 1)
    registered_batch.write(restarted(target), records, 0)
    assert table(spark, target, "id") == [(0,), (1,)]
    assert [offset for offset, _, _ in quarantined(spark, target)] == [2]


def test_a_batch_is_finished_as_it_was_begun_whatever_the_pipeline_is_called_and_set_to_by_then(
    spark, target, batch, crashed
):
    records, expected = batch
    crashed(target, records, 0, 1)
    changed = with_schemas(
        restarted(target), layout=Layout(key="avro"), subjects=dict.fromkeys(("value", "key"), ())
    )
    with pytest.raises(IngestError, match="key was False, and is True") as raised:
        registered_batch.write(changed, records, 0)
    assert raised.value.fields["reason"] == "configuration_changed"
    assert raised.value.remedy == "put it back until that batch is done, then change it"
    registered_batch.write(replace(restarted(target), pipeline="renamed"), records, 0)
    assert places(spark, target) == expected


# Plain Avro, which does not name its schema


@pytest.fixture
def plain(spark, target, event, register, avro_bytes, topic):
    """The pipeline of plain values of a version, with records of it and one that is none."""
    schema = event(("id", "int"))
    register(f"{topic}-value", schema)
    values = [avro_bytes(schema, {"id": number}) for number in range(3)]
    rows = [(None, value, [("h", b"1")]) for value in [*values, b"\xff" * 9]]
    return with_schemas(target, plain_versions=()), kafka_rows(spark, rows)


PLAIN = [(0, "table"), (1, "table"), (2, "table"), (3, "undecodable")]


def test_a_version_of_plain_values_that_is_taken_off_the_list_puts_no_record_into_both_places(
    spark, target, plain, event, register, avro_bytes, crashed, topic
):
    """A new version that reads the values too doubles none of them."""
    second = event(("id", "int"), ("note", "string", "-"))
    register(f"{topic}-value", second)
    target, records = plain
    row = (None, avro_bytes(second, {"id": 9, "note": "n"}), None)
    records = records.union(kafka_rows(spark, [*[(None, None, None)] * 4, row]).where("offset = 4"))
    crashed(target, records, 0, 1)
    register(f"{topic}-value", event(("id", "long"), ("note", "string", "-")))
    registered_batch.write(with_schemas(restarted(target), plain_versions=(1, 3)), records, 0)
    assert places(spark, target) == [*PLAIN, (4, "table")]
    (headers,) = delta.read(spark, target.quarantine).select("headers").collect()
    assert headers[0] == [("h", b"1")]


# What the table keeps of its reader schema


def test_members_of_a_union_keep_their_places_whichever_version_comes_first_after_a_restart(
    spark, target, event, register, kafka_records, avro_bytes, topic
):
    target = with_schemas(target, subjects={"value": ()})
    one, other = event(("x", ["string", "int"])), event(("x", ["int", "string"]))
    ids = [register(f"{topic}-{number}", schema) for number, schema in enumerate((one, other))]
    text = frame(ids[0], avro_bytes(one, {"x": "s"}))
    registered_batch.write(target, kafka_records([text]), 0)
    registered_batch.write(
        restarted(target), kafka_records([frame(ids[1], avro_bytes(other, {"x": "t"}))]), 1
    )
    assert table(spark, target, "x.member0", "x.member1") == [("s", None), ("t", None)]


def test_a_reader_that_another_version_of_topiclake_kept_is_refused(
    spark, target, known, whole, kafka_records
):
    BatchSchemas(target).current(spark)
    delta.set_properties(spark, target.table, {"topiclake.reader.value": "it's {another} \\ form"})
    with pytest.raises(IngestError) as raised:
        registered_batch.write(target, kafka_records([whole(known, 2)]), 1)
    fields = {"table": target.table, "property": "topiclake.reader.value", "reason": "kept_reader"}
    assert raised.value.fields == fields
    spark.sql(raised.value.remedy[raised.value.remedy.index("ALTER TABLE") :])
    registered_batch.write(restarted(target), kafka_records([whole(known, 2)]), 1)
    assert table(spark, target, "id") == [(2,)]


def test_a_table_that_forgets_its_writers_is_refused(spark, target, known, whole, kafka_records):
    name, records = "delta.setTransactionRetentionDuration", kafka_records([whole(known, 1)])
    delta.ensure_table(spark, target.table, StructType().add("id", "integer"), {name: "interval 7 days"})
    with pytest.raises(StorageError) as raised:
        registered_batch.write(target, records, 0)
    assert raised.value.fields == {"table": target.table, "property": name, "found": "interval 7 days"}
    spark.sql(raised.value.remedy)
    registered_batch.write(restarted(target), records, 0)
    assert table(spark, target, "id") == [(1,)]


@pytest.fixture
def narrow(spark, target, known, event, register, topic):
    """A pipeline that makes no column wider, and a version that needs a wider one than its table has."""
    target = replace(target, type_widening=False)
    BatchSchemas(target).current(spark)
    schema = event(("id", "long"), ("late", "string", "-"))
    return restarted(target), (register(f"{topic}-value", schema), schema)


def test_a_column_becomes_wider_only_where_that_is_allowed(spark, narrow, whole, kafka_records, caplog):
    """A table with type widening is closed to readers that do not know it."""
    target, wide = narrow
    assert "type_widening" not in caplog.text
    # It is named at the start, before it costs a record.
    registered_batch.require_ready(target, spark)
    change = "id is int in the table and would become bigint"
    assert f"value has schema {wide[0]} go to quarantine (incompatible_schema): {change}" in caplog.text
    registered_batch.write(target, kafka_records([whole(wide, 2)]), 0)
    remedy = "; type_widening: true allows it, where each reader of the table can read that"
    assert quarantined(spark, target) == [(0, "incompatible_schema", change + remedy)]
    assert "delta.enableTypeWidening" not in delta.properties(spark, target.table)


# A table that demands something of its rows


def constrain(spark, target):
    spark.sql(f"ALTER TABLE delta.`{target.table}` ADD CONSTRAINT small CHECK (id < 10)")


def unconstrain(spark, target):
    spark.sql(f"ALTER TABLE delta.`{target.table}` DROP CONSTRAINT small")


def test_records_that_a_constraint_refuses_are_in_quarantine(spark, target, known, whole, kafka_records):
    BatchSchemas(target).current(spark)
    constrain(spark, target)
    registered_batch.write(target, kafka_records([whole(known, 2), whole(known, 12)]), 0)
    assert table(spark, target, "id") == [(2,)]
    assert quarantined(spark, target) == [(1, "refused_by_table", "the table demands CHECK small")]


@pytest.mark.thorough("a constraint that comes and goes while the query runs, and further schemas")
@pytest.mark.slow("three micro-batches")
def test_records_that_a_constraint_refuses_are_in_quarantine_until_it_is_dropped(
    spark, target, event, register, topic, known, late, whole, kafka_records
):
    other = event(("id", "int"), ("more", "int", 0))
    looked_up = register(f"{topic}-more", other), other
    registered_batch.write(target, kafka_records([whole(known, 1)]), 0)
    constrain(spark, target)
    # While the query runs, which learns it from its next write; and for a schema that is looked up.
    values = [whole(known, 2), whole(known, 12), whole(looked_up, 3), whole(looked_up, 13), whole(late, 4)]
    registered_batch.write(target, kafka_records(values), 1)
    assert table(spark, target, "id") == [(1,), (2,), (3,)]
    refused = "refused_by_table", "the table demands CHECK small"
    wider = "id is int in the table and would become bigint, and CHECK small of the table names it"
    assert quarantined(spark, target) == [
        (1, *refused),
        (3, *refused),
        (4, "incompatible_schema", wider),
    ]
    unconstrain(spark, target)
    # Its first look at the batch is with the constraint that is gone.
    registered_batch.write(target, kafka_records(values[:2]), 2)
    assert table(spark, target, "id") == [(1,), (12,), (2,), (2,), (3,)]
    assert len(quarantined(spark, target)) == 3


def test_a_constraint_that_is_dropped_after_a_crash_doubles_nothing(
    spark, target, known, whole, kafka_records, crashed
):
    """A batch that was cut off is finished by the constraints that it was begun with."""
    BatchSchemas(target).current(spark)
    constrain(spark, target)
    records = kafka_records([whole(known, 2), whole(known, 12), None])
    crashed(target, records, 0, 1)
    unconstrain(spark, target)
    registered_batch.write(restarted(target), records, 0)
    assert places(spark, target) == [(0, "table"), (1, "table"), (2, "tombstone")]


# Others write to the table at the same time


@pytest.fixture
def interrupted(spark, tmp_path):
    """Write a batch, and do something else to the table between its look at it and its commit."""

    def write(target, records, batch_id, meanwhile):
        begun, go = tmp_path / "begun", tmp_path / "go"

        @F.udf("binary")
        def waits(value):
            import time
            from pathlib import Path

            Path(begun).touch()
            for _ in range(600):
                if Path(go).exists():
                    return value
                time.sleep(0.05)
            raise TimeoutError

        slow = records.coalesce(1).withColumn("value", waits("value"))
        failed = []

        def run():
            try:
                registered_batch.write(target, slow, batch_id)
            except Exception as error:  # noqa: BLE001 (told to the test)
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        while not begun.exists() and thread.is_alive():
            thread.join(0.05)
        meanwhile()
        go.touch()
        thread.join()
        assert failed == []

    return write


def test_two_versions_at_once_are_both_written(
    spark, target, event, register, batch, kafka_records, avro_bytes, topic, interrupted
):
    """Delta lets the faster one win, and the other is written again on what is there then."""
    wide = event(("id", "long"), ("note", "string", "-"))
    number = register(f"{topic}-other", wide)
    other = with_schemas(another(target, "other", pipeline="other"), subjects={"value": (f"{topic}-other",)})
    faster = kafka_records([frame(number, avro_bytes(wide, {"id": 2**40, "note": "n"}))], partition=9)
    records, expected = batch
    BatchSchemas(target).current(spark)
    interrupted(target, records, 0, lambda: registered_batch.write(other, faster, 0))
    assert places(spark, target) == sorted([*expected, (0, "table")])
    assert (2**40,) in table(spark, target, "id")


@pytest.mark.thorough("two writers of one table are tested next to it")
def test_pipelines_that_make_one_table_at_once_all_land(spark, target, known, late, whole, kafka_records):
    pipelines = [another(target, f"p{number}", pipeline=f"p{number}") for number in range(2)]
    records = kafka_records([whole(known, 0), whole(late, 1), None])
    expected = [(0, "table"), (1, "table"), (2, "tombstone")]
    together = threading.Barrier(len(pipelines))

    def run(pipeline):
        together.wait()
        registered_batch.write(pipeline, records, 0)

    with ThreadPoolExecutor(len(pipelines)) as pool:
        assert list(pool.map(run, pipelines)) == [None, None]
    assert Counter(places(spark, target)) == Counter(expected * len(pipelines))
