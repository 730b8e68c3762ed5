"""Quarantined records into their table, once: real Delta, the real registry, and crashes at each step."""

import itertools
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event

import pytest
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from tests.support.crash import CrashError
from tests.support.local_rows import local_rows
from tests.support.waiting import wait_until
from topiclake.config.kafka import KafkaSettings
from topiclake.config.pipeline import PipelineSettings
from topiclake.config.schema_registry import SchemaRegistrySettings
from topiclake.config.settings import Settings
from topiclake.config.storage import StorageSettings
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, IngestError
from topiclake.ingest import registered_batch, targets
from topiclake.ingest.quarantine import automatic_replay, replay, replay_claims
from topiclake.ingest.quarantine.views import quarantine_reasons, quarantine_rows
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame


def record_of(*fields):
    return json.dumps({"type": "record", "name": "E", "fields": list(fields)})


ID = {"name": "id", "type": "int"}
V1 = record_of(ID)
V2 = record_of(ID, {"name": "note", "type": "string", "default": "-"})
#: The topic of the records that wait.
WAITING = "waiting"
NOTHING = replay.ReplayReport()


@pytest.fixture(scope="module")
def registry(embedded):
    return SchemaRegistry(embedded[1].schema_registry_url)


def settings_for(addresses, topic, folder):
    return Settings(
        env="test",
        name="gps",
        kafka=KafkaSettings(bootstrap_servers=addresses.kafka_bootstrap_servers),
        schema_registry=SchemaRegistrySettings(url=addresses.schema_registry_url),
        storage=StorageSettings(source=folder.as_uri(), mount_point="/mnt/lake"),
        pipeline=PipelineSettings(
            topic=topic,
            view="e",
            table_path=str(folder / "table"),
            checkpoint_path=str(folder / "checkpoint"),
        ),
    )


def start_checkpoint(folder):
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "metadata").write_text(json.dumps({"id": "11111111-aaaa"}))


@pytest.fixture(scope="module")
def written_once(embedded, registry, kafka_records, avro_bytes, tmp_path_factory):
    """Six records, of which two name a schema that is registered only after them."""
    folder, topic = tmp_path_factory.mktemp("waiting"), WAITING
    start_checkpoint(folder)
    known = registry.register(f"{topic}-value", V1)
    # Distinct from any other, so that the registry gives a new id.
    later = registry.register(f"{topic}-probe", record_of({"name": "p", "type": "int", "doc": topic})) + 1
    new = [frame(later, avro_bytes(V2, {"id": number, "note": f"n{number}"})) for number in (2, 4)]
    values = [frame(known, avro_bytes(V1, {"id": 0})), None, new[0], b"{json}", new[1], frame(known, b"")]
    target = targets.target(settings_for(embedded[1], topic, folder))
    registered_batch.write(target, kafka_records(values, topic=topic), 0)
    noted = V2.replace('"note"', '"note", "doc": ' + json.dumps(topic))
    assert registry.register(f"{topic}-value", noted) == later
    return folder, later


@pytest.fixture
def waiting(written_once, tmp_path):
    """What a test finds in its folder: a copy of what was written once."""
    folder, later = written_once
    shutil.copytree(folder, tmp_path / "lake")
    return later


@pytest.fixture
def settings(embedded, registry, tmp_path, request):
    if "waiting" in request.fixturenames:
        return settings_for(embedded[1], WAITING, tmp_path / "lake")
    topic = re.sub(r"\W+", "-", request.node.name)[:80]
    registry.register(f"{topic}-value", V1)
    start_checkpoint(tmp_path)
    return settings_for(embedded[1], topic, tmp_path)


@pytest.fixture
def topic(settings):
    return settings.pipeline.topic


@pytest.fixture
def replayed(spark, settings):
    return lambda *reasons, of=settings: replay.replay_quarantine(spark, of, reasons)


@pytest.fixture
def written(settings, kafka_records):
    """Write values of a topic, offsets from 0, as one micro-batch."""

    def write(values):
        records = kafka_records(values, topic=settings.pipeline.topic)
        registered_batch.write(targets.target(settings), records, 0)

    return write


def table(spark, settings):
    return delta.read(spark, settings.pipeline.table_path)


def offsets(spark, settings):
    return sorted(row["offset"] for row in table(spark, settings).select("_kafka.offset").collect())


def marks(spark, settings):
    """By offset, whether a row is claimed, and whether it is marked."""
    rows = replay_claims.read(spark, settings.pipeline.quarantine_path)
    return {
        row["offset"]: (row["replay"] is not None, row["replayed_at"] is not None) for row in rows.collect()
    }


ALL = [0, 2, 4]
DONE = {1: (False, False), 2: (True, True), 3: (False, False), 4: (True, True), 5: (False, False)}
CLAIMED = DONE | {2: (True, False), 4: (True, False)}
LEFT = {"bad_magic": 1, "tombstone": 1, "undecodable": 1}


@pytest.mark.slow("two replays")
def test_replays_beside_and_after_one_that_crashed_land_each_record_once(
    spark, settings, waiting, replayed, monkeypatch
):
    overtake_by_one_that_crashes(spark, settings, replayed, monkeypatch)
    report = replayed()
    assert (report.examined, report.replayed, report.waiting, len(report.claims)) == (5, 2, LEFT, 1)
    assert json.loads(report.to_json()) == asdict(report)
    require_landed_once(spark, settings)


def changed(settings, **pipeline):
    return settings.model_copy(update={"pipeline": settings.pipeline.model_copy(update=pipeline)})


@pytest.mark.slow("a replay makes three commits")
def test_what_waits_for_a_schema_is_replayed_by_the_query_itself(
    spark, settings, waiting, monkeypatch, caplog
):
    monkeypatch.setattr(automatic_replay, "EVERY_SECONDS", 1)
    # The query itself has one batch: it need not take time from the replay.
    rate = spark.readStream.format("rate").load().writeStream.format("noop")
    query = rate.trigger(processingTime="1 hour").start()
    try:
        automatic_replay.watch(query, spark, changed(settings, trigger="1 second"))
        wait_until(lambda: "2 records left the quarantine" in caplog.text)
    finally:
        query.stop()
    require_landed_once(spark, settings)


def overtake_by_one_that_crashes(spark, settings, replayed, monkeypatch):
    """When the next replay has decoded the rows, let another one claim and append them, and crash."""
    claim, append = replay_claims.claim, delta.append_once

    def append_and_crash(*args, **named):
        append(*args, **named)
        raise CrashError

    def overtaken(spark, quarantine, rows, name):
        # Delta reads a table when it is asked for rows, not before.
        wanted = rows.select(*replay_claims.KEY)
        seen = local_rows(spark, wanted.collect(), wanted.schema)
        monkeypatch.setattr(replay_claims, "claim", claim)
        with monkeypatch.context() as patched:
            patched.setattr(replay.delta, "append_once", append_and_crash)
            with pytest.raises(CrashError):
                replayed()
        assert (offsets(spark, settings), marks(spark, settings)) == (ALL, CLAIMED)
        claim(spark, quarantine, seen, name)

    monkeypatch.setattr(replay_claims, "claim", overtaken)


def require_landed_once(spark, settings):
    expected = local_rows(
        spark,
        [(0, None, (3, 0)), (2, "n2", (3, 2)), (4, "n4", (3, 4))],
        "id INT, note STRING, _kafka STRUCT<partition INT, offset BIGINT>",
    )
    found = table(spark, settings).select("id", "note", "_kafka")
    assertDataFrameEqual(found, expected, rtol=0, atol=0)
    assert marks(spark, settings) == DONE


def commits(settings):
    """The names of the commits of the table, of its quarantine and of the claims on it."""
    quarantine = settings.pipeline.quarantine_path
    paths = settings.pipeline.table_path, quarantine, replay_claims.location(quarantine)
    return [sorted(file.name for file in Path(path, "_delta_log").glob("*.json")) for path in paths]


@pytest.mark.thorough("a further moment of a crash of a replay")
def test_a_crash_after_the_claim_is_finished_by_the_next_replay(
    spark, settings, waiting, replayed, monkeypatch
):
    def crash(*_, **__):
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(replay.delta, "append_once", crash)
        with pytest.raises(CrashError):
            replayed()
    assert (offsets(spark, settings), marks(spark, settings)) == ([0], CLAIMED)
    # An earlier claim is finished, whatever is asked for now.
    report = replayed("tombstone")
    assert (report.examined, report.replayed, report.waiting) == (3, 2, {"tombstone": 1})
    assert (offsets(spark, settings), marks(spark, settings)) == (ALL, DONE)
    assert replayed().replayed == 0
    assert offsets(spark, settings) == ALL


@pytest.mark.thorough("replays at once are tested by their claims")
def test_two_replays_at_once_land_each_record_once(spark, settings, waiting, replayed, monkeypatch):
    """Both have decoded before one claims, and both have appended before one marks."""

    def together(step):
        barrier, calls = Barrier(2, timeout=20), itertools.count()

        def at_once(*args):
            # A retry comes alone.
            if next(calls) < 2:
                with suppress(BrokenBarrierError):
                    barrier.wait()
            return step(*args)

        return at_once

    monkeypatch.setattr(replay_claims, "claim", together(replay_claims.claim))
    monkeypatch.setattr(replay_claims, "mark", together(replay_claims.mark))
    with ThreadPoolExecutor(2) as threads:
        reports = [each.result() for each in [threads.submit(replayed), threads.submit(replayed)]]
    assert sum(report.replayed for report in reports) == 2
    assert (offsets(spark, settings), marks(spark, settings)) == (ALL, DONE)


@pytest.mark.thorough("a further content of a quarantine")
def test_rows_of_another_topic_wait_and_rows_of_a_new_checkpoint_land_once(
    spark, settings, waiting, replayed
):
    """A new checkpoint has quarantined the records again; another topic shares the quarantine."""
    path = settings.pipeline.quarantine_path
    rows = delta.read(spark, path)
    again = rows.withColumn("quarantined_at", F.current_timestamp())
    other = rows.where("offset = 2").withColumn("topic", F.lit("other"))
    again.unionAll(other).write.format("delta").mode("append").save(path)
    report = replayed()
    assert (report.examined, report.replayed) == (10, 4)
    assert offsets(spark, settings) == ALL
    others = replay_claims.read(spark, path).where("topic = 'other'").collect()
    assert [row["replay"] for row in others] == [None]


def test_a_reason_that_there_is_not_is_named_with_those_that_there_are(replayed):
    with pytest.raises(ConfigError, match=r"'unknown_id'.*unknown_schema_id") as raised:
        replayed("unknown_id")
    assert raised.value.fields["reason"] == "unknown_id"
    assert "unknown_schema_id" in raised.value.fields["allowed"]


def test_without_a_quarantine_table_there_is_nothing_to_do(spark, settings, replayed):
    assert replayed() == NOTHING
    assert not delta.is_table(spark, settings.pipeline.quarantine_path)
    assert quarantine_reasons(spark, settings).count() == 0
    assert quarantine_rows(spark, settings).count() == 0


@pytest.mark.thorough("a further content of a quarantine")
def test_an_incompatible_record_lands_when_its_table_was_mended(
    spark, settings, written, replayed, avro_bytes, topic, registry
):
    """The table had a column of another type, and is made anew."""
    local_rows(spark, [], "id STRING, _kafka STRUCT<partition INT, offset BIGINT>").write.format(
        "delta"
    ).save(settings.pipeline.table_path)
    known = registry.latest(f"{topic}-value").schema_id
    written([frame(known, avro_bytes(V1, {"id": 7}))])
    local_rows(spark, [], "id INT, _kafka STRUCT<partition INT, offset BIGINT>").write.format("delta").mode(
        "overwrite"
    ).option("overwriteSchema", "true").save(settings.pipeline.table_path)
    assert replayed().replayed == 1
    assert [row["id"] for row in table(spark, settings).collect()] == [7]


@pytest.mark.thorough("a further content of a quarantine")
def test_a_schema_is_found_behind_many_ids_that_are_noise(
    spark, settings, written, replayed, registry, topic
):
    """A stream asks for five unknown ids a minute; a replay must not stop there."""
    later = registry.register(f"{topic}-probe", record_of({"name": "p", "type": "int", "doc": topic})) + 1
    noise = [frame(900_000 + number, b"\0") for number in range(8) for _ in range(2)]
    written([*noise, frame(later, b"\x0e")])
    assert (
        registry.register(f"{topic}-elsewhere", V1.replace('"E"', '"E", "doc": ' + json.dumps(topic)))
        == later
    )
    assert replayed().replayed == 1
    assert [row["id"] for row in table(spark, settings).collect()] == [7]


@pytest.mark.thorough("a further end of a claim")
def test_a_claim_whose_schema_is_gone_is_named_and_nothing_is_lost(spark, settings, waiting, replayed):
    """Both claims are of replays that crashed before they appended; the first one's schema is gone."""
    path = settings.pipeline.quarantine_path
    rows = delta.read(spark, path)
    replay_claims.claim(spark, path, rows.where("offset = 5"), "a-gone")
    replay_claims.claim(spark, path, rows.where("offset IN (2, 4)"), "b-right")
    with pytest.raises(IngestError, match=r"value schema \d+.*quarantine replay") as raised:
        replayed()
    assert raised.value.fields["claim"] == "a-gone"
    # The other claim was finished all the same.
    assert (offsets(spark, settings), marks(spark, settings)) == (ALL, DONE | {5: (True, False)})
    # A claim whose row is in the table is marked even if its schema is gone.
    row = table(spark, settings).limit(1)
    delta.append_once(row, settings.pipeline.table_path, writer="replay/a-gone", batch_id=0, commit={})
    assert replayed().replayed == 1
    assert marks(spark, settings)[5] == (True, True)


@pytest.mark.thorough("a minute of another writer's commits")
@pytest.mark.slow("another writer needs time to get in between")
def test_a_replay_beside_a_quarantine_that_is_never_quiet_ends(spark, settings, waiting, replayed):
    path = settings.pipeline.quarantine_path
    noise = delta.read(spark, path).where("offset = 1").withColumn("topic", F.lit("another"))
    noise = local_rows(spark, noise.collect(), noise.schema)
    ended, appended = Event(), []

    def append():
        while not ended.is_set():
            noise.write.format("delta").mode("append").save(path)
            appended.append(1)

    with ThreadPoolExecutor(1) as thread:
        busy = thread.submit(append)
        try:
            wait_until(lambda: appended)
            assert replayed().replayed == 2
        finally:
            ended.set()
        busy.result()
    require_landed_once(spark, settings)


def test_a_quarantine_that_another_version_wrote_is_refused(spark, settings, waiting, replayed):
    path = settings.pipeline.quarantine_path
    delta.append_once(
        delta.read(spark, path).limit(0).withColumn("replay", F.lit("c")),
        path,
        writer="other",
        batch_id=0,
        commit={},
    )
    with pytest.raises(IngestError, match="another version") as raised:
        replayed()
    assert (raised.value.fields["reason"], raised.value.fields["quarantine"]) == ("other_version", path)


@pytest.mark.thorough("a further content of a quarantine")
def test_a_record_that_waited_for_the_schema_of_its_key_lands_too(
    spark, settings, kafka_records, registry, topic, avro_bytes, replayed
):
    keyed = settings.model_copy(update={"pipeline": settings.pipeline.model_copy(update={"key": "avro"})})
    registry.register(f"{topic}-key", '"string"')
    later = registry.register(f"{topic}-probe", record_of({"name": "k", "type": "long", "doc": topic})) + 1
    key = frame(later, avro_bytes('"string"', "a key"))
    value = frame(registry.latest(f"{topic}-value").schema_id, avro_bytes(V1, {"id": 1}))
    records = kafka_records([value], topic=topic).withColumn("key", F.lit(key))
    registered_batch.write(targets.target(keyed), records, 0)
    assert registry.register(f"{topic}-elsewhere", json.dumps({"type": "string", "doc": topic})) == later
    assert replayed(of=keyed).replayed == 1
    assert [row["_key"] for row in table(spark, keyed).collect()] == ["a key"]


def test_a_pipeline_of_several_topics_says_how_to_name_one(spark, settings, replayed):
    pipeline = {"topic": "a,b", "table_path": "/lake/{topic}"}
    several = settings.model_copy(update={"pipeline": settings.pipeline.model_copy(update=pipeline)})
    with pytest.raises(ConfigError, match="for_topic"):
        replayed(of=several)
