"""OpenLineage's events of an ingest: by its own schemas, against the tables, to a file and to a server."""

import json
import logging
import pickle
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from uuid import uuid4

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

import topiclake as tl
from tests.support.numbers_topic import Numbers, crash_after_batch, right
from tests.support.waiting import wait_until
from topiclake.config.changes import ChangeSettings
from topiclake.config.lineage import LineageSettings
from topiclake.config.secret import Secret
from topiclake.delta import table as delta
from topiclake.errors import StorageError
from topiclake.monitoring import lineage
from topiclake.streaming import batch_counts
from topiclake.streaming.batch_hooks import Backoff

SPECIFICATION = Path(__file__).parent / "openlineage"
API_KEY = "Sesam-123"


class Traced(Numbers):
    """Topics of numbers, and the lineage of their ingest."""

    @property
    def file(self):
        return self.folder / "lineage" / "events.jsonl"

    def settings(self, to=None, **given):
        return super().settings(**given).model_copy(update={"lineage": to or LineageSettings(file=self.file)})

    def ingest(self, to=None, **given):
        return self.ingested(self.settings(to, **given))

    def events(self):
        return [json.loads(line) for line in self.file.read_text("utf-8").splitlines()]

    def written(self, path):
        """By batch: version and rows of the commits that the history tells."""
        commits = delta.history(self.spark, path).where("batch IS NOT NULL").orderBy("version").collect()
        return [(json.loads(one["batch"])["batch_id"], one["version"], one["rows"]) for one in commits]


def valid(events):
    """Check events, and each facet that the specification knows, against its schemas."""
    found = [json.loads(file.read_text("utf-8")) for file in SPECIFICATION.glob("*.json")]
    registry = Registry().with_resources([(one["$id"], Resource.from_contents(one)) for one in found])
    main = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
    known = 0
    for event in events:
        Draft202012Validator({"$ref": main}, registry=registry).validate(event)
        parts = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
        for part in parts:
            for name, facet in (part.get("facets", {}) | part.get("outputFacets", {})).items():
                assert facet["_producer"] == "urn:topiclake" or "tags" in facet
                # The test of a table by name compares the whole facet `symlinks`.
                if facet["_schemaURL"].startswith("https:") and name != "symlinks":
                    Draft202012Validator({"$ref": facet["_schemaURL"]}, registry=registry).validate(facet)
                    known += 1
    assert known >= 5 * len(events) > 0
    return events


@pytest.fixture
def traced(connected, tmp_path):
    made = Traced(connected, tmp_path)
    made.topic("a")
    return made


def test_each_batch_is_an_event_with_its_offsets_schemas_and_the_versions_it_made(traced):
    schema_id = traced.register("a")
    traced.send("a", *(right(schema_id, n) for n in range(20)), b"{}", b"{ }   ")
    query = traced.ingest(max_offsets_per_trigger="8")
    events = valid(traced.events())
    assert len(events) == 3
    table, quarantine = f"{traced.folder}/table", f"{traced.folder}/table_quarantine"
    assert table_versions(events, table) == traced.written(table)
    assert table_versions(events, quarantine) == traced.written(quarantine)
    assert sum(rows for _, _, rows in traced.written(table)) == 20
    partitions = [one for event in events for one in offsets(event)]
    # Without gaps, and all of it.
    for partition in (0, 1):
        own = [one for one in partitions if one["partition"] == partition]
        assert [one["first"] for one in own] == [0, *(one["after"] for one in own[:-1])]
        assert own[-1]["after"] == 11
    for number, event in enumerate(events):
        assert event["eventType"] == "COMPLETE"
        assert event["job"]["name"] == f"gps.{traced.name}-a"
        (topic,) = event["inputs"]
        assert topic["namespace"] == f"kafka://{traced.settings().kafka.bootstrap_servers}"
        assert topic["name"] == f"{traced.name}-a"
        assert topic["facets"]["topiclake_schemas"]["value"] == [schema_id]
        assert event["run"]["facets"]["topiclake_batch"]["batchId"] == number
        assert event["run"]["facets"]["parent"]["run"]["runId"] == str(query.id)
    reasons = [
        output["facets"]["topiclake_quarantine"]["reasons"]
        for event in events
        for output in event["outputs"]
        if output["name"] == quarantine
    ]
    assert {name for one in reasons for name in one} == {"too_short", "bad_magic"}
    assert not batch_counts.has_subscribers()


@pytest.mark.thorough("events of a pipeline that appends are in make test")
def test_a_batch_of_changes_is_an_event_with_the_version_of_its_merge(traced, catalog_schema):
    schema_id = traced.register("a")
    name = f"{catalog_schema}.numbers"
    settings = traced.settings(max_offsets_per_trigger="4", table=name)
    changes = {"apply": "upsert", "changes": ChangeSettings(keys=("n",))}
    settings = settings.model_copy(update={"pipeline": settings.pipeline.model_copy(update=changes)})
    traced.send("a", *(right(schema_id, n) for n in (1, 2, 1, 2, 3, 3)), b"{}", b"{}")
    traced.ingested(settings)
    events = valid(traced.events())
    (detail,) = traced.spark.sql(f"DESCRIBE DETAIL {name}").collect()
    table = detail["location"].removeprefix("file:")
    quarantine = f"{table}_quarantine"
    # The folder is the name of a dataset, and the name in the catalog is a symlink of it.
    assert {
        output["name"]: output["facets"]["symlinks"]["identifiers"]
        for event in events
        for output in event["outputs"]
    } == {
        folder: [{"namespace": "file", "name": table_name, "type": "TABLE"}]
        for folder, table_name in ((table, name), (quarantine, f"{name}_quarantine"))
    }
    merges = delta.history(traced.spark, table).where("operation = 'MERGE'").orderBy("version").collect()
    # Of each key, one of the changes is merged.
    assert table_versions(events, table) == [
        (number, merge["version"], rows)
        for number, (merge, rows) in enumerate(zip(merges, (2, 1), strict=True))
    ]
    assert table_versions(events, quarantine) == traced.written(quarantine)
    assert [one["facets"]["topiclake_schemas"]["value"] for event in events for one in event["inputs"]] == [
        [schema_id]
    ] * 2


@pytest.mark.thorough("repeated batches of JSON and counts are in make test")
def test_a_batch_that_a_crash_cut_off_is_told_again_as_the_same_run_with_the_same_versions(traced):
    schema_id = traced.register("a")
    traced.send("a", right(schema_id, 1), right(schema_id, 2), b"{}")
    traced.ingest()
    crash_after_batch(traced.folder / "checkpoint", 0)
    traced.send("a", right(schema_id, 3))
    traced.ingest()
    first, again, last = valid(traced.events())
    assert (first["run"]["runId"], first["outputs"]) == (again["run"]["runId"], again["outputs"])
    assert (first["inputs"], offsets(last)) == (again["inputs"], [{"partition": 0, "first": 2, "after": 3}])
    assert delta.read(traced.spark, f"{traced.folder}/table").count() == 3


class Server:
    """Takes events, or answers with another `status`."""

    def __init__(self):
        self.asked, self.status = [], 201
        server = self

        class Answers(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append((self.path, self.headers["Authorization"], server.status, body))
                self.send_response(server.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    @property
    def taken(self):
        return [body for _, _, status, body in self.asked if status == 201]


@pytest.fixture
def server():
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.mark.thorough("an unavailable server of lineage, while a query runs")
def test_a_server_that_is_away_stops_no_batch_and_gets_all_of_them_later(traced, server, monkeypatch, caplog):
    monkeypatch.setattr(Backoff, "SHORTEST_SECONDS", 0.2)
    schema_id = traced.register("a")
    to = LineageSettings(url=server.url, api_key=Secret("lineage", "key", lambda *_: f"{API_KEY}\n"))
    server.status = 503
    settings = traced.settings(to, trigger="1 second")
    traced.send("a", right(schema_id, 1))
    query = tl.start_ingest(traced.spark, settings)
    with caplog.at_level(logging.DEBUG):
        tl.await_caught_up(query, "1 second")
        assert delta.read(traced.spark, f"{traced.folder}/table").count() == 1
        assert server.asked
        assert server.taken == []
        asked = len(server.asked)
        traced.send("a", right(schema_id, 2))
        tl.await_caught_up(query, "1 second")
        server.status, back = 201, time.monotonic()
        wait_until(lambda: time.monotonic() > back + 2)
        traced.send("a", right(schema_id, 3))
        tl.await_caught_up(query, "1 second")
    query.stop()
    assert asked
    assert [one["run"]["facets"]["topiclake_batch"]["batchId"] for one in valid(server.taken)] == [0, 1, 2]
    path, authorization, _, _ = server.asked[-1]
    assert (path, authorization) == ("/api/v1/lineage", f"Bearer {API_KEY}")
    warned = [one.getMessage() for one in caplog.records if one.name == "topiclake.streaming.batch_hooks"]
    assert len(warned) == 1
    assert f"sending its lineage to {server.url} failed" in warned[0]
    assert API_KEY not in caplog.text


@pytest.mark.thorough("a further event of the same form")
def test_an_event_that_the_server_refuses_holds_up_no_other(traced, server, caplog):
    schema_id = traced.register("a")
    to = LineageSettings(url=server.url)
    server.status = 422
    traced.send("a", right(schema_id, 1))
    traced.ingest(to)
    server.status = 201
    traced.send("a", right(schema_id, 2))
    traced.ingest(to)
    assert len(server.asked) == 2
    assert [one["run"]["facets"]["topiclake_batch"]["batchId"] for one in server.taken] == [1]
    assert "the server refuses (422)" in caplog.text


@pytest.mark.thorough("an unavailable server of lineage at the end of a query")
def test_a_server_that_is_away_at_the_end_is_told_in_the_log(traced, server, caplog):
    schema_id = traced.register("a")
    server.status = 401
    traced.send("a", right(schema_id, 1))
    traced.ingest(LineageSettings(url=server.url))
    assert "the server answers 401" in caplog.text
    assert delta.read(traced.spark, f"{traced.folder}/table").count() == 1


def test_a_file_that_cannot_be_written_is_told_at_the_start(traced):
    (traced.folder / "taken").write_text("no folder")
    with pytest.raises(StorageError, match=r"lineage\.file .* cannot be written"):
        traced.ingest(LineageSettings(file=traced.folder / "taken" / "events.jsonl"))
    assert not batch_counts.has_subscribers()


def test_a_start_that_fails_leaves_nothing(traced):
    with pytest.raises(tl.errors.SubjectNotFoundError):
        traced.ingest()
    assert not batch_counts.has_subscribers()
    assert lineage._senders == {}


def test_it_can_be_pickled_for_spark_connect_without_its_secret_reader(traced):
    to = LineageSettings(url="http://127.0.0.1:1", api_key=Secret("a", "b", lambda *_: API_KEY))
    made = lineage.prepared(traced.settings(to), to)
    assert pickle.loads(pickle.dumps(made)).api_key == API_KEY
    assert API_KEY not in repr(made)


def test_lines_of_a_file_are_whole_whoever_else_writes_and_whatever_was_cut_off(tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text('{"cut')
    senders = [lineage._Sender(LineageSettings(file=file), None) for _ in range(4)]
    many = lineage.OffsetsDatasetFacet([{"partition": one, "first": 0, "after": 1} for one in range(900)])

    def write(sender, number):
        for one in range(25):
            run = lineage.event_v2.Run(str(uuid4()))
            job = lineage.event_v2.Job("t", f"{number}.{one}")
            topic = lineage.event_v2.InputDataset("k", "t", facets={"topiclake_offsets": many})
            sender.waiting.append(
                lineage.event_v2.RunEvent(
                    eventTime="2026-01-01T00:00:00Z", run=run, job=job, inputs=[topic], outputs=[]
                )
            )
            sender.send()

    threads = [threading.Thread(target=write, args=(one, number)) for number, one in enumerate(senders)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    for one in senders:
        one.counts.close()
    cut, *lines = file.read_text().splitlines()
    assert cut == '{"cut'
    names = [json.loads(line)["job"]["name"] for line in lines]
    assert sorted(names) == sorted(f"{number}.{one}" for number in range(4) for one in range(25))


def table_versions(events, path):
    """By event: batch, version and rows of a table."""
    return [
        (
            event["run"]["facets"]["topiclake_batch"]["batchId"],
            int(output["facets"]["version"]["datasetVersion"]),
            output["outputFacets"]["outputStatistics"]["rowCount"],
        )
        for event in events
        for output in event["outputs"]
        if (output["namespace"], output["name"]) == ("file", path)
    ]


def offsets(event):
    facet = event["inputs"][0]["facets"]["topiclake_offsets"]
    return facet["partitions"]
