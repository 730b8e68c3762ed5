"""What is kept of an ingest while it runs: the numbers of its tables, its lag, its end."""

from __future__ import annotations

import io
import json
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from playwright.sync_api import expect
from pyspark.sql import functions as F

import topiclake as tl
from tests.support.dashboards import dashboard
from tests.support.numbers_topic import crash_after_batch
from tests.support.waiting import wait_until
from topiclake.config.load import load_settings
from topiclake.errors import DecodeError
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.monitoring.listener import monitor_queries, stop_monitoring
from topiclake.monitoring.store import Store
from topiclake.schema_registry.wire_format import frame
from topiclake.streaming import batch_counts
from workbench.dashboard.snapshot import details, overview
from workbench.services.query_watch import reports_file

SCHEMA = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}


class Watched:
    """An ingest of a topic of its own, and what is kept of it."""

    def __init__(self, spark, folder, conf):
        self.spark, self.topic = spark, f"watched-{uuid4().hex[:8]}"
        paths = {"table_path": f"{folder}/table", "checkpoint_path": f"{folder}/checkpoint"}
        given = {"topic": self.topic, "storage": folder.as_uri()} | paths
        self.settings = load_settings("gps", given, conf=conf)
        kafka_admin.ensure_topic(self.settings.kafka, self.topic, 1)
        with SchemaRegistryClient({"url": self.settings.schema_registry.url}) as registry:
            self.id = registry.register_schema(f"{self.topic}-value", Schema(json.dumps(SCHEMA), "AVRO"))
            # Not of the topic's subject: known by its id alone, once a record names it.
            late = SCHEMA | {"name": f"L{uuid4().hex}"}
            self.late_id = registry.register_schema(f"{self.topic}-late", Schema(json.dumps(late), "AVRO"))
        self.home = folder / "home"
        self.file = reports_file(self.home)

    def send(self, *values):
        producer = Producer(kafka_client.client_settings(self.settings.kafka))
        for value in values:
            producer.produce(self.topic, value=value, partition=0)
        assert producer.flush(120) == 0

    def right(self, n, schema_id=None):
        written = io.BytesIO()
        fastavro.schemaless_writer(written, SCHEMA, {"n": n})
        return frame(schema_id or self.id, written.getvalue())

    def ingest(self, **changed):
        pipeline = self.settings.pipeline.model_copy(update={"table_properties": {}, **changed})
        settings = self.settings.model_copy(update={"pipeline": pipeline})
        return tl.start_ingest(self.spark, settings)

    def kept(self):
        store = Store(self.file)
        try:
            (query,) = overview(store)
            return query, details(store, query["id"])
        finally:
            store.close()

    def in_tables(self):
        read = self.spark.read.format("delta")
        path = self.settings.pipeline.table_path
        reasons = read.load(f"{path}_quarantine").groupBy("reason").agg(F.count("*")).collect()
        return read.load(path).count(), dict(reasons)


@pytest.fixture
def unwatched(connected, tmp_path, pytestconfig):
    return Watched(connected, tmp_path, pytestconfig.rootpath / "conf")


@pytest.fixture
def watched(unwatched):
    with watching(unwatched):
        yield unwatched


@contextmanager
def watching(made):
    monitor = monitor_queries(
        made.spark, made.file, source="tests", redact=lambda text: text.replace("n", "*")
    )
    yield
    stop_monitoring(made.spark, monitor)
    assert not batch_counts.has_subscribers()


@pytest.mark.thorough("repeated batches are tested in test_micro_batch")
@pytest.mark.parametrize(
    "schema",
    [
        {},
        pytest.param(
            {"value_format": "json", "value_schema": "n BIGINT NOT NULL"},
            marks=pytest.mark.thorough("the same counts of JSON"),
        ),
    ],
)
def test_what_a_crash_cut_off_is_counted_once_when_it_is_repeated(unwatched, schema):
    checkpoint = Path(unwatched.settings.pipeline.checkpoint_path)
    unwatched.send(*((b'{"n": 1}', b'{"n": 2}') if schema else map(unwatched.right, range(2))), b"{}", None)
    # Nobody is there to take the counts.
    tl.await_caught_up(unwatched.ingest(**schema), "availableNow")
    for _ in range(2):
        crash_after_batch(checkpoint, 0)
        with watching(unwatched):
            tl.await_caught_up(unwatched.ingest(**schema), "availableNow")
        query, _ = unwatched.kept()
        assert (query["written"], query["quarantined"]) == unwatched.in_tables()
        assert query["written"] == 2


@pytest.mark.root("Debian's chromium")
def test_the_numbers_are_those_of_table_and_quarantine_also_on_the_page(watched, page):
    watched.send(
        *map(watched.right, range(30)), b"{}", b"{ }    ", watched.right(1)[:-1], frame(2**30, b"\0")
    )
    tl.await_caught_up(watched.ingest(), "availableNow")
    watched.send(
        *map(watched.right, range(5)), b"{}", watched.right(7, watched.late_id), watched.right(8)[:-1]
    )
    tl.await_caught_up(watched.ingest(), "availableNow")
    wait_until(lambda: watched.kept()[0]["ended"] and len(watched.kept()[1]["runs"]) == 2)
    query, more = watched.kept()
    assert (query["name"], query["source"], query["state"]) == ("gps", "tests", "ended")
    assert query["rows"] == 42
    assert (query["written"], query["quarantined"]) == watched.in_tables() == (36, query["quarantined"])
    assert sum(query["quarantined"].values()) == 6
    assert query["quarantined"]["too_short"] == 2
    assert (query["lag_records"], query["lag_seconds"]) == (0, 0.0)
    (partition,) = more["partitions"]
    assert (partition["topic"], partition["partition"], partition["end"]) == (watched.topic, 0, 42)
    assert "addBatch" in more["phases"]
    with dashboard(watched.home) as (_, address):
        page.goto(address)
        cells = page.locator("#queries tbody tr")
        expect(cells.locator("[data-label='rows written']")).to_have_text("36")
        expect(cells.locator("[data-label='quarantined']")).to_have_text("6")
        cells.locator("th a").click()
        expect(page.locator("#reasons")).to_contain_text("too_short")
        shown = page.locator("#reasons tbody tr").all_text_contents()
        assert sorted(shown) == sorted(f"{reason}{count}" for reason, count in query["quarantined"].items())
        look_at_a_reason(watched, page)
        look_at_the_tables(watched, page, [one["path"] for one in more["tables"]])


def look_at_a_reason(watched, page):
    page.locator("#reasons").get_by_role("link", name="undecodable").click()
    read = watched.spark.read.format("delta").load(f"{watched.settings.pipeline.table_path}_quarantine")
    rows = read.where("reason = 'undecodable'").orderBy(F.desc("quarantined_at"), F.desc("offset"))
    found = rows.select("partition", "offset", "detail", F.lower(F.hex("value")).alias("hex")).collect()
    expect(page.locator("#records tbody tr")).to_have_count(len(found))
    cells = [
        (cells[1], cells[4], cells[6].partition("0x")[2].partition(" ")[0])
        for cells in (
            row.locator("td").all_text_contents() for row in page.locator("#records tbody tr").all()
        )
    ]
    assert cells == [(f"{row.partition} / {row.offset}", row.detail, row.hex) for row in found]
    page.go_back()


def look_at_the_tables(watched, page, paths):
    assert len(paths) == 2
    for path in paths:
        page.get_by_role("link", name=path, exact=True).click()
        expect(page.locator("#table-facts")).to_be_visible()
        expect(page.locator("#table-name")).to_have_text(path)
        detail = watched.spark.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()[0]
        rows = watched.spark.read.format("delta").load(path).count()
        history = watched.spark.sql(f"DESCRIBE HISTORY delta.`{path}`").collect()
        facts = dict(
            zip(
                page.locator("#table-facts dt").all_text_contents(),
                page.locator("#table-facts dd").all_text_contents(),
                strict=True,
            )
        )
        assert (facts["version"], facts["files"]) == (str(history[0].version), str(detail.numFiles))
        assert facts["rows"] == str(rows)
        assert facts["size"] == f"{round(detail.sizeInBytes / 100) / 10:g} kB"
        assert "by gps, batch" in facts["newest commit"]
        shown = [row.locator("td").all_text_contents() for row in page.locator("#versions tbody tr").all()]
        assert [(cells[0], cells[2], cells[3], cells[5]) for cells in shown] == [
            (
                str(one.version),
                one.operation,
                one.operationMetrics.get("numFiles", "0"),
                one.operationMetrics.get("numOutputRows", "–"),
            )
            for one in history
        ]
        expect(page.locator("#files")).to_have_attribute(
            "aria-label", f"files by version; last: files {detail.numFiles}"
        )
        page.go_back()


def test_a_query_that_fails_is_kept_with_its_cause_without_secrets_and_what_to_try(watched):
    watched.send(watched.right(1), b"{}")
    query = watched.ingest(mode="FAILFAST")
    with pytest.raises(DecodeError):
        tl.await_caught_up(query, "availableNow")
    wait_until(lambda: watched.kept()[0]["ended"])
    kept, _ = watched.kept()
    assert kept["state"] == "failed"
    assert f"topic {watched.topic}, partitio* 0, offset 1".replace("n", "*") in kept["error"]
    assert "PERMISSIVE" in kept["remedy"]
