"""Hits into files, topics, tables and the console: each sink has what a batch would compute, once."""

import json
import re
from collections import Counter
from datetime import date, datetime, timezone
from uuid import uuid4

import pytest
from pyspark.sql import functions as F

import topiclake as tl
from tests.programs import killed_sinks
from tests.support.local_rows import local_rows
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, IngestError, KafkaError, PlatformError, StorageError
from topiclake.sinks import files
from topiclake_examples.isp import count_records, dated_hits, hits_per_zip

DAYS = ("2026-01-02", "2026-01-03")


def one_hit(zipcode, day=DAYS[0]):
    return json.dumps({"ip": "192.0.2.9", "zipcode": zipcode, "hittime": f"{day}T23:59:59.999999Z"}).encode()


def zip_of(value):
    found = re.fullmatch(r"\s*(\d{5})(-?\d{4})?\s*", value["zipcode"] or "")
    return found and found[1]


def expected(hits, *, days=False):
    """Count in plain Python by zip code, and by day where asked."""
    counts = Counter()
    for value in hits.values():
        day = datetime.fromisoformat(value["hittime"]).astimezone(timezone.utc).date()
        counts[(zip_of(value), day) if days else zip_of(value)] += 1
    return counts


def write_files(hits, **given):
    query = killed_sinks.start_files(hits.spark, hits.settings(**given), hits.folder)
    tl.await_caught_up(query, "availableNow")


def files_table(hits, name):
    columns = dated_hits(tl.read_values(hits.spark, hits.settings())).schema
    path = f"{hits.folder.as_uri()}/files"
    return tl.create_files_table(hits.spark, hits.settings(), path=path, name=name, columns=columns)


def counted(rows):
    return Counter(
        {(row["zip"], row["day"]): row["count"] for row in rows.groupBy("zip", "day").count().collect()}
    )


@pytest.fixture
def table_name(spark):
    name = f"hits_{uuid4().hex}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_files_hold_each_hit_and_an_open_table_shows_new_partitions(hits, table_name):
    hits.publish(300, damaged=3)
    hits.send(one_hit("00501"), one_hit(None), one_hit("elsewhere"))
    assert files_table(hits, table_name).count() == 0
    shown = hits.spark.sql(f"SELECT * FROM {table_name}")
    assert (shown.schema["zip"].dataType.typeName(), shown.schema["day"].dataType.typeName()) == (
        "string",
        "date",
    )
    write_files(hits)
    first = expected(hits, days=True)
    assert counted(hits.spark.table(table_name)) == first
    assert {"00501", "02108", None} <= {code for code, _ in first}
    written = list((hits.folder / "files").rglob("*.parquet"))
    assert len(written) == len(first), "one file for each partition of a batch"

    hits.publish(50, start=f"{DAYS[1]}T03:00:00Z")
    write_files(hits)
    whole = expected(hits, days=True)
    assert counted(hits.spark.sql(f"SELECT * FROM {table_name}")) == whole
    assert {day for _, day in whole} == set(map(date.fromisoformat, DAYS))
    places = hits.spark.table(table_name).select("_kafka.partition", "_kafka.offset")
    assert places.distinct().count() == places.count() == sum(whole.values())

    write_files(hits)
    assert counted(files_table(hits, table_name)) == whole


@pytest.mark.thorough("kills of drivers are tested in test_crashes and test_jdbc")
@pytest.mark.timeout(500)
@pytest.mark.slow("a cold driver is killed and repeated")
def test_a_table_and_a_topic_have_each_count_once_after_a_driver_was_killed_within_a_batch(hits):
    hits.publish(400)
    topic = f"{hits.topic}-per-zip"
    tl.ensure_topic(hits.settings().kafka, topic, 2)
    small = hits.settings(trigger="1 second", max_offsets_per_trigger="60")
    killed_sinks.kill_within_batch(small, hits.folder, "both", batch=1)
    query = killed_sinks.start_both(hits.spark, hits.settings(), hits.folder)
    tl.await_caught_up(query, "availableNow")
    wanted = Counter({each: number for each, number in expected(hits).items() if each is not None})
    table = delta.read(hits.spark, f"{hits.folder.as_uri()}/per_zip").where("zip IS NOT NULL")
    assert Counter({row["zip"]: row["count"] for row in table.collect()}) == wanted
    sent = tl.drop_duplicates(tl.read_batch(hits.spark, hits.settings(topic=topic))).where("key IS NOT NULL")
    counts = [(row["key"].decode(), int(row["value"])) for row in sent.select("key", "value").collect()]
    assert len(counts) == len(set(counts)), "each count of a zip code is sent once"
    newest = Counter()
    for each, number in counts:
        newest[each] = max(newest[each], number)
    assert newest == wanted


def test_what_cannot_be_a_folder_of_files_is_refused(hits, table_name, monkeypatch):
    hits.publish(20)
    write_files(hits)

    def refused(kind, match, **given):
        rows = dated_hits(tl.read_values(hits.spark, hits.settings()))
        paths = {"path": f"{hits.folder}/files", "checkpoint_path": f"{hits.folder}/new"}
        with pytest.raises(kind, match=match):
            tl.start_files(rows, hits.settings(), **{**paths, "partition_by": ["zip"], **given})

    refused(StorageError, "files of another checkpoint than .*new, which is new")
    hits.ingest()
    refused(StorageError, "is a Delta table; try: set another path", path=f"{hits.folder}/table")
    refused(ConfigError, "names city_code, which the rows don't have", partition_by=["city_code"])
    refused(ConfigError, r"partition_by is \[\]", partition_by=[])
    files_table(hits, table_name)
    with pytest.raises(ConfigError, match=f"DROP TABLE {table_name}"):
        tl.create_files_table(
            hits.spark,
            hits.settings(),
            path=f"{hits.folder}/other",
            name=table_name,
            columns=hits.spark.table(table_name).schema,
        )
    monkeypatch.setattr(files, "FILE_LIST_CACHE_SIZE", "spark.sql.shuffle.partitions")
    with pytest.raises(PlatformError, match="would not show new partitions"):
        files_table(hits, table_name)


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Australia/Lord_Howe"])
def test_days_are_those_of_utc_in_each_time_zone(spark, zone):
    times = ["2026-01-02T23:59:59.999999Z", "2026-01-03T00:00:00Z", "1969-12-31T23:59:59.5Z"]
    hits = local_rows(spark, [(time, "02108-1518") for time in times], "hittime STRING, zipcode STRING")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        dated = dated_hits(hits.withColumn("hittime", F.col("hittime").cast("timestamp")))
        found = [(row["zip"], str(row["day"])) for row in dated.collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert found == [("02108", day) for day in ("2026-01-02", "2026-01-03", "1969-12-31")]


def records(hits, mode, *, once=True):
    """What the topic holds: key and count, in the order in which they were sent."""
    found = tl.read_batch(hits.spark, hits.settings(topic=f"{hits.topic}-{mode}"))
    kept = (tl.drop_duplicates(found) if once else found).orderBy("timestamp", "offset").collect()
    return [(row["key"] and bytes(row["key"]).decode(), int(bytes(row["value"]))) for row in kept]


def latest(found):
    """The last count of each key; counts grow, and those without a key are in any order."""
    return {code: max(count for key, count in found if key == code) for code, _ in found}


def undo_commit(hits, name):
    """Have the newest batch done again, as after a crash before Spark's commit."""
    done = max((hits.folder / name / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    done.unlink()
    for crc in done.parent.glob(f".{done.name}*"):
        crc.unlink()


class Seen(tl.Sink):
    """A sink of a test's own, that may fail."""

    def __init__(self, sinks):
        self.sinks = sinks

    def write(self, rows, batch):
        if self.sinks.fails:
            raise self.sinks.fails
        self.sinks.seen += [(batch.number, row["zip"], row["count"]) for row in rows.collect()]


class Sinks:
    """Two sinks of one read, and a third that may fail."""

    def __init__(self, hits, mode, output_mode, **table):
        self.hits, self.output_mode, self.mode = hits, output_mode, mode
        self.settings, self.table = hits.settings(), {"mode": mode, **table}
        self.seen, self.fails = [], None
        tl.ensure_topic(self.settings.kafka, f"{hits.topic}-several", 2)

    def run(self, rows):
        paths = {"checkpoint_path": f"{self.hits.folder}/several"}
        table = tl.delta_batches(
            self.settings,
            self.hits.spark,
            path=f"{self.hits.folder}/counts",
            **self.table,
        )
        topic = tl.topic_batches(self.settings, topic=f"{self.hits.topic}-several", records=count_records)
        query = tl.start_sinks(
            rows,
            self.settings,
            {"table": table, "topic": topic, "seen": Seen(self)},
            output_mode=self.output_mode,
            **paths,
        )
        tl.await_caught_up(query, "availableNow")
        return query

    def counts(self):
        table = delta.read(self.hits.spark, f"{self.hits.folder}/counts")
        return Counter({row["zip"]: row["count"] for row in table.collect()})


@pytest.mark.thorough("the notebook of these sinks is run in test_databricks")
@pytest.mark.parametrize(
    ("table", "output_mode"),
    [({"mode": "merge", "keys": ["zip"]}, "update"), ({"mode": "replace"}, "complete")],
    ids=["update", "complete"],
)
def test_several_sinks_have_the_counts_of_a_batch_from_one_read(hits, table, output_mode):
    hits.publish(300)
    hits.send(one_hit(None))
    sinks = Sinks(hits, output_mode=output_mode, **table)

    def counts():
        return hits_per_zip(tl.read_values(hits.spark, hits.settings()))

    sinks.run(counts())
    assert sinks.counts() == Counter(dict(records(hits, "several"))) == expected(hits)
    assert {code: count for _, code, count in sinks.seen} == expected(hits)

    hits.send(one_hit(None), one_hit("00501"))
    sinks.fails = KeyError("a password")
    with pytest.raises(IngestError) as raised:
        sinks.run(counts())
    assert "sink seen of pipeline isp did not write batch 1: KeyError, see the driver's log" in str(
        raised.value
    )
    assert "password" not in str(raised.value)
    version = delta.latest_version(hits.spark, f"{hits.folder}/counts")
    assert sinks.counts() == expected(hits)
    sinks.fails, sinks.seen = None, []
    sinks.run(counts())
    assert delta.latest_version(hits.spark, f"{hits.folder}/counts") == version, "it has the batch already"
    assert {batch for batch, _, _ in sinks.seen} == {1}
    assert latest(records(hits, "several")) == sinks.counts() == expected(hits)
    sent = records(hits, "several", once=False)
    assert len(sent) == len(records(hits, "several")) + len(sinks.seen), "sent twice, and told apart"


@pytest.mark.thorough("the notebook of these sinks is run in test_databricks")
def test_rows_are_appended_once_and_a_sink_tells_what_it_is(hits):
    hits.publish(100)
    hits.send(one_hit(None))
    sinks = Sinks(hits, "append", "append")

    def rows():
        return dated_hits(tl.read_values(hits.spark, hits.settings())).selectExpr("zip", "bytes AS count")

    sinks.fails = KafkaError("no answer", "status")
    with pytest.raises(
        KafkaError, match="sink seen of pipeline isp did not write batch 0: no answer; try: stat"
    ):
        sinks.run(rows())
    sinks.fails = None
    sinks.run(rows())
    table = delta.read(hits.spark, f"{hits.folder}/counts")
    assert Counter(row["zip"] for row in table.collect()) == expected(hits)
    undo_commit(hits, "several")
    sinks.run(rows())
    sinks.run(rows())
    assert table.count() == 101
    assert Counter(row["zip"] for row in table.collect()) == expected(hits)
    assert len(records_ids(hits)) == 101

    hits.send(*[one_hit("00501")] * 7)
    query = sinks.run(rows())
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 7, "read once"
    assert table.count() == len(records_ids(hits)) == 108


def records_ids(hits):
    found = tl.read_batch(hits.spark, hits.settings(topic=f"{hits.topic}-several"))
    return {bytes(row["headers"][-1]["value"]) for row in found.collect()}


def test_sinks_that_would_mix_up_their_batches_are_refused(hits):
    hits.publish(0)
    settings = hits.settings()
    rows = tl.read_values(hits.spark, settings)

    def table(name, **given):
        return tl.delta_batches(settings, hits.spark, path=f"{hits.folder}/{name}", **given)

    def refused(match, sinks, **given):
        with pytest.raises(ConfigError, match=match):
            tl.start_sinks(rows, settings, sinks, checkpoint_path=f"{hits.folder}/several", **given)

    refused("there is no sink", {})
    refused("the sinks a and b both write to .*/one", {"a": table("one"), "b": table("one")})
    refused("sink a is a function, where a topiclake.Sink is expected", {"a": lambda rows, batch: None})
    refused("output_mode is 'all'; allowed: append, update, complete", {"a": table("a")}, output_mode="all")
    with pytest.raises(ConfigError, match="mode is 'upsert'; allowed: append, merge, replace"):
        table("one", mode="upsert")
    with pytest.raises(ConfigError, match=r"keys are \[\] in mode merge"):
        table("one", mode="merge")


def test_the_console_prints_each_batch_and_no_more_rows_than_asked(hits, capsys):
    hits.publish(200)
    hits.send(one_hit(None))
    counts = hits_per_zip(tl.read_values(hits.spark, hits.settings())).orderBy("zip")
    query = tl.start_console(counts, "zips", output_mode="complete", most_rows=2)
    tl.await_caught_up(query, "availableNow")
    printed = capsys.readouterr().out
    rows = expected(hits)
    assert f"zips, batch 0: {len(rows)} rows\n" in printed
    assert re.findall(r"^\| *(\w+)\| *(\d+)\|$", printed, re.MULTILINE) == [
        ("NULL", str(rows[None])),
        ("00501", str(rows["00501"])),
    ]
    assert "only showing top 2 rows" in printed
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 201
    with pytest.raises(ConfigError, match="most_rows is 0"):
        tl.start_console(counts, "zips", most_rows=0)
