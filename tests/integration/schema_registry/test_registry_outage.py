"""A running query whose registry fails: no record is decoded, no offset moves, and it goes on by itself."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from tests.programs.crash_traffic import FIELDS, committed, record, settings_for
from tests.services.fault_proxy import HANG, FaultProxy
from tests.support.waiting import wait_until
from topiclake.delta import table as delta
from topiclake.formats.avro import decoding as avro_decoding
from topiclake.ingest import start as ingest
from topiclake.ingest.audit import audit
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame

#: The fields of every schema here; schemas differ by what they say of themselves.
NUMBER = FIELDS[:1]
#: Longer than the five seconds after which whoever is not patient gives up.
OUTAGE_SECONDS = 7
#: One fault for each way in which the client classifies an answer, the one that lasts at the end.
EACH_WAY = ["404", "503", "401", HANG]
FURTHER = ["down", "trickle", "truncated", "429", "own 500"]
#: What else a kind of fault says.
DETAILS = {"trickle": {"seconds": 1.0}, "429": {"retry_after": "2"}}
#: Much longer than a batch takes, and than the longest pause between two tries.
PATIENCE_SECONDS = 90


class Stream:
    """A query in small steps, a registry behind a proxy, and records of which each is told by its number."""

    def __init__(self, spark, addresses, folder, proxy):
        self.spark, self.folder, self.topic = spark, folder, f"outage-{uuid4().hex[:8]}"
        self.settings = settings_for(
            addresses.kafka_bootstrap_servers, proxy.url, self.topic, folder, batch=100_000
        )
        self.registry = SchemaRegistry(addresses.schema_registry_url)
        # What is sent to a partition at once is in one batch of the query.
        client = kafka_client.client_settings(self.settings.kafka) | {"linger.ms": 10_000}
        self.producer = Producer(client)
        self.sent: list[int] = []
        kafka_admin.ensure_topic(self.settings.kafka, self.topic, 3)
        self.known = self.registry.register(f"{self.topic}-value", record(NUMBER, "first"))

    def start(self):
        return ingest.start_ingest(self.spark, self.settings)

    def send(self, *schema_ids: int) -> None:
        """Send one record of each schema; each partition begins as `schema_ids` do, where they repeat."""
        for place, schema_id in enumerate(schema_ids):
            number = len(self.sent)
            value = frame(schema_id, avro_decoding.zigzag(number))
            self.producer.produce(self.topic, value=value, partition=place // 6 % 3)
            self.sent.append(number)
        assert self.producer.flush(120) == 0

    def rows(self) -> list[int]:
        table = delta.read(self.spark, str(self.folder / "table"))
        return sorted(row["number"] for row in table.select("number").collect())

    def has_quarantine(self) -> bool:
        return delta.is_table(self.spark, str(self.folder / "table_quarantine"))

    def await_rows(self, query) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while self.rows() != self.sent and query.isActive and time.monotonic() < end:
            time.sleep(0.3)
        assert query.isActive, query.exception()
        assert self.rows() == self.sent

    def assert_audited(self) -> None:
        report = audit.audit_ingest(self.spark, self.settings)
        assert report.ok, report


@pytest.fixture
def stream(embedded, spark, tmp_path):
    with FaultProxy(embedded[1].schema_registry_url) as proxy:
        yield Stream(spark, embedded[1], tmp_path, proxy), proxy


def assert_asked_sparingly(proxy):
    """Check that no path was asked more than five times within any minute."""
    paths = {request.path for request in proxy.requests}
    for path in paths:
        times = proxy.times(path)
        for first, sixth in zip(times, times[5:], strict=False):
            assert sixth - first >= 59.5, f"{path} was asked at {times}"


@pytest.mark.slow("the outage lasts longer than an impatient client waits")
def test_a_running_query_waits_for_its_registry_and_goes_on_by_itself(stream):
    """Four schemas must be looked up, and each request meets another fault."""
    stream, proxy = stream
    stream.send(stream.known)
    query = stream.start()
    try:
        query.processAllAvailable()
        assert stream.rows() == stream.sent
        before, ids = committed(stream.folder), []
        for kind in EACH_WAY:
            schema = record(NUMBER, f"{stream.topic} {kind}")
            ids.append(stream.registry.register(f"{stream.topic}-{kind}", schema))
            proxy.fault(kind, path=f"/schemas/ids/{ids[-1]}", times=1)
        stream.send(*ids, stream.known)
        wait_until(lambda: any(request.fault == HANG for request in proxy.requests))
        time.sleep(OUTAGE_SECONDS)
        assert [request.fault for request in proxy.requests if request.fault] == EACH_WAY
        assert query.isActive, query.exception()
        assert committed(stream.folder) == before
        assert not stream.has_quarantine()
        # Commit 1 has the record that needs no look-up.
        assert set(stream.rows()) <= {stream.sent[0], stream.sent[-1]}

        proxy.heal()
        query.processAllAvailable()
    finally:
        query.stop()
    assert stream.rows() == stream.sent
    assert not stream.has_quarantine()
    assert_asked_sparingly(proxy)
    stream.assert_audited()


@pytest.mark.thorough("each way in other spellings, and for every request")
@pytest.mark.slow("five queries at once, which catch up after the outage")
def test_running_queries_wait_for_their_registries_and_go_on_by_themselves(embedded, spark, tmp_path):
    with ExitStack() as proxies:
        outages = [
            Outage(kind, *stream_behind_proxy(proxies, embedded[1], spark, tmp_path / kind.replace(" ", "_")))
            for kind in FURTHER
        ]
        proxies.callback(stop_all, spark)
        for one in outages:
            one.stream.send(one.stream.known)
            one.query = one.stream.start()
        for one in outages:
            one.stream.await_rows(one.query)
            one.begin()
        time.sleep(OUTAGE_SECONDS)
        for one in outages:
            one.assert_nothing_was_decoded()
            one.proxy.heal()
        for one in outages:
            one.stream.await_rows(one.query)
            assert not one.stream.has_quarantine(), one.kind
            assert_asked_sparingly(one.proxy)
            one.query.stop()


@dataclass
class Outage:
    """A running query, and one kind of fault that its registry has."""

    kind: str
    stream: Stream
    proxy: FaultProxy
    query: Any = None
    before: dict[int, int] = field(default_factory=dict)

    def begin(self):
        self.before = committed(self.stream.folder)
        self.proxy.fault(self.kind, **DETAILS.get(self.kind, {}))
        stream = self.stream
        # A version of the topic's own subject, and a schema that must be looked up by its id.
        version = stream.registry.register(f"{stream.topic}-value", record(NUMBER, "second"))
        other = stream.registry.register(f"{stream.topic}-other", record(NUMBER, "of another subject"))
        # The known one last: a batch of its records alone needs no registry, and goes on as it should.
        stream.send(*[version, other, stream.known] * 60)

    def assert_nothing_was_decoded(self):
        assert self.query.isActive, f"{self.kind}: {self.query.exception()}"
        assert committed(self.stream.folder) == self.before, self.kind
        assert not self.stream.has_quarantine(), self.kind
        assert set(self.stream.rows()) <= set(self.stream.sent), self.kind


def stream_behind_proxy(proxies, addresses, spark, folder):
    proxy = proxies.enter_context(FaultProxy(addresses.schema_registry_url))
    folder.mkdir()
    return Stream(spark, addresses, folder, proxy), proxy


def stop_all(spark):
    for query in spark.streams.active:
        query.stop()


@pytest.mark.thorough("the end of the patience of an outage")
def test_an_outage_that_lasts_too_long_ends_the_query_and_loses_nothing(stream):
    stream, proxy = stream
    registry = stream.settings.schema_registry.model_copy(update={"retry_seconds": 2.0})
    stream.settings = stream.settings.model_copy(update={"schema_registry": registry})
    stream.send(stream.known)
    query = stream.start()
    stream.await_rows(query)
    before = committed(stream.folder)

    proxy.fault("503")
    other = stream.registry.register(f"{stream.topic}-other", record(NUMBER, "of another subject"))
    stream.send(*[other, stream.known] * 500)
    with pytest.raises(Exception, match=r"HTTP 503; gave up after \d+ s of 2"):
        query.awaitTermination(PATIENCE_SECONDS)
    assert committed(stream.folder) == before
    assert not stream.has_quarantine()

    proxy.heal()
    query = stream.start()
    try:
        stream.await_rows(query)
        query.processAllAvailable()
    finally:
        query.stop()
    stream.assert_audited()
